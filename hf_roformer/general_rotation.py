# Copyright 2026 The hf_roformer authors. Licensed under the Apache License, Version 2.0.
"""Any rotation that makes a score depend on the distance alone: R_n = exp(nB), or O^n for an orthogonal O.

In the basis P of its real Schur form such a rotation is the usual one, pair by pair, with frequencies of its own:
q^T R_(n-m) k = (P^T q)^T L_(n-m) (P^T k) (https://kexue.fm/archives/9403). So that is how it is computed, in no more
than one small product, at any position exactly. Of determinant -1, one coordinate is multiplied by (-1)^n besides.

A learned B is kept as the two parts of P L P^T: an A with P = exp(A), and by how much each pair is faster than the
usual one. Every skew-symmetric B is of this form, and gradients stay finite where frequencies meet, which those of
eigenvectors do not. Both parts start from 0, in the identity's basis: that is the usual rotation itself, which trained
weights know, and another basis would only be taken in by theirs. Steps are relative to each pair's own speed, so the
slow ones are not thrown about by a step that suits the fast.

Shapes: B batch, H heads (or 1 for all), L tokens, K width of one head, P = K / 2 pairs, N positions.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .pair_forms import blocks_of, exactly, form_of_generator, form_of_orthogonal, generator_of
from .rotary import Places, Turns, in_float64, rotate, rotation_frequencies, values_are_hidden

SMALLEST_TABLE = 512
# beyond it angles are computed afresh: a table for each layer and head would cost more than it saves
LARGEST_TABLE = 4096
# what float32 leaves of a skew-symmetric matrix
LARGEST_DEVIATION = 1e-5


class HeadTurns(NamedTuple):
    """What turns the heads of a layer: R_n = basis @ turns by n * angles @ basis^T, float64; no basis is the identity.

    The last channel of a `reflected` head is multiplied by (-1)^n.
    """

    angles_HP: Tensor
    basis_HKK: Tensor | None
    reflected: tuple[bool, ...]


def cosines_and_sines(ids_BL: Tensor, angles_HP: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return both [B, H, L, P] of every position times every angle, rounded once."""
    positions_BL = in_float64(ids_BL)
    angles_BHLP = positions_BL[:, None, :, None] * angles_HP.to(positions_BL.device)[:, None, :]
    return angles_BHLP.cos().to(dtype).to(ids_BL.device), angles_BHLP.sin().to(dtype).to(ids_BL.device)


def _at(table_1HNP: Tensor, ids_BL: Tensor) -> Tensor:
    return table_1HNP[0][:, ids_BL].transpose(0, 1)


def _signs(ids_BL: Tensor, reflected: tuple[bool, ...]) -> Tensor | None:
    """Return (-1)^n for the heads that are reflected, float32 [B, H, L, 1]; None if none is."""
    if not any(reflected):
        return None
    if ids_BL.is_floating_point():
        raise ValueError("a rotation of determinant -1 has whole positions alone: give integer position_ids")
    odd_B1L1 = (ids_BL % 2 != 0)[:, None, :, None]
    reflected_H11 = torch.tensor(reflected, device=ids_BL.device)[:, None, None]
    return torch.where(odd_B1L1 & reflected_H11, -1.0, 1.0)


class HFRoFormerOwnRotation(nn.Module, ABC):
    """How one layer turns its heads."""

    @abstractmethod
    def head_turns(self) -> HeadTurns:
        """Return what the rotation consists of."""

    @abstractmethod
    def tables(self, places: Places, heads: HeadTurns) -> tuple[Tensor, Tensor]:
        """Return cosines and sines of all heads at these places, [B or 1, H, L, P]."""

    def forward(self, turns: Turns) -> Turns:
        """Return what to do to the layer's queries and keys."""
        heads = self.head_turns()
        cos, sin = self.tables(turns.places, heads)
        signs = _signs(turns.places.ids_BL, heads.reflected)
        return turns._replace(cos=cos, sin=sin, basis_HKK=heads.basis_HKK, signs_BHL1=signs)

    def matrices(self, positions_N: Tensor) -> Tensor:
        """Return R_n of each position, float64 [N, H, K, K]: what the formulas say, at the precision of a forward."""
        heads = self.head_turns()
        width, count = 2 * heads.angles_HP.shape[1], len(positions_N)
        unit_KHNK = torch.eye(width, dtype=torch.float64, device=heads.angles_HP.device)[:, None, None].expand(
            -1, len(heads.angles_HP), count, -1
        )
        empty = heads.angles_HP.new_zeros(1, count, 0)
        turned_KHNK = rotate(unit_KHNK, self(Turns(empty, empty, places=Places(positions_N[None], None))))
        if heads.basis_HKK is not None:
            turned_KHNK = turned_KHNK @ heads.basis_HKK.mT
        return turned_KHNK.permute(2, 1, 3, 0)


class HFRoFormerFixedRotation(HFRoFormerOwnRotation):
    """Frequencies, and a basis where there is one, that are given.

    Neither parameters nor buffers: no cast can round them and no loader leave them unfilled.
    """

    def __init__(self, heads: HeadTurns) -> None:
        super().__init__()
        self.heads = heads
        self._tables: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Leave the tables out of copies and files: who reads one may have other devices than the tables are for."""
        return {**self.__dict__, "_tables": {}}

    def head_turns(self) -> HeadTurns:
        """Return what the rotation consists of."""
        return self.heads

    @torch.no_grad()
    def tables(self, places: Places, heads: HeadTurns) -> tuple[Tensor, Tensor]:
        """Return float32 cosines and sines; a table serves where it can."""
        ids_BL, bound = places
        if bound is None or bound > LARGEST_TABLE or values_are_hidden(ids_BL):
            return cosines_and_sines(ids_BL, heads.angles_HP, torch.float32)
        cos, sin = self._table_of(bound, ids_BL.device)
        return _at(cos, ids_BL), _at(sin, ids_BL)

    def _table_of(self, bound: int, device: torch.device) -> tuple[Tensor, Tensor]:
        table = self._tables.get(device)
        if table is None or table[0].shape[2] < bound:
            rows_1N = torch.arange(max(SMALLEST_TABLE, 1 << (bound - 1).bit_length()), device=device)[None]
            table = self._tables[device] = cosines_and_sines(rows_1N, self.heads.angles_HP, torch.float32)
        return table

    def extra_repr(self) -> str:
        """Show the shape of the rotation."""
        heads, pairs = self.heads.angles_HP.shape
        return f"heads={heads}, pairs={pairs}, reflected={sum(self.heads.reflected)}"


class HFRoFormerLearnedRotation(HFRoFormerOwnRotation):
    """Frequencies, and a basis where the config says so, that are learned; their parameters stay float32 in any cast.

    A pair turns by (1 + its speedup) times its usual frequency. `basis_generator` holds what of A lies below the
    diagonal, row by row. Weight decay draws both to the usual rotation.
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        num_heads = 1 if config.rotation_shared else config.num_attention_heads
        self.width = config.hidden_size // config.num_attention_heads
        # plain numbers survive casts and meta devices; a loader keeps to the dtypes that are asked for here
        usual_P = rotation_frequencies(self.width, theta=config.rope_parameters["rope_theta"])
        self.usual = tuple(usual_P.tolist())
        below = self.width * (self.width - 1) // 2
        self.speedups = nn.Parameter(torch.zeros(num_heads, self.width // 2, dtype=torch.float32))
        free = torch.zeros(num_heads, below, dtype=torch.float32) if config.rotation_kind == "learned" else None
        self.basis_generator = None if free is None else nn.Parameter(free)

    def _apply(self, fn: Callable, recurse: bool = True) -> nn.Module:
        def moved(tensor: Tensor) -> Tensor:
            changed = fn(tensor)
            return changed if changed.dtype.itemsize >= 4 else tensor.to(changed.device, torch.float32)

        return super()._apply(moved, recurse)

    def head_turns(self) -> HeadTurns:
        """Return what the rotation consists of, with gradients."""
        faster_HP = in_float64(self.speedups)
        usual_P = torch.tensor(self.usual, dtype=torch.float64, device=faster_HP.device)
        return HeadTurns(usual_P * (1 + faster_HP), self._basis(), (False,) * len(faster_HP))

    def tables(self, places: Places, heads: HeadTurns) -> tuple[Tensor, Tensor]:
        """Return cosines and sines in the parameters' dtype; of each position once, where that is less."""
        ids_BL, bound = places
        dtype = torch.promote_types(self.speedups.dtype, torch.float32)
        if bound is None or bound > ids_BL.numel() or values_are_hidden(ids_BL):
            return cosines_and_sines(ids_BL, heads.angles_HP, dtype)
        cos, sin = cosines_and_sines(torch.arange(bound, device=ids_BL.device)[None], heads.angles_HP, dtype)
        return _at(cos, ids_BL), _at(sin, ids_BL)

    def _basis(self) -> Tensor | None:
        if self.basis_generator is None:
            return None
        return torch.matrix_exp(self._whole(in_float64(self.basis_generator)))

    def _whole(self, below_HX: Tensor) -> Tensor:
        """Put entries in the places below the diagonal, and their negatives above it, [H, K, K]."""
        rows, columns = torch.tril_indices(self.width, self.width, -1, device=below_HX.device)
        empty = below_HX.new_zeros(len(below_HX), self.width**2)
        lower_HKK = empty.index_copy(1, rows * self.width + columns, below_HX).unflatten(1, (self.width, self.width))
        return lower_HKK - lower_HKK.mT

    def generator(self) -> Tensor:
        """Return B of each head, float64 [H, K, K], with gradients."""
        heads = self.head_turns()
        blocks_HKK = torch.stack([blocks_of(angles_P) for angles_P in heads.angles_HP])
        if heads.basis_HKK is None:
            return blocks_HKK
        return heads.basis_HKK @ blocks_HKK @ heads.basis_HKK.mT

    @torch.no_grad()
    def set_generator(self, generator: Any) -> None:
        """Turn by exp(nB) of a given skew-symmetric B, [K, K] or [H, K, K], to what float32 holds of it.

        Raises:
            ValueError: for a matrix of another shape or kind, and for a rotation that learns no basis.
        """
        generator_HKK = self._read_generator(generator)
        for head, matrix_KK in enumerate(generator_HKK):
            angles_P, logarithm_KK = _parts_of(matrix_KK)
            usual_P = torch.tensor(self.usual, dtype=torch.float64, device="cpu")
            rows, columns = torch.tril_indices(self.width, self.width, -1, device="cpu")
            self.speedups[head].copy_(angles_P / usual_P - 1)
            self.basis_generator[head].copy_(logarithm_KK[rows, columns])

    def _read_generator(self, generator: Any) -> Tensor:
        if self.basis_generator is None:
            raise ValueError("rotation_kind 'learned_frequencies' has no basis to learn: choose 'learned'")
        shape = (len(self.speedups), self.width, self.width)
        matrix = exactly(generator)
        if tuple(matrix.shape) not in (shape, shape[1:]):
            raise ValueError(f"a generator of the shape {list(matrix.shape)} has no place: give {list(shape)}")
        deviation = float((matrix + matrix.mT).abs().max())
        if not deviation <= LARGEST_DEVIATION * max(1.0, float(matrix.abs().max())):
            raise ValueError(f"B is not skew-symmetric: B + B^T reaches {deviation:.3g}; give (B - B^T) / 2, if meant")
        return ((matrix - matrix.mT) / 2).expand(shape)

    def extra_repr(self) -> str:
        """Show the shape of the rotation."""
        return f"heads={len(self.speedups)}, pairs={len(self.usual)}, basis={self.basis_generator is not None}"


def _parts_of(matrix_KK: Tensor) -> tuple[Tensor, Tensor]:
    """Return the angles of a generator and the A of its basis exp(A)."""
    basis_KK, angles_P, _ = form_of_generator(matrix_KK)
    if torch.linalg.det(basis_KK) < 0:
        # the two directions of a pair in the other order turn the other way
        width = len(basis_KK)
        basis_KK = basis_KK[:, [*range(width - 2), width - 1, width - 2]]
        angles_P = torch.cat((angles_P[:-1], -angles_P[-1:]))
    return angles_P, generator_of(basis_KK)


def _given(config: Any, layer_idx: int) -> HeadTurns:
    """Read the frequencies of a layer from the config."""
    row = layer_idx if len(config.rotation_frequencies) > 1 else 0
    angles_HP = exactly(config.rotation_frequencies[row])
    told = config.rotation_reflections
    return HeadTurns(angles_HP, None, (False,) * len(angles_HP) if told is None else tuple(told[row]))


def _powers_of(matrix: Any) -> HeadTurns:
    matrices_HKK = exactly(matrix)
    matrices_HKK = matrices_HKK[None] if matrices_HKK.dim() == 2 else matrices_HKK
    bases, angles, reflected = zip(*map(form_of_orthogonal, matrices_HKK), strict=True)
    return HeadTurns(torch.stack(angles), torch.stack(bases), reflected)


def make_rotation(config: Any, layer_idx: int) -> HFRoFormerOwnRotation | None:
    """Build what turns the heads of a layer; None where the rotation that all layers share does."""
    if not config.turns_by_layer:
        return None
    if config.rotation_kind == "block":
        return HFRoFormerFixedRotation(_given(config, layer_idx))
    if config.rotation_kind == "orthogonal":
        return HFRoFormerFixedRotation(_powers_of(config.rotation_matrix))
    return HFRoFormerLearnedRotation(config)


# absorbing


def _refuse_to_absorb(cores: Sequence[Any], config: Any) -> None:
    kind = config.rotation_kind
    if kind == "block":
        raise ValueError("rotation_kind 'block' holds nothing to absorb: the model is a plain one already")
    has_basis = any(core.rotation.head_turns().basis_HKK is not None for core in cores)
    if has_basis and config.has_linear:
        raise ValueError(
            f"rotation_kind {kind!r} stands behind the feature map of linear attention, where no query or key weight "
            "can take its basis in: keep it, or train 'learned_frequencies' with feature_matrices"
        )
    for projection in (part for core in cores for part in (core.query, core.key)):
        if has_basis and not (isinstance(projection, nn.Linear) and projection.weight.is_floating_point()):
            raise ValueError(
                f"{type(projection).__name__} is no plain linear layer, into which a basis could go: merge adapters "
                "and undo quantization first"
            )


def _fold(projection: nn.Linear, basis_HKK: Tensor) -> None:
    """Let a projection write along the columns of each head's basis."""
    for parameter in (projection.weight, projection.bias):
        if parameter is not None:
            by_heads = in_float64(parameter).reshape(-1, basis_HKK.shape[-1], parameter[0].numel())
            parameter.copy_((basis_HKK.mT.to(by_heads.device) @ by_heads).reshape(parameter.shape))


def _facts_of(layers: list[HeadTurns]) -> dict[str, Any]:
    """Return the fields of a config that say the same; equal layers are said once."""
    frequencies = [heads.angles_HP.tolist() for heads in layers]
    reflections = [list(heads.reflected) for heads in layers]
    alike = all(row == frequencies[0] for row in frequencies) and all(row == reflections[0] for row in reflections)
    rows = 1 if alike else len(layers)
    moves = any(map(any, reflections))
    return {
        "rotation_kind": "block",
        "rotation_shared": False,
        "rotation_matrix": None,
        "rotation_frequencies": frequencies[:rows],
        "rotation_reflections": reflections[:rows] if moves else None,
    }


@torch.no_grad()
def absorb(cores: Sequence[Any], configs: Sequence[Any]) -> None:
    """Make plain ones of the attentions of a model: weights take the basis in, every config the frequencies."""
    _refuse_to_absorb(cores, configs[0])
    layers = [core.rotation.head_turns() for core in cores]
    for core, heads in zip(cores, layers, strict=True):
        for projection in (core.query, core.key) if heads.basis_HKK is not None else ():
            _fold(projection, heads.basis_HKK)
    facts = _facts_of(layers)
    for config in configs:
        for name, value in facts.items():
            setattr(config, name, value)
        config.rope_parameters = {**config.rope_parameters, "rope_theta": type(config).default_theta}
        config.validate_architecture()
    for core in cores:
        core.rotation = make_rotation(core.config, core.layer_idx)


__all__ = [
    "HFRoFormerFixedRotation",
    "HFRoFormerLearnedRotation",
    "HFRoFormerOwnRotation",
    "HeadTurns",
    "absorb",
    "make_rotation",
]
