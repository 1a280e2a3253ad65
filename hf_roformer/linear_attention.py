# Copyright 2026 The hf_roformer authors. Licensed under the Apache License, Version 2.0.
"""Linear attention with rotation: a sum over keys that is formed once and serves every query.

The query at m gets `sum_n (R_m f(q_m))^T (R_n f(k_n)) v_n / sum_n f(q_m)^T f(k_n)` with a positive feature map f
(RoFormer, arXiv 2104.09864, equation 19). The divisor stays unrotated: a rotated sum could cross zero. So the weights
of the values may be negative and need not sum to one, and a query that sees nothing gets 0.

A causal row is cut into chunks: within one the products are masked, and from the earlier ones comes a running sum,
which is also all that a cache keeps. The same cut keeps packed sequences apart. Features and sums are float32, under
autocast too.

Shapes: B batch, H heads, Q query columns, L tokens of a row, K width of one head, F features of one head, V values of
one head, M chunks, C tokens of a chunk, D hidden size, P pairs.
"""

from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import initialization as init
from transformers.cache_utils import Cache, CacheLayerMixin

from .attention import Flattening, HFRoFormerSelfAttention
from .configuration_roformer import HFRoFormerConfig
from .positions import Layout, sequences_by_offsets
from .rotary import RotationTable, Turns, back, rotate, values_are_hidden, widened, without_autocast
from .token_blocks import fill, token_blocks

# tokens of a chunk: the masked products cost so much a token, and the running sums F V / so much
CHUNK = 64
# tokens of a block: attention leaves some twenty tensors of the states' width on its way, a feed-forward half as many
BLOCK = 512
# keeps a relu from giving a query and all its keys the product 0 (Performer's own choice)
RELU_FLOOR = 1e-3
# doublings that a traced graph makes in a scan over chunks, whose number it does not know
TRACED_DOUBLINGS = 16


# feature maps: float32 in, float32 out, positive


def elu_features(x: Tensor) -> Tensor:
    """Return elu(x) + 1, as exp(x) below 0: one minus almost one would lose the digits of a small feature."""
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())


def relu_features(x: Tensor) -> Tensor:
    """Return relu(x), raised by `RELU_FLOOR`."""
    return x.relu() + RELU_FLOOR


def draw_directions(num_features: int, width: int, generator: torch.Generator | None = None) -> Tensor:
    """Draw rows that are normal each by itself and orthogonal within every `width` of them, float32 [F, K]."""
    options: dict[str, Any] = {"generator": generator, "dtype": torch.float64, "device": "cpu"}
    blocks = torch.randn(num_features // width, width, width, **options)
    basis, upper = torch.linalg.qr(blocks)
    # without the signs the basis would not be uniform among all
    basis = basis * upper.diagonal(dim1=-2, dim2=-1).sign()[:, None, :]
    lengths_F1 = torch.randn(num_features, width, **options).norm(dim=-1, keepdim=True)
    return (basis.transpose(-1, -2).flatten(0, 1) * lengths_F1).to(torch.float32)


def random_exponents(x: Tensor, directions_FK: Tensor) -> Tensor:
    """Return the logarithms of the positive features of the softmax kernel, [..., F] (Performer, lemma 1).

    The mean over features of exp(exponent of q + exponent of k) estimates exp(q^T k / sqrt(K)) without bias.
    """
    x = x * x.shape[-1] ** -0.25
    return x @ directions_FK.to(x.dtype).mT - x.square().sum(dim=-1, keepdim=True) / 2


class HFRoFormerRandomFeatures(nn.Module):
    """The directions of a random feature map, which are drawn, not learned, and saved with the weights."""

    directions: Tensor

    def __init__(self, config: HFRoFormerConfig) -> None:
        super().__init__()
        width = config.hidden_size // config.num_attention_heads
        self.register_buffer("directions", torch.empty(config.num_features, width))

    @torch.no_grad()
    def redraw(self, generator: torch.Generator | None = None) -> None:
        """Draw other directions, the same ones from the same state of the generator on every device."""
        num_features, width = self.directions.shape
        self.directions.copy_(draw_directions(num_features, width, generator))

    def query_features(self, x: Tensor) -> Tensor:
        """Return the features of queries; each query's largest is 1, which its divisor takes out again."""
        exponents = random_exponents(x, self.directions)
        return (exponents - exponents.detach().amax(dim=-1, keepdim=True)).exp()

    def key_features(self, x: Tensor) -> Tensor:
        """Return the features of keys, all times one factor that keeps the largest and smallest within float32.

        The factor depends on the directions alone, so that sums from different calls can be added.
        """
        exponents = random_exponents(x, self.directions)
        # no exponent exceeds half the square of its direction
        return (exponents - self.directions.to(x.dtype).square().sum(dim=-1).max() / 4).exp()


# sums


class LinearMask(NamedTuple):
    """Which tokens count, and which belong together.

    `visible_BL` is None where all tokens are real. `sequence_ids_BL` is None where no row holds several sequences;
    otherwise equal ids lie side by side, once the tokens are in the order of `order_BL` (None: as they are).
    `longest` bounds the tokens of a sequence, where that is known.
    """

    visible_BL: Tensor | None
    sequence_ids_BL: Tensor | None = None
    order_BL: Tensor | None = None
    longest: int | None = None
    wants_weights: bool = False


def _columns(num_chunks: int, chunk: int, device: torch.device) -> Tensor:
    """Number the columns of chunks, [M, C]."""
    return torch.arange(num_chunks, device=device)[:, None] * chunk + torch.arange(chunk, device=device)


def _in_chunks(x_BHLF: Tensor, chunk: int) -> Tensor:
    """Cut rows into chunks, [B, H, M, C, F]; the last is filled with zeros, which add nothing."""
    length = x_BHLF.shape[2]
    num_chunks = (length + chunk - 1) // chunk
    if not values_are_hidden(x_BHLF):
        return F.pad(x_BHLF, (0, 0, 0, num_chunks * chunk - length)).unflatten(2, (num_chunks, chunk))
    # a graph traced over one chunk would serve one alone: another, empty one follows. Taken by their columns, since
    # a change of shape would ask for a proof that the chunks fill the row
    columns_MC = _columns(num_chunks + 1, chunk, x_BHLF.device)
    return x_BHLF[:, :, columns_MC.clamp(max=length - 1)] * (columns_MC < length)[..., None]


def _joined(x_BHMCV: Tensor, length: int) -> Tensor:
    """Undo `_in_chunks`."""
    x_BHLV = x_BHMCV.flatten(2, 3)
    if not values_are_hidden(x_BHLV):
        return x_BHLV[:, :, :length]
    # a slice would ask a traced graph for a proof that there are so many columns
    return x_BHLV.index_select(2, torch.arange(length, device=x_BHLV.device))


def _moved(x_BHMFV: Tensor, by: int) -> Tensor:
    """Move each chunk's part to the chunk that many later; zeros come in."""
    if not values_are_hidden(x_BHMFV):
        return F.pad(x_BHMFV[:, :, :-by], (0, 0, 0, 0, by, 0))
    # a traced number of chunks may be smaller than `by`
    from_M = torch.arange(x_BHMFV.shape[2], device=x_BHMFV.device) - by
    return x_BHMFV[:, :, from_M.clamp(min=0)] * (from_M >= 0)[:, None, None]


def _sum_same(sums_BHMFV: Tensor, ids_BM: Tensor, longest: int | None) -> Tensor:
    """Add to each chunk's sum those of the chunks before that have its id; equal ids lie side by side.

    By doublings: after the n-th, 2^n chunks are added up. No sequence has more than `longest` tokens.
    """
    num_chunks = ids_BM.shape[1]
    if longest is not None:
        num_chunks = min(num_chunks, longest // CHUNK + 2)
    ids_B1M11 = ids_BM[:, None, :, None, None]
    for doubling in range(TRACED_DOUBLINGS if values_are_hidden(ids_BM) else (num_chunks - 1).bit_length()):
        # what comes in from before the row is zero, whatever its id
        same_B1M11 = ids_B1M11 == _moved(ids_B1M11, 2**doubling)
        sums_BHMFV = sums_BHMFV + _moved(sums_BHMFV, 2**doubling) * same_B1M11
    return sums_BHMFV


def _from_earlier_chunks(query: Tensor, key: Tensor, value: Tensor, ids_BMC: Tensor, longest: int | None) -> Tensor:
    """Weigh the values that lie in earlier chunks and in a query's own sequence, [B, H, M, C, V]."""
    last_BM1 = ids_BMC[..., -1:]
    ends_BMC = ids_BMC == last_BM1
    sums_BHMFV = (key * ends_BMC[:, None, ..., None]).mT @ value
    before_BHMFV = _moved(_sum_same(sums_BHMFV, last_BM1[..., 0], longest), 1)
    # the first chunk has nothing before it, so what it is compared with does not matter
    goes_on_BMC = ids_BMC == last_BM1.roll(1, dims=1)
    return (query * goes_on_BMC[:, None, ..., None]) @ before_BHMFV


def weigh_apart(
    query: Tensor, key: Tensor, value: Tensor, ids_BL: Tensor, *, causal: bool, longest: int | None = None
) -> Tensor:
    """Sum (q_m^T k_n) v_n over the keys of a query's own sequence, [B, H, L, V]; equal ids lie side by side."""
    length = query.shape[2]
    chunk = CHUNK if values_are_hidden(query) else min(CHUNK, length)
    query, key, value = (_in_chunks(x, chunk) for x in (query, key, value))
    # the filling belongs to the last sequence, for which it is nothing
    ids_BMC = ids_BL[:, _columns(query.shape[2], chunk, ids_BL.device).clamp(max=length - 1)]
    seen_BMCC = ids_BMC[..., :, None] == ids_BMC[..., None, :]
    seen_BMCC = seen_BMCC.tril() if causal else seen_BMCC
    out = ((query @ key.mT) * seen_BMCC[:, None]) @ value
    out = out + _from_earlier_chunks(query, key, value, ids_BMC, longest)
    if not causal:
        query, key, value = (x.flip(2, 3) for x in (query, key, value))
        out = out + _from_earlier_chunks(query, key, value, ids_BMC.flip(1, 2), longest).flip(2, 3)
    return _joined(out, length)


def weigh_past(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Sum (q_m^T k_n) v_n over n <= m, [B, H, L, V]."""
    length = query.shape[2]
    chunk = CHUNK if values_are_hidden(query) else min(CHUNK, length)
    query, key, value = (_in_chunks(x, chunk) for x in (query, key, value))
    out = (query @ key.mT).tril() @ value
    before_BHMFV = _moved(key.mT @ value, 1).cumsum(dim=2)
    return _joined(out + query @ before_BHMFV, length)


def _is_broken(key: Tensor, value: Tensor) -> bool:
    """Say whether something is no number; where a look would make every step wait, nothing is said to be."""
    if key.device.type != "cpu" or values_are_hidden(key):
        return False
    return not bool((key.detach().sum() + value.detach().sum()).isfinite())


def _weigh_one_by_one(query: Tensor, key: Tensor, value: Tensor, ids_BL: Tensor, *, causal: bool) -> Tensor:
    """Weigh each sequence alone: zero times what is no number would carry it to its neighbours."""
    rows = []
    for row, ids_L in enumerate(ids_BL.expand(query.shape[0], -1)):
        lengths = ids_L.unique_consecutive(return_counts=True)[1].tolist()
        parts = (x[row : row + 1].split(lengths, dim=2) for x in (query, key, value))
        alone = [weigh(q, k, v, LinearMask(None), causal=causal) for q, k, v in zip(*parts, strict=True)]
        rows.append(torch.cat(alone, dim=2))
    return torch.cat(rows)


def weigh(query: Tensor, key: Tensor, value: Tensor, mask: LinearMask, *, causal: bool) -> Tensor:
    """Sum (q_m^T k_n) v_n over what each query sees, [B, H, L, V]."""
    if mask.sequence_ids_BL is not None:
        if _is_broken(key, value):
            return _weigh_one_by_one(query, key, value, mask.sequence_ids_BL, causal=causal)
        return weigh_apart(query, key, value, mask.sequence_ids_BL, causal=causal, longest=mask.longest)
    # of one token alone the past is all
    if causal and query.shape[2] != 1:
        return weigh_past(query, key, value)
    return query @ (key.mT @ value)


def divide(total: Tensor, divisor: Tensor) -> Tensor:
    """Divide, and give 0 where the divisor is 0: no key is seen. No gradient passes there."""
    positive = divisor > 0
    return torch.where(positive, total / torch.where(positive, divisor, 1), 0)


def _for_each_block(rotation: RotationTable | Turns, num_blocks: int) -> RotationTable | Turns:
    """Give each block of a head's features the turns of its head, where heads turn each in its own way."""

    def repeated(table: Tensor | None, dim: int) -> Tensor | None:
        return table if table is None or table.shape[dim] == 1 else table.repeat_interleave(num_blocks, dim=dim)

    if num_blocks == 1 or not isinstance(rotation, Turns) or rotation.places is None:
        return rotation
    return rotation._replace(
        cos=repeated(rotation.cos, 1),
        sin=repeated(rotation.sin, 1),
        basis_HKK=repeated(rotation.basis_HKK, 0),
        signs_BHL1=repeated(rotation.signs_BHL1, 1),
    )


def turn_features(x_BHLF: Tensor, rotation: RotationTable | Turns, width: int) -> Tensor:
    """Turn each block of `width` features by the angles of the token's position."""
    num_heads, num_blocks = x_BHLF.shape[1], x_BHLF.shape[-1] // width
    blocks_BXLK = x_BHLF.unflatten(-1, (-1, width)).movedim(3, 2).flatten(1, 2)
    turned_BXLK = rotate(blocks_BXLK, _for_each_block(rotation, num_blocks))
    return turned_BXLK.unflatten(1, (num_heads, -1)).movedim(2, 3).flatten(3)


# what a forward tells every linear layer


def _side_by_side(ids_BL: Tensor) -> bool:
    return not values_are_hidden(ids_BL) and ids_BL.device.type == "cpu" and bool((ids_BL.diff(dim=1) >= 0).all())


def linear_mask(layout: Layout, length: int, past: "int | Tensor", *, cached: bool, wants_weights: bool) -> LinearMask:
    """Read a layout for linear layers.

    Raises:
        ValueError: for what needs a weight for every pair, or keys that a cache of fixed size has not kept.
    """
    if layout.mask is not None and (not isinstance(layout.mask, Tensor) or layout.mask.dim() != 2):
        raise ValueError(
            "linear attention forms no score that an attention_mask of three or four dimensions could hide: give a "
            "mask [batch, length], tell packed sequences apart by sequence_ids, or use attention_kind 'softmax'"
        )
    ids_BL = layout.sequence_ids_BL
    if cached and ids_BL is not None:
        raise ValueError(
            "the cache of linear attention holds one sum a row and cannot keep packed sequences apart: pass "
            "use_cache=False"
        )
    if wants_weights and cached:
        raise ValueError(
            "linear attention keeps no keys in its cache, so it has no attentions to return: pass use_cache=False, "
            "or leave output_attentions out"
        )
    visible_BL = layout.visible_BK
    if visible_BL is not None and visible_BL.shape[1] != length:
        visible_BL = visible_BL[:, torch.arange(length, device=visible_BL.device) + past]
    if ids_BL is None or _side_by_side(ids_BL):
        return LinearMask(visible_BL, ids_BL, wants_weights=wants_weights)
    order_BL = ids_BL.argsort(dim=1, stable=True)
    visible_BL = None if visible_BL is None else visible_BL.gather(1, order_BL)
    return LinearMask(visible_BL, ids_BL.gather(1, order_BL), order_BL, wants_weights=wants_weights)


def mask_of_flattened(flat: Flattening) -> LinearMask:
    """Read sequences that lie end to end in one row."""
    if len(flat.lengths) == 1:
        return LinearMask(None)
    ids_1T = sequences_by_offsets(flat.offsets, flat.rows_T.shape[0])
    return LinearMask(None, ids_1T, longest=max(flat.lengths))


# the cache


class LinearState(CacheLayerMixin):
    """What a linear layer keeps of the tokens that it has seen: two sums, whose size no length changes.

    Under the library's names, so that its own methods serve: `keys` is the sum of key features times values
    [B, H, F, V], `values` the sum of key features [B, H, F, 1], both float32.
    """

    def __init__(self, max_length: int = -1) -> None:
        super().__init__()
        self.max_length = max_length
        self.cumulative_length = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Start from sums of these shapes that are zero."""
        self.device = key_states.device
        self.keys, self.values = torch.zeros_like(key_states), torch.zeros_like(value_states)
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Add the sums over `num_tokens` new tokens, given by name; return the sums before."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        before = self.keys, self.values
        self.keys, self.values = self.keys + key_states, self.values + value_states
        self.cumulative_length += kwargs["num_tokens"]
        return before

    def get_seq_length(self) -> int:
        """Return how many tokens were seen."""
        return self.cumulative_length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the length of the mask, which is that of the other layers, and its offset."""
        return (self.cumulative_length + query_length if self.max_length < 0 else self.max_length), 0

    def get_max_length(self) -> int:
        """Return the length of the static layer in whose place this one stands, or -1 for no end."""
        return self.max_length

    def crop(self, tokens_to_remove: int) -> None:
        """Refuse: what was added up cannot be told apart again."""
        if tokens_to_remove:
            raise ValueError(
                f"the cache of linear attention cannot forget {abs(tokens_to_remove)} tokens again: generate without "
                "an assistant, or start a new cache"
            )

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row."""
        if self.is_initialized:
            self.keys = self.keys.repeat_interleave(repeats, dim=0)
            self.values = self.values.repeat_interleave(repeats, dim=0)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep the rows that are named."""
        if self.is_initialized:
            self.keys, self.values = self.keys[indices, ...], self.values[indices, ...]


def hold_states(cache: Cache | None, kinds: list[str]) -> None:
    """Give a cache that is still empty a state in the place of each linear layer's keys and values."""
    if cache is None or "linear" not in kinds:
        return
    if cache.layer_class_to_replicate is not None:
        cache.layers += [cache.layer_class_to_replicate() for _ in kinds[len(cache.layers) :]]
    for index, kind in enumerate(kinds):
        layer: Any = cache.layers[index]
        if kind == "linear" and not isinstance(layer, LinearState):
            if layer.is_initialized and layer.get_seq_length():
                raise ValueError("the cache was filled by a model without linear attention: start a new one")
            cache.layers[index] = LinearState(max(layer.get_max_length(), -1))


# the layer

Side = Literal["query", "key"]


def take(x_BLD: Tensor, columns_BL: Tensor) -> Tensor:
    """Put the columns of each row in another order, [B, L, D]."""
    return x_BLD.expand(columns_BL.shape[0], -1, -1).gather(1, columns_BL[..., None].expand(-1, -1, x_BLD.shape[-1]))


def _in_order(rotation: RotationTable | Turns, order_BL: Tensor) -> RotationTable | Turns:
    rotation = rotation._replace(cos=take(rotation.cos, order_BL), sin=take(rotation.sin, order_BL))
    if not isinstance(rotation, Turns) or rotation.places is None:
        return rotation
    ids_BL = take(rotation.places.ids_BL[..., None], order_BL)[..., 0]
    return rotation._replace(places=rotation.places._replace(ids_BL=ids_BL))


def _in_places(weights_BHQQ: Tensor, places_BQ: Tensor) -> Tensor:
    """Put queries and keys where they were."""
    places_B1Q1 = places_BQ[:, None, :, None].expand_as(weights_BHQQ)
    return weights_BHQQ.gather(2, places_B1Q1).gather(3, places_B1Q1.mT)


class Part(NamedTuple):
    """What a layer reads of a row, or of some of its columns."""

    hidden_BQD: Tensor
    rotation: RotationTable | Turns
    mask: LinearMask

    def of(self, columns: slice) -> "Part":
        """Return the part of some columns, in a row that holds one sequence."""
        rotation, visible_BL = self.rotation, self.mask.visible_BL
        rotation = rotation._replace(cos=rotation.cos[..., columns, :], sin=rotation.sin[..., columns, :])
        if isinstance(rotation, Turns) and rotation.signs_BHL1 is not None:
            rotation = rotation._replace(signs_BHL1=rotation.signs_BHL1[..., columns, :])
        mask = LinearMask(None if visible_BL is None else visible_BL[:, columns])
        # some columns of several rows are not contiguous: three products would each copy them
        return Part(self.hidden_BQD[:, columns].contiguous(), rotation, mask)


class Queries(NamedTuple):
    """The features of queries [B, H, Q, F], and the dtype of what they were projected from."""

    plain: Tensor
    turned: Tensor
    dtype: torch.dtype


class Keys(NamedTuple):
    """The features of keys [B, H, L, F], their values [B, H, L, V], and the dtype of what they were projected from."""

    plain: Tensor
    turned: Tensor
    value: Tensor
    dtype: torch.dtype

    @property
    def ones(self) -> Tensor:
        """What the divisor adds up in place of the values, [B, H, L, 1]."""
        return torch.ones_like(self.value[..., :1])


class HFRoFormerFeatureMatrices(nn.Module):
    """A learned matrix for the features of queries and one for those of keys, in each block of each head.

    What stands behind a feature map no weight before it takes in, so here, unlike in softmax attention, a rotation in
    any other basis is another function (https://kexue.fm/archives/9403).
    """

    def __init__(self, config: HFRoFormerConfig) -> None:
        super().__init__()
        width = config.hidden_size // config.num_attention_heads
        unit = torch.eye(width).repeat(config.num_attention_heads, 1, 1)
        self.query, self.key = nn.Parameter(unit), nn.Parameter(unit.clone())

    def start(self) -> None:
        """Start from the identity."""
        for matrix_HKK in (self.query, self.key):
            init.copy_(matrix_HKK, torch.eye(matrix_HKK.shape[-1]).expand_as(matrix_HKK))

    def forward(self, x_BHLF: Tensor, side: Side) -> Tensor:
        """Return the features of one side, in their dtype and shape."""
        matrix_HKK = self.query if side == "query" else self.key
        blocks_BHLXK = x_BHLF.unflatten(-1, (-1, matrix_HKK.shape[-1]))
        return (blocks_BHLXK @ matrix_HKK.to(x_BHLF.dtype).mT[:, None]).flatten(-2)


class HFRoFormerLinearAttention(HFRoFormerSelfAttention):
    """Attend within a row by sums; features are rotated, and the values where the config says so."""

    def __init__(self, config: HFRoFormerConfig, layer_idx: int, *, is_causal: bool) -> None:
        super().__init__(config, layer_idx, is_causal=is_causal)
        self.random_features = HFRoFormerRandomFeatures(config) if config.feature_map == "favor" else None
        self.plain_features = relu_features if config.feature_map == "relu" else elu_features
        self.feature_matrices = HFRoFormerFeatureMatrices(config) if config.feature_matrices else None

    def forward(
        self,
        hidden_BQD: Tensor,
        rotation: RotationTable | Turns,
        mask: LinearMask,
        cache: Cache | None,
        backend: str,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the attended states [B, Q, D] and, where the mask asks for them, the weights [B, H, Q, Q]."""
        order_BQ = mask.order_BL
        if order_BQ is not None:
            hidden_BQD, rotation = take(hidden_BQD, order_BQ), _in_order(rotation, order_BQ)
        rotation = self._own_turns(rotation)
        state: Any = None if cache is None else cache.layers[self.layer_idx]
        # a sum within each sequence, and weights, take the whole row
        whole = mask.sequence_ids_BL is not None or mask.wants_weights
        blocks = [] if whole else token_blocks(hidden_BQD, *self.children(), tokens=BLOCK)
        if blocks:
            return self._attend_in_blocks(blocks, Part(hidden_BQD, rotation, mask), state), None
        out_BQD, weights = self._attend_at_once(Part(hidden_BQD, rotation, mask), state)
        if order_BQ is None:
            return out_BQD, weights
        places_BQ = order_BQ.argsort(dim=1)
        return take(out_BQD, places_BQ), None if weights is None else _in_places(weights, places_BQ)

    def _attend_at_once(self, row: Part, state: LinearState | None) -> tuple[Tensor, Tensor | None]:
        queries, keys = self._queries(row), self._keys(row)
        with without_autocast(row.hidden_BQD.device.type):
            total, divisor = self._sums(queries, keys, row.mask, state)
            weights = self._weights(queries, keys, divisor, row.mask) if row.mask.wants_weights else None
            return self._out(total, divisor, row.rotation, keys.dtype), weights

    def _attend_in_blocks(self, blocks: list[slice], row: Part, state: LinearState | None) -> Tensor:
        """Attend as a recurrent network does; where tokens see what follows, the sums over all are formed first."""
        state = LinearState() if state is None else state
        if self.is_causal:
            return fill(blocks, lambda block: self._attend_at_once(row.of(block), state)[0])
        for block in blocks:
            self._add_up(self._keys(row.of(block)), state)
        return fill(blocks, lambda block: self._read(row.of(block), state))

    def _read(self, row: Part, state: LinearState) -> Tensor:
        """Return what the sums of a state say to queries, [B, Q, D]."""
        queries = self._queries(row)
        with without_autocast(row.hidden_BQD.device.type):
            total, divisor = queries.turned @ state.keys, queries.plain @ state.values
            return self._out(total, divisor, row.rotation, queries.dtype)

    def _queries(self, row: Part) -> Queries:
        query = self._heads(self.query, row.hidden_BQD)
        with without_autocast(row.hidden_BQD.device.type):
            plain = self._features(widened(query), "query")
            return Queries(plain, self._turn(self._mixed(plain, "query"), row.rotation), query.dtype)

    def _keys(self, row: Part) -> Keys:
        key, value = self._heads(self.key, row.hidden_BQD), self._heads(self.value, row.hidden_BQD)
        dtype, visible_BL = value.dtype, row.mask.visible_BL
        with without_autocast(row.hidden_BQD.device.type):
            plain, value = self._features(widened(key), "key"), widened(value)
            if visible_BL is not None:
                plain = torch.where(visible_BL[:, None, :, None], plain, 0)
            turned = self._turn(self._mixed(plain, "key"), row.rotation)
            value = value if self.config.rotary_value is False else self._turn(value, row.rotation)
            return Keys(plain, turned, self._drop_keys(value), dtype)

    def _features(self, x: Tensor, side: Side) -> Tensor:
        random = self.random_features
        if random is None:
            return self.plain_features(x)
        return random.query_features(x) if side == "query" else random.key_features(x)

    def _mixed(self, x_BHQF: Tensor, side: Side) -> Tensor:
        # for the numerator: in the divisor it could give a query and its keys no product above 0
        return x_BHQF if self.feature_matrices is None else self.feature_matrices(x_BHQF, side)

    def _turn(self, x_BHQF: Tensor, rotation: RotationTable | Turns) -> Tensor:
        return turn_features(x_BHQF, rotation, self.head_dim)

    def _drop_keys(self, value: Tensor) -> Tensor:
        """Drop a key from the weighted sums of all queries of its head; the mean stays what it is."""
        if not (self.training and self.attention_dropout):
            return value
        return value * F.dropout(torch.ones_like(value[..., :1]), p=self.attention_dropout)

    def _add_up(self, keys: Keys, state: LinearState) -> tuple[Tensor, Tensor]:
        """Let a state see keys; return its sums before."""
        with without_autocast(keys.value.device.type):
            sums = keys.turned.mT @ keys.value, keys.plain.mT @ keys.ones
        return state.update(*sums, num_tokens=keys.value.shape[2])

    def _sums(
        self, queries: Queries, keys: Keys, mask: LinearMask, state: LinearState | None
    ) -> tuple[Tensor, Tensor]:
        """Return numerator [B, H, Q, V] and divisor [B, H, Q, 1], over what a state holds too."""
        total = weigh(queries.turned, keys.turned, keys.value, mask, causal=self.is_causal)
        divisor = weigh(queries.plain, keys.plain, keys.ones, mask, causal=self.is_causal)
        if state is None:
            return total, divisor
        seen_total, seen_keys = self._add_up(keys, state)
        return total + queries.turned @ seen_total, divisor + queries.plain @ seen_keys

    def _out(self, total: Tensor, divisor: Tensor, rotation: RotationTable | Turns, dtype: torch.dtype) -> Tensor:
        out = divide(total, divisor)
        if self.config.rotary_value == "relative":
            out = self._turn(out, back(rotation))
        return out.transpose(1, 2).flatten(2).to(dtype)

    def _weights(self, queries: Queries, keys: Keys, divisor: Tensor, mask: LinearMask) -> Tensor:
        """Form the weight of every pair after all, [B, H, Q, Q]; they may be negative."""
        products = queries.turned @ keys.turned.mT
        products = products.tril() if self.is_causal else products
        ids_BQ = mask.sequence_ids_BL
        if ids_BQ is not None:
            products = products * (ids_BQ[:, None, :, None] == ids_BQ[:, None, None, :])
        return divide(products, divisor).to(keys.dtype)


__all__ = [
    "HFRoFormerFeatureMatrices",
    "HFRoFormerLinearAttention",
    "HFRoFormerRandomFeatures",
    "LinearMask",
    "LinearState",
]
