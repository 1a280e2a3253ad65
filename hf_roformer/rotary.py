# Copyright 2026 The hf_roformer authors. Licensed under the Apache License, Version 2.0.
"""Position as rotation.

Pair (2i, 2i+1) of every head turns by `position * theta ** (-2i / K)`, so the score of a query at m against a key
at n depends on m - n alone (RoFormer, arXiv 2104.09864, equations 15 and 34).

Angles are computed in float64 and their cosines and sines rounded once to float32: a float32 angle is already wrong
by 7e-5 within the first 1,536 positions.

Shapes: B batch, H heads, L tokens, K width of the turning part of a head, P = K / 2 pairs, N rows of the table.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

SMALLEST_TABLE = 512


class RotationTable(NamedTuple):
    """Cosines and sines of every angle, float32 [N or B L, P]."""

    cos: Tensor
    sin: Tensor


def rotation_frequencies(width: int, *, theta: float, factor: float = 1.0) -> Tensor:
    """Return the angle between neighbouring positions for each pair, in radians, float64 [P].

    `factor` above one spreads the trained angles over a longer text (position interpolation, arXiv 2306.15595).
    """
    # whole numbers first: a patched or autocast float arange must not round them
    channels_P = torch.arange(0, width, 2, dtype=torch.int64, device="cpu").to(torch.float64)
    return theta ** (-channels_P / width) / factor


def rotation_table(position_ids: Tensor, frequencies_P: Tensor) -> RotationTable:
    """Return float32 cosines and sines of `position_ids * frequencies`, [*position_ids.shape, P]."""
    device = position_ids.device
    # Apple's accelerator has no float64
    exact = torch.device("cpu") if device.type == "mps" else device
    angles = position_ids.to(exact, torch.float64)[..., None] * frequencies_P.to(exact, torch.float64)
    return RotationTable(angles.cos().to(torch.float32).to(device), angles.sin().to(torch.float32).to(device))


def widened(x: Tensor) -> Tensor:
    """Return `x` in float32, or in float64 if it is that already."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def back(rotation: RotationTable) -> RotationTable:
    """Return the turns that undo `rotation`."""
    return RotationTable(rotation.cos, -rotation.sin)


def _turn_pairs(x_BHLK: Tensor, rotation: RotationTable) -> Tensor:
    cos_B1LP, sin_B1LP = rotation.cos.unsqueeze(1), rotation.sin.unsqueeze(1)
    even_BHLP, odd_BHLP = x_BHLK[..., 0::2], x_BHLK[..., 1::2]
    turned = (even_BHLP * cos_B1LP - odd_BHLP * sin_B1LP, odd_BHLP * cos_B1LP + even_BHLP * sin_B1LP)
    return torch.stack(turned, dim=-1).flatten(-2)


def _turn_complex(x_BHLK: Tensor, rotation: RotationTable) -> Tensor:
    """Multiply each pair, read as a complex number, by its turn (equation 12)."""
    pairs_BHLP2 = x_BHLK.unflatten(-1, (-1, 2))
    starts = (pairs_BHLP2.storage_offset(), *pairs_BHLP2.stride()[:-1])
    if pairs_BHLP2.stride(-1) != 1 or any(start % 2 for start in starts):
        pairs_BHLP2 = pairs_BHLP2.contiguous()
    turns_B1LP = torch.complex(rotation.cos, rotation.sin).unsqueeze(1)
    return torch.view_as_real(torch.view_as_complex(pairs_BHLP2) * turns_B1LP).flatten(-2)


def rotate(x_BHLK: Tensor, rotation: RotationTable) -> Tensor:
    """Turn the pairs of `x` by their position's angle, in the dtype of `x`.

    `rotation` is [B, L, P] or [1, L, P]; channels beyond its 2P stay as they are.
    """
    width = 2 * rotation.cos.shape[-1]
    # half precision keeps too few digits for a difference of two products
    wide = widened(x_BHLK[..., :width])
    # one pass over memory instead of several; graphs and exporters know the real form better
    as_complex = wide.device.type == "cpu" and not values_are_hidden(wide)
    turned_BHLK = (_turn_complex if as_complex else _turn_pairs)(wide, rotation).to(x_BHLK.dtype)
    return turned_BHLK if width == x_BHLK.shape[-1] else torch.cat((turned_BHLK, x_BHLK[..., width:]), dim=-1)


def values_are_hidden(tensor: Tensor) -> bool:
    """Say whether Python may not look at the tensor's values here: traced, compiled, or without any."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing() or tensor.is_meta


class HFRoFormerRotaryEmbedding(nn.Module):
    """Look rotations up by position, in a table that grows when a longer text comes.

    The table is neither parameter nor buffer: no cast can round it, no loader can leave it unfilled, no data-parallel
    wrapper broadcasts it between processes that have seen different lengths, and no file carries it. What grows it
    never changes the rows that were there.
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        rope = config.rope_parameters
        frequencies_P = rotation_frequencies(
            config.rotary_dim, theta=rope["rope_theta"], factor=rope.get("factor", 1.0)
        )
        # plain numbers survive casts, meta devices, copies and sharding
        self._frequencies: tuple[float, ...] = tuple(frequencies_P.tolist())
        self._tables: dict[torch.device, RotationTable] = {}

    @property
    def inv_freq(self) -> Tensor:
        """The angle between neighbouring positions for each pair, float64 [P]."""
        return torch.tensor(self._frequencies, dtype=torch.float64, device="cpu")

    @torch.no_grad()
    def forward(self, hidden_states: Tensor, position_ids: Tensor, num_positions: int | None = None) -> RotationTable:
        """Return the rotations of `position_ids` [B or 1, L], float32 [B or 1, L, P], on the device of the positions.

        `num_positions` is a bound above every position, where one is known without looking at them: only then can
        the table serve. The angles of any other positions, negative and fractional ones too, are computed afresh.
        """
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
        return f"pairs={len(self._frequencies)}"


__all__ = ["HFRoFormerRotaryEmbedding", "RotationTable", "back", "rotate", "rotation_frequencies", "rotation_table"]
