# Copyright 2026 The hf_roformer authors. Licensed under the Apache License, Version 2.0.
"""Position as rotation.

Pair (2i, 2i+1) of every head turns by `position * theta ** (-2i / K)`, so the score of a query at m against a key
at n depends on m - n alone (RoFormer, arXiv 2104.09864, equations 15 and 34).

Angles are computed in float64 and their cosines and sines rounded once to float32: a float32 angle is already wrong
by 7e-5 within the first 1,536 positions.

Shapes: B batch, H heads, L tokens, K width of the turning part of a head, P = K / 2 pairs, N rows of the table.
"""

import contextlib
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .rope_scaling import RopeFrequencies, rotation_frequencies

SMALLEST_TABLE = 512


class RotationTable(NamedTuple):
    """Cosines and sines of every angle, float32 [N or B L, P]."""

    cos: Tensor
    sin: Tensor


class Places(NamedTuple):
    """Where the tokens stand, [B or 1, L], for layers that turn each in its own way; `bound` as in a layout."""

    ids_BL: Tensor
    bound: int | None


class OwnLengths(NamedTuple):
    """What keys that are turned anew for each length need: the new tokens' positions and lengths, both [B or 1, L]."""

    positions_BL: Tensor
    lengths_BL: Tensor
    frequencies: RopeFrequencies


class Turns(NamedTuple):
    """What every layer does to queries and keys: the rotation, and what its scaling adds.

    `turned_scale` multiplies the turned part of a score, `query_scale_BL` [B or 1, L] the whole of it. Where
    `own_lengths` are there, keys are stored unturned and `cos` and `sin` turn queries alone. Where `places` are
    there, each layer makes its own turns of them: `cos` and `sin` are then [B or 1, H or 1, L, P], a head with a basis
    [H or 1, K, K] is first seen along its columns, and `signs_BHL1` multiply its last channel.
    """

    cos: Tensor
    sin: Tensor
    turned_scale: float = 1.0
    query_scale_BL: Tensor | None = None
    own_lengths: OwnLengths | None = None
    basis_HKK: Tensor | None = None
    signs_BHL1: Tensor | None = None
    places: Places | None = None


def in_float64(x: Tensor) -> Tensor:
    """Return `x` in float64, on the CPU where its device has none."""
    exact = torch.device("cpu") if x.device.type == "mps" else x.device
    return x.to(exact, torch.float64)


def rotation_table(position_ids: Tensor, frequencies_P: Tensor) -> RotationTable:
    """Return float32 cosines and sines of `position_ids * frequencies`, [*position_ids.shape, P].

    Frequencies are [P], or those of each position, broadcast to [*position_ids.shape, P].
    """
    device, positions = position_ids.device, in_float64(position_ids)
    return _rounded(positions[..., None] * frequencies_P.to(positions.device, torch.float64), device)


def two_axis_table(position_ids_BLA: Tensor, frequencies_P: Tensor) -> RotationTable:
    """Return the rotation of positions [B, L, 2]: the first half of the pairs turns by x, the other by y."""
    device, positions_BLA = position_ids_BLA.device, in_float64(position_ids_BLA)
    angles_BLAP = positions_BLA[..., None] * frequencies_P.to(positions_BLA.device, torch.float64)
    return _rounded(angles_BLAP.flatten(-2), device)


def _rounded(angles: Tensor, device: torch.device) -> RotationTable:
    return RotationTable(angles.cos().to(torch.float32).to(device), angles.sin().to(torch.float32).to(device))


def widened(x: Tensor) -> Tensor:
    """Return `x` in float32, or in float64 if it is that already."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def without_autocast(device_type: str) -> Any:
    """Keep an autocast from computing in half precision."""
    if device_type == "meta" or not torch.is_autocast_enabled(device_type):
        return contextlib.nullcontext()
    return torch.autocast(device_type, enabled=False)


def back(rotation: RotationTable | Turns) -> RotationTable | Turns:
    """Return the turns that undo `rotation`, which has no basis."""
    return rotation._replace(sin=-rotation.sin)


def _over_heads(table: Tensor) -> Tensor:
    return table if table.dim() == 4 else table.unsqueeze(1)


def _turn_pairs(x_BHLK: Tensor, rotation: RotationTable | Turns) -> Tensor:
    cos_BHLP, sin_BHLP = _over_heads(rotation.cos), _over_heads(rotation.sin)
    even_BHLP, odd_BHLP = x_BHLK[..., 0::2], x_BHLK[..., 1::2]
    turned = (even_BHLP * cos_BHLP - odd_BHLP * sin_BHLP, odd_BHLP * cos_BHLP + even_BHLP * sin_BHLP)
    return torch.stack(turned, dim=-1).flatten(-2)


def _widens_none(turns_BHLP: Tensor, pairs_BHLP: Tensor) -> bool:
    return all(ours in (1, theirs) for ours, theirs in zip(turns_BHLP.shape, pairs_BHLP.shape, strict=True))


def _turn_complex(x_BHLK: Tensor, rotation: RotationTable | Turns, *, in_place: bool = False) -> Tensor:
    """Multiply each pair, read as a complex number, by its turn (equation 12); `in_place` may overwrite `x`."""
    pairs_BHLP2 = x_BHLK.unflatten(-1, (-1, 2))
    starts = (pairs_BHLP2.storage_offset(), *pairs_BHLP2.stride()[:-1])
    if pairs_BHLP2.stride(-1) != 1 or any(start % 2 for start in starts):
        pairs_BHLP2 = pairs_BHLP2.contiguous()
    pairs_BHLP = torch.view_as_complex(pairs_BHLP2)
    turns_BHLP = _over_heads(torch.complex(rotation.cos, rotation.sin))
    room_BHLP = pairs_BHLP if in_place and _widens_none(turns_BHLP, pairs_BHLP) else None
    return torch.view_as_real(torch.mul(pairs_BHLP, turns_BHLP, out=room_BHLP)).flatten(-2)


def _in_basis(x_BHLK: Tensor, basis_HKK: Tensor) -> Tensor:
    with without_autocast(x_BHLK.device.type):
        return x_BHLK @ basis_HKK.to(x_BHLK.dtype).to(x_BHLK.device)


def rotate(x_BHLK: Tensor, rotation: RotationTable | Turns, *, in_place: bool = False) -> Tensor:
    """Turn the pairs of `x` by their position's angle, in the dtype of `x`.

    `rotation` is [B, L, P] or [1, L, P], or has a dimension of heads before the last two; channels beyond its 2P stay
    as they are. With `in_place`, `x` may hold anything afterwards: new memory costs more than the turn.
    """
    width = 2 * rotation.cos.shape[-1]
    if width == 0:
        return x_BHLK
    # half precision keeps too few digits for a difference of two products
    wide = widened(x_BHLK[..., :width])
    basis, signs = (rotation.basis_HKK, rotation.signs_BHL1) if isinstance(rotation, Turns) else (None, None)
    wide = wide if basis is None else _in_basis(wide, basis)
    # one pass over memory instead of several; graphs and exporters know the real form better
    if wide.device.type == "cpu" and not values_are_hidden(wide):
        own = in_place or wide.dtype != x_BHLK.dtype or basis is not None
        turned_BHLK = _turn_complex(wide, rotation, in_place=own and not torch.is_grad_enabled())
    else:
        turned_BHLK = _turn_pairs(wide, rotation)
    if signs is not None:
        turned_BHLK = torch.cat((turned_BHLK[..., :-1], turned_BHLK[..., -1:] * signs), dim=-1)
    turned_BHLK = turned_BHLK.to(x_BHLK.dtype)
    return turned_BHLK if width == x_BHLK.shape[-1] else torch.cat((turned_BHLK, x_BHLK[..., width:]), dim=-1)


def turn_query(x_BHLK: Tensor, turns: Turns, *, in_place: bool = False) -> Tensor:
    """Turn queries, and scale them as the length asks, in the dtype of `x`; `in_place` as in `rotate`."""
    if turns.turned_scale == 1.0 and turns.query_scale_BL is None:
        return rotate(x_BHLK, turns, in_place=in_place)
    turned_BHLK = rotate(widened(x_BHLK), turns, in_place=in_place)
    width = 2 * turns.cos.shape[-1]
    if turns.turned_scale != 1.0:
        turned_BHLK = torch.cat((turned_BHLK[..., :width] * turns.turned_scale, turned_BHLK[..., width:]), dim=-1)
    if turns.query_scale_BL is not None:
        turned_BHLK = turned_BHLK * turns.query_scale_BL[:, None, :, None]
    return turned_BHLK.to(x_BHLK.dtype)


def log_n_scale(keys_BL: Tensor, trained: int, *, lowest: float) -> Tensor:
    """Return log(number of keys) / log(trained length), float32, which keeps a softmax as sharp as it was trained.

    See https://kexue.fm/archives/8823.
    """
    scale_BL = in_float64(keys_BL).clamp(min=1).log() / math.log(trained)
    return scale_BL.clamp(min=lowest).to(torch.float32).to(keys_BL.device)


def has_no_values(tensor: Tensor) -> bool:
    """Say whether nobody may look at the tensor's values: it has none, or under vmap one for each call."""
    if torch.compiler.is_compiling():
        return False
    if tensor.is_meta or torch._C._functorch.maybe_current_level() is not None:
        return True
    # a fake tensor tells the device that it stands for, and keeps its numbers nowhere
    return type(tensor) is not Tensor and tensor.untyped_storage().device.type == "meta"


def values_are_hidden(tensor: Tensor) -> bool:
    """Say whether Python may not look at the tensor's values here: traced, compiled, or without any."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing() or has_no_values(tensor)


class HFRoFormerRotaryEmbedding(nn.Module):
    """Look rotations up by position, in a table that grows when a longer text comes.

    The table is neither parameter nor buffer: no cast can round it, no loader can leave it unfilled, no data-parallel
    wrapper broadcasts it between processes that have seen different lengths, and no file carries it. What grows it
    never changes the rows that were there.
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.axes: int = config.rope_axes
        # where nothing turns, or each layer in its own way, there are no pairs
        turns = config.position_kind == "rotary" and not config.turns_by_layer
        width = config.rotary_dim // self.axes if turns else 0
        # plain numbers survive casts, meta devices, copies and sharding
        self.frequencies = RopeFrequencies(config.rope_parameters, width, config.max_position_embeddings)
        self._tables: dict[torch.device, RotationTable] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Leave the tables out of copies and files: who reads one may have other devices than the tables are for."""
        return {**self.__dict__, "_tables": {}}

    @property
    def inv_freq(self) -> Tensor:
        """The angle between neighbouring positions for each pair of an axis, up to the trained length, float64 [P]."""
        return torch.tensor(self.frequencies.within, dtype=torch.float64, device="cpu")

    def stays_within(self, num_positions: int | None) -> bool:
        """Say whether the trained frequencies serve: always, or because no position passes the trained length."""
        return not self.frequencies.by_length or (
            num_positions is not None and num_positions <= self.frequencies.trained
        )

    @torch.no_grad()
    def forward(
        self,
        hidden_states: Tensor,
        position_ids: Tensor,
        num_positions: int | None = None,
        lengths: Tensor | None = None,
    ) -> RotationTable:
        """Return the rotations of `position_ids` [B or 1, L], float32 [B or 1, L, P], on the device of the positions.

        `num_positions` is a bound above every position, where one is known without looking at them: only then can
        the table serve. The angles of any other positions, negative and fractional ones too, are computed afresh.
        `lengths` [B or 1, L] are those of the texts that the tokens see, for a scaling that depends on it; untold, a
        row is one text.
        """
        if self.axes == 2:
            return two_axis_table(position_ids, self.inv_freq)
        if not self.stays_within(num_positions):
            lengths = position_ids.amax(dim=-1, keepdim=True) + 1 if lengths is None else lengths
            return rotation_table(position_ids, self.frequencies.of_lengths(in_float64(lengths)))
        if num_positions is None or values_are_hidden(position_ids):
            return rotation_table(position_ids, self.inv_freq)
        table = self._table_of(num_positions, position_ids.device)
        return RotationTable(table.cos[position_ids], table.sin[position_ids])

    def _table_of(self, num_positions: int, device: torch.device) -> RotationTable:
        table = self._tables.get(device)
        if table is None or len(table.cos) < num_positions:
            num_rows = max(SMALLEST_TABLE, 1 << (num_positions - 1).bit_length())
            rows_N = torch.arange(num_rows, dtype=torch.int64, device=device)
            table = self._tables[device] = rotation_table(rows_N, self.inv_freq)
        return table

    def extra_repr(self) -> str:
        """Show the shape of the rotation."""
        return f"pairs={len(self.frequencies.within) * self.axes}"


__all__ = [
    "HFRoFormerRotaryEmbedding",
    "OwnLengths",
    "Places",
    "RotationTable",
    "Turns",
    "back",
    "log_n_scale",
    "rotate",
    "rotation_frequencies",
    "rotation_table",
    "turn_query",
    "without_autocast",
]
