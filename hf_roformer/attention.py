# Copyright 2026 The hf_roformer authors. Licensed under the Apache License, Version 2.0.
"""Softmax attention between rotated queries and keys, on any backend of the library's attention interface.

The mask is built once a forward and handed down; its form is the backend's. Packed rows are kept apart by the mask,
and where a backend takes no such mask (the flash kernels) by running each sequence by itself.

Shapes: B batch, H heads, Q query columns, S key columns, K width of one head, D hidden size, T visible tokens.
"""

import copy
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.masking_utils import (
    and_masks,
    create_bidirectional_mask,
    create_causal_mask,
    packed_sequence_mask_function,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .blocked_attention import blocked_attention_forward, blocks_are_faster
from .configuration_roformer import HFRoFormerConfig
from .general_rotation import make_rotation
from .local_attention import Neighbourhood, attend_nearby, block_size, neighbourhood
from .own_length import attend_by_length, with_positions
from .positions import NEVER, Layout, seen_by_prefix
from .rotary import Turns, back, rotate, turn_query, values_are_hidden, widened
from .token_blocks import is_watched

# the library renamed the argument in the middle of version 5
CACHE_ARGUMENT = "cache" if "cache" in inspect.signature(create_causal_mask).parameters else "past_key_values"


# queries and keys that the flex kernel takes at a time
FLEX_BLOCK = 128


class Flattening(NamedTuple):
    """How to lay the visible tokens of all rows end to end, sequence after sequence.

    `rows_T` and `columns_T` say where each token comes from; `offsets` are the cumulative lengths, int32.
    """

    rows_T: Tensor
    columns_T: Tensor
    offsets: Tensor
    lengths: list[int]

    def take(self, ids_BL: Tensor | None) -> Tensor | None:
        """Lay tokens, or what belongs to each, end to end: [B, L, ...] becomes [1, T, ...]."""
        return None if ids_BL is None else ids_BL[self.rows_T, self.columns_T][None]

    def put_back(self, states_1TD: Tensor, batch_size: int, length: int) -> Tensor:
        """Return what was taken to its place, [B, L, ...]; pads are 0."""
        empty = states_1TD.new_zeros(batch_size, length, *states_1TD.shape[2:])
        return empty.index_put((self.rows_T, self.columns_T), states_1TD[0])


def eager_attention_forward(
    module: nn.Module,
    query_BHQK: Tensor,
    key_BHSK: Tensor,
    value_BHSK: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """Attend by the formula: softmax in float32, then weigh the values. A row that sees nothing gives 0."""
    scores_BHQS = widened(query_BHQK @ key_BHSK.transpose(-1, -2)) * scaling
    hidden = None
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        hidden = ~attention_mask
        # -inf alone would make a row that sees nothing, and its gradient, NaN
        scores_BHQS = scores_BHQS.masked_fill(hidden, torch.finfo(scores_BHQS.dtype).min)
    elif attention_mask is not None:
        scores_BHQS = scores_BHQS + attention_mask
    weights_BHQS = scores_BHQS.softmax(dim=-1)
    weights_BHQS = weights_BHQS if hidden is None else weights_BHQS.masked_fill(hidden, 0)
    weights_BHQS = F.dropout(weights_BHQS.to(query_BHQK.dtype), p=dropout, training=module.training)
    return (weights_BHQS @ value_BHSK).transpose(1, 2).contiguous(), weights_BHQS


def _attend_fast(
    module: nn.Module, query_BHQK: Tensor, key_BHSK: Tensor, value_BHSK: Tensor, attention_mask: Any, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    """Attend by the fused kernel or, where they are measured to be faster, by blocks of plain products."""
    attend = ALL_ATTENTION_FUNCTIONS["sdpa"]
    if blocks_are_faster(query_BHQK, key_BHSK, attention_mask, kwargs["dropout"]):
        attend = blocked_attention_forward
    return attend(module, query_BHQK, key_BHSK, value_BHSK, attention_mask, **kwargs)


def _kernel(backend: str) -> Callable:
    if backend == "sdpa":
        return _attend_fast
    return ALL_ATTENTION_FUNCTIONS.get_interface(backend, eager_attention_forward)


def flatten(layout: Layout) -> Flattening:
    """Order the visible tokens by row, then sequence, then column."""
    if layout.sequence_ids_BL is None:
        rows_T, columns_T = layout.visible_BK.nonzero(as_tuple=True)
        lengths_B = layout.visible_BK.sum(dim=1)
        return Flattening(rows_T, columns_T, *_offsets(lengths_B[lengths_B > 0]))
    ids_BL = layout.sequence_ids_BL.to(torch.int64)
    visible_BL = torch.ones_like(ids_BL, dtype=torch.bool) if layout.visible_BK is None else layout.visible_BK
    rows_T, columns_T = visible_BL.nonzero(as_tuple=True)
    span = ids_BL.max() - ids_BL.min() + 1
    sequence_T = rows_T * span + ids_BL[rows_T, columns_T] - ids_BL.min()
    sequence_T, order_T = sequence_T.sort(stable=True)
    lengths = sequence_T.unique_consecutive(return_counts=True)[1]
    return Flattening(rows_T[order_T], columns_T[order_T], *_offsets(lengths))


def _offsets(lengths: Tensor) -> tuple[Tensor, list[int]]:
    return F.pad(lengths.cumsum(0), (1, 0)).to(torch.int32), lengths.tolist()


def attend_apart(
    attend: Callable, module: nn.Module, states_1HTK: tuple[Tensor, ...], flattening: Flattening, **kwargs: Any
) -> Tensor:
    """Let each sequence of flattened rows attend to itself, [1, T, H, K].

    A flash kernel takes them all at once. On a CPU one runs after the other, which costs what the sequences cost and
    keeps no mask. Elsewhere so many small calls would wait for each other: there each sequence becomes a padded row.
    """
    if "flash" in kwargs.pop("backend"):
        longest, offsets = max(flattening.lengths), flattening.offsets
        bounds = {"cu_seq_lens_q": offsets, "cu_seq_lens_k": offsets, "max_length_q": longest, "max_length_k": longest}
        return attend(module, *states_1HTK, None, **bounds, **kwargs)[0]
    if states_1HTK[0].device.type != "cpu" and len(flattening.lengths) > 1:
        return attend_as_rows(attend, module, states_1HTK, flattening, **kwargs)
    parts = zip(*(state.split(flattening.lengths, dim=2) for state in states_1HTK), strict=True)
    return torch.cat([attend(module, *part, None, **kwargs)[0] for part in parts], dim=1)


def attend_as_rows(
    attend: Callable, module: nn.Module, states_1HTK: tuple[Tensor, ...], flattening: Flattening, **kwargs: Any
) -> Tensor:
    """Pad the sequences of flattened rows to one length, attend, and flatten again, [1, T, H, K]."""
    device = states_1HTK[0].device
    lengths_N = flattening.offsets.diff()
    columns_S = torch.arange(max(flattening.lengths), device=device)
    real_NS = columns_S < lengths_N[:, None]
    mask_NHSS = real_NS[:, None, None, :]
    if module.is_causal:
        mask_NHSS = mask_NHSS & (columns_S[:, None] >= columns_S)
    rows = []
    for state_1HTK in states_1HTK:
        empty_NSHK = state_1HTK.new_zeros(*real_NS.shape, state_1HTK.shape[1], state_1HTK.shape[3])
        rows.append(empty_NSHK.index_put((real_NS,), state_1HTK[0].transpose(0, 1)).transpose(1, 2))
    return attend(module, *rows, mask_NHSS, **kwargs)[0][real_NS][None]


def _library_mask(
    config: HFRoFormerConfig,
    backend: str,
    states: Tensor,
    mask: Tensor | None,
    *,
    causal: bool,
    cache: Cache | None = None,
    sequence_ids: Tensor | None = None,
    encoder_states: Tensor | None = None,
    window: int | None = None,
) -> Any:
    if config._attn_implementation != backend:
        config = copy.copy(config)
        config._attn_implementation = backend
    rules = [] if sequence_ids is None else [packed_sequence_mask_function(sequence_ids)]
    rules += [] if window is None else [lambda row, head, query, key: (query - key).abs() < window]
    rule = and_masks(*rules) if rules else None
    options = {"config": config, "inputs_embeds": states, "attention_mask": mask, "and_mask_function": rule}
    if causal:
        built = create_causal_mask(**options, **{CACHE_ARGUMENT: cache})
    else:
        built = create_bidirectional_mask(**options, encoder_hidden_states=encoder_states, **{CACHE_ARGUMENT: cache})
    # the library's own eager mask is additive, and averages what a row that sees nothing would hide
    return built == 0 if backend == "eager" and built is not None else built


def _block_mask(mask_BHQS: Tensor) -> Any:
    """Bring a dense mask to the form of the flex backend, whose own additive form writes past its memory on a CPU."""
    from torch.nn.attention.flex_attention import create_block_mask

    # the kernel asks for every head, and in whole blocks that pass the end of the mask
    batch_size, num_heads, queries, keys = mask_BHQS.shape
    padded_BHQS = F.pad(mask_BHQS, (0, -keys % FLEX_BLOCK, 0, -queries % FLEX_BLOCK))
    one_for_all = num_heads == 1

    def seen(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return padded_BHQS[row, 0 if one_for_all else head, query, key]

    return create_block_mask(seen, batch_size, num_heads, queries, keys, device=mask_BHQS.device)


def _for_flex(mask: Any, backend: str) -> Any:
    if backend != "flex_attention":
        raise ValueError(
            f"{backend} takes no BlockMask: give a tensor, or load with attn_implementation='flex_attention'"
        )
    return mask


def _read_hard(mask: Tensor) -> Tensor | None:
    """Return an additive mask that only shows or hides as bool; None if it holds a bias."""
    if mask.dtype == torch.bool:
        return mask
    visible = mask == 0
    if values_are_hidden(mask) or not (visible | (mask <= NEVER)).all():
        return None
    return visible


def _dense_mask(mask: Tensor, backend: str, states: Tensor, allowed: Tensor | None) -> Any:
    """Bring a canonical mask of four dimensions to the form of `backend`."""
    if "flash" in backend:
        raise ValueError(
            f"{backend} takes no attention_mask of three or four dimensions: give a mask [batch, length], tell packed "
            "sequences apart by sequence_ids, or load with attn_implementation='sdpa'"
        )
    hard = _read_hard(mask)
    if hard is not None:
        mask = hard if allowed is None else hard & allowed
    elif backend == "flex_attention":
        raise ValueError(
            "flex_attention takes no soft bias in an attention_mask: give 0 and -inf, a bool mask, or load with "
            "attn_implementation='sdpa'"
        )
    else:
        # a row of -inf alone has no softmax, and half precision has less room below than a mask may use
        lowest = torch.finfo(states.dtype).min
        mask = mask.to(states.dtype).clamp(min=lowest)
        mask = mask if allowed is None else torch.where(allowed, mask, lowest)
    mask = mask.expand(states.shape[0], -1, states.shape[1], -1)
    return _block_mask(mask) if backend == "flex_attention" else mask


def _both(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    return second if first is None else first if second is None else first & second


def _seen(
    layout: Layout, length: int, mask: Tensor, causal: bool, past: "int | Tensor", window: int | None
) -> Tensor | None:
    """Return what pattern and packing let the new tokens see, bool [B or 1, 1, Q, K] or [Q, K]; None is everything."""
    ids, num_keys = layout.sequence_ids_BL, mask.shape[-1]
    in_time = together = near = None
    if window is not None:
        away_QK = torch.arange(length, device=mask.device)[:, None] + past - torch.arange(num_keys, device=mask.device)
        near = away_QK.abs() < window
    if layout.targets_BL is not None:
        in_time = seen_by_prefix(layout.targets_BL, past, num_keys)
    elif causal:
        rows_Q1 = torch.arange(length, device=mask.device)[:, None] + past
        in_time = rows_Q1 >= torch.arange(num_keys, device=mask.device)
    if ids is not None:
        # columns of a static cache beyond the row lie in the future of every query
        key_ids = F.pad(ids, (0, num_keys - ids.shape[-1]))
        together = ids[:, None, :, None] == key_ids[:, None, None, :]
    return _both(near, _both(in_time, together))


def near_in_rows(layout: Layout, batch_size: int, length: int, window: int, *, causal: bool) -> Neighbourhood:
    """Say what the tokens of rows see nearby; packed sequences are kept apart."""
    columns_BL = torch.arange(length, device=layout.position_ids_BL.device).expand(batch_size, -1)
    ids_BL = layout.sequence_ids_BL
    sequences_BL = torch.ones_like(columns_BL) if ids_BL is None else ids_BL - ids_BL.min() + 1
    if layout.visible_BK is not None:
        sequences_BL = torch.where(layout.visible_BK, sequences_BL, 0)
    return neighbourhood(columns_BL, sequences_BL, window, causal=causal)


def near_in_flattened(flat: Flattening, window: int, *, causal: bool) -> Neighbourhood:
    """Say what the tokens of flattened rows see nearby."""
    lengths_N = flat.offsets.diff().long()
    sequences_T = torch.arange(1, len(lengths_N) + 1, device=lengths_N.device).repeat_interleave(lengths_N)
    return neighbourhood(flat.columns_T[None], sequences_T[None], window, causal=causal)


def self_attention_mask(
    config: HFRoFormerConfig,
    backend: str,
    states_BQD: Tensor,
    layout: Layout,
    *,
    causal: bool,
    cache: Cache | None,
    past: "int | Tensor",
    num_keys: int,
    dense: bool = False,
) -> Any:
    """Build the mask of a forward in the form that `backend` takes; a `dense` one has a column for every key."""
    mask, ids, window = layout.mask, layout.sequence_ids_BL, config.attention_window
    if not isinstance(mask, Tensor) and mask is not None:
        return _for_flex(mask, backend)
    if window is not None and "flash" in backend:
        raise ValueError(f"{backend} has no attention_window {window} here: load with attn_implementation='sdpa'")
    # an exporter cannot hold the rules by which the library would build a window
    windowed = window is not None and backend == "eager"
    if dense or windowed or layout.targets_BL is not None:
        if "flash" in backend:
            raise ValueError(f"{backend} has no attention_pattern 'prefix': load with attn_implementation='sdpa'")
        seen = torch.ones(1, num_keys, dtype=torch.bool, device=states_BQD.device) if mask is None else mask
        mask = seen[:, None, None, :] if seen.dim() == 2 else seen
    if mask is not None and mask.dim() == 4:
        return _dense_mask(mask, backend, states_BQD, _seen(layout, states_BQD.shape[1], mask, causal, past, window))
    if ids is not None and "flash" in backend:
        raise ValueError(
            f"{backend} keeps packed sequences apart only without a cache and a compiled graph: leave use_cache "
            "out, or load with attn_implementation='sdpa'"
        )
    batch_size, length = states_BQD.shape[:2]
    if window is not None and cache is None and backend == "sdpa" and length > 2 * block_size(window):
        return near_in_rows(layout, batch_size, length, window, causal=causal)
    return _library_mask(
        config, backend, states_BQD, mask, causal=causal, cache=cache, sequence_ids=ids, window=window
    )


def cross_attention_mask(
    config: HFRoFormerConfig, backend: str, states_BQD: Tensor, encoder_BSD: Tensor, mask: Tensor | None
) -> Any:
    """Build the mask of the encoder's columns in the form that `backend` takes."""
    if mask is not None and not isinstance(mask, Tensor):
        return _for_flex(mask, backend)
    if mask is not None and mask.dim() == 4:
        return _dense_mask(mask, backend, states_BQD, None)
    return _library_mask(config, backend, states_BQD, mask, causal=False, encoder_states=encoder_BSD)


class HFRoFormerAttentionCore(nn.Module):
    """The projections of one attention and its call of the backend."""

    def __init__(self, config: HFRoFormerConfig, layer_idx: int, *, is_causal: bool) -> None:
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.is_causal = is_causal
        self.head_dim = config.hidden_size // config.num_attention_heads
        self.scaling = self.head_dim**-0.5
        self.attention_dropout = float(config.attention_probs_dropout_prob)
        self.query = nn.Linear(config.hidden_size, config.hidden_size, bias=config.use_bias)
        self.key = nn.Linear(config.hidden_size, config.hidden_size, bias=config.use_bias)
        self.value = nn.Linear(config.hidden_size, config.hidden_size, bias=config.use_bias)

    def _heads(self, projection: nn.Linear, states_BLD: Tensor) -> Tensor:
        return projection(states_BLD).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def _project(self, projection: nn.Linear, states_BLD: Tensor) -> tuple[Tensor, bool]:
        """Return the heads, and whether nobody else sees them, so that they may be overwritten."""
        heads_BHLK = self._heads(projection, states_BLD)
        # any other module may give what it keeps, or what it was given
        is_new = type(projection) is nn.Linear and states_BLD.device.type == "cpu"
        if not is_new or torch.is_grad_enabled() or values_are_hidden(states_BLD):
            return heads_BHLK, False
        return heads_BHLK, not is_watched(projection)

    def _attend(self, states: tuple[Tensor, Tensor, Tensor], mask: Any, backend: str) -> tuple[Tensor, Tensor | None]:
        attend = _kernel(backend)
        options = {"scaling": self.scaling, "dropout": self.attention_dropout if self.training else 0.0}
        if isinstance(mask, Flattening):
            return attend_apart(attend, self, states, mask, backend=backend, **options).flatten(2), None
        if isinstance(mask, Neighbourhood):
            return attend_nearby(attend, self, states, mask, **options).flatten(2), None
        out_BQHK, weights = attend(self, *states, mask, **options)
        return out_BQHK.flatten(2), weights


class HFRoFormerSelfAttention(HFRoFormerAttentionCore):
    """Attend within a row; queries and keys are rotated, and the values where the config says so.

    A rotated value carries its absolute position; turned back by the query's, the output holds distances alone.
    """

    def __init__(self, config: HFRoFormerConfig, layer_idx: int, *, is_causal: bool) -> None:
        super().__init__(config, layer_idx, is_causal=is_causal)
        self.rotation = make_rotation(config, layer_idx)

    def _own_turns(self, rotation: Any) -> Any:
        return rotation if self.rotation is None else self.rotation(rotation)

    def forward(
        self, hidden_BQD: Tensor, rotation: Turns, mask: Any, cache: Cache | None, backend: str
    ) -> tuple[Tensor, Tensor | None]:
        """Return the attended states [B, Q, D] and, from the eager backend, the weights [B, H, Q, S]."""
        rotation = self._own_turns(rotation)
        own = rotation.own_lengths
        query, query_is_own = self._project(self.query, hidden_BQD)
        query = turn_query(query, rotation, in_place=query_is_own)
        key, key_is_own = self._project(self.key, hidden_BQD)
        key = rotate(key, rotation, in_place=key_is_own) if own is None else with_positions(key, own.positions_BL)
        value, value_is_own = self._project(self.value, hidden_BQD)
        value = rotate(value, rotation, in_place=value_is_own) if self.config.rotary_value is not False else value
        if cache is not None:
            own_cache = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
            key, value = own_cache.update(key, value, self.layer_idx)
        if own is None:
            out_BQD, weights = self._attend((query, key, value), mask, backend)
        else:
            out_BQD, weights = attend_by_length(self._attend, (query, key, value), mask, own, backend=backend)
        return self._turn_back(out_BQD, rotation) if self.config.rotary_value == "relative" else out_BQD, weights

    def _turn_back(self, out_BQD: Tensor, rotation: Turns) -> Tensor:
        heads_BHQK = out_BQD.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        return rotate(heads_BHQK, back(rotation)).transpose(1, 2).flatten(2)


class HFRoFormerCrossAttention(HFRoFormerAttentionCore):
    """Attend from a decoder's row to an encoder's; nothing is rotated."""

    def forward(
        self, hidden_BQD: Tensor, encoder_BSD: Tensor, mask: Any, cache: Cache | None, backend: str
    ) -> tuple[Tensor, Tensor | None]:
        """Return the attended states [B, Q, D] and, from the eager backend, the weights [B, H, Q, S]."""
        query = self._heads(self.query, hidden_BQD)
        return self._attend((query, *self._keys_and_values(encoder_BSD, cache)), mask, backend)

    def _keys_and_values(self, encoder_BSD: Tensor, cache: Cache | None) -> tuple[Tensor, Tensor]:
        if not isinstance(cache, EncoderDecoderCache):
            return self._heads(self.key, encoder_BSD), self._heads(self.value, encoder_BSD)
        if cache.is_updated.get(self.layer_idx):
            layer: Any = cache.cross_attention_cache.layers[self.layer_idx]
            return layer.keys, layer.values
        cache.is_updated[self.layer_idx] = True
        key, value = self._heads(self.key, encoder_BSD), self._heads(self.value, encoder_BSD)
        return cache.cross_attention_cache.update(key, value, self.layer_idx)
