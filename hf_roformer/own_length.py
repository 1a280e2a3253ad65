# Copyright 2026 The hf_roformer authors. Licensed under the Apache License, Version 2.0.
"""Attention whose turn depends on how long a text each query sees (`dynamic` and `longrope`, while writing).

A query beyond the trained length turns all keys by its own length, so nothing depends on what came later, and a token
from a cache meets the same keys as in a whole row. Keys are stored before the turn, and their positions beside them,
bit for bit in the dtype of the keys: whatever a cache does to its rows and columns it does to both.

Shapes: B batch, H heads, Q query columns, S key columns, K width of one head, W of a key with its position.
"""

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from .rotary import OwnLengths, in_float64, rotate, rotation_table, values_are_hidden


def with_positions(key_BHLK: Tensor, positions_BL: Tensor) -> Tensor:
    """Put the positions beside the keys, [B, H, L, W]."""
    wide = torch.promote_types(key_BHLK.dtype, torch.float32)
    bits_BLW = positions_BL.to(wide)[..., None].view(key_BHLK.dtype)
    batch_size, num_heads = key_BHLK.shape[:2]
    return torch.cat((key_BHLK, bits_BLW[:, None].expand(batch_size, num_heads, -1, -1)), dim=-1)


def without_positions(key_BHSW: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Return the keys [B, H, S, K], and their positions [B, S]."""
    wide = torch.promote_types(key_BHSW.dtype, torch.float32)
    return key_BHSW[..., :width], key_BHSW[:, 0, :, width:].contiguous().view(wide).squeeze(-1)


def _turned(key_BHSK: Tensor, positions_BS: Tensor, lengths_B: Tensor, own: OwnLengths) -> Tensor:
    frequencies_B1P = own.frequencies.of_lengths(in_float64(lengths_B)[:, None])
    return rotate(key_BHSK, rotation_table(positions_BS, frequencies_B1P))


def _equal_columns(lengths_BQ: Tensor) -> list[slice]:
    """Group neighbouring queries to which all keys turn alike in every row."""
    if lengths_BQ.shape[1] == 1:
        return [slice(0, 1)]
    counts = torch.unique_consecutive(lengths_BQ, dim=1, return_counts=True)[1].tolist()
    return [slice(end - count, end) for end, count in zip(accumulate(counts), counts, strict=True)]


def _one_by_one(states: tuple[Tensor, ...], positions_BS: Tensor, lengths_BQ: Tensor, own: OwnLengths) -> Any:
    """Make every query a row of its own: what a graph that may not look at lengths can do."""
    queries = lengths_BQ.shape[1]
    query_NH1K = states[0].transpose(1, 2).flatten(0, 1)[:, :, None]
    key_NHSK, value_NHSK = (x[:, None].expand(-1, queries, -1, -1, -1).flatten(0, 1) for x in states[1:])
    positions_NS = positions_BS[:, None].expand(-1, queries, -1).flatten(0, 1)
    return query_NH1K, _turned(key_NHSK, positions_NS, lengths_BQ.flatten(), own), value_NHSK


def attend_by_length(
    attend: Callable, states: tuple[Tensor, Tensor, Tensor], mask_BHQS: Tensor, own: OwnLengths, *, backend: str
) -> tuple[Tensor, Tensor | None]:
    """Attend with turned queries [B, H, Q, K], keys [B, H, S, W] and values; return states [B, Q, D] and weights."""
    query_BHQK, key_BHSW, value_BHSK = states
    key_BHSK, positions_BS = without_positions(key_BHSW, query_BHQK.shape[-1])
    batch_size, queries = query_BHQK.shape[0], query_BHQK.shape[2]
    lengths_BQ = own.frequencies.effective(own.lengths_BL).expand(batch_size, queries)
    if queries > 1 and values_are_hidden(lengths_BQ):
        rows = _one_by_one((query_BHQK, key_BHSK, value_BHSK), positions_BS, lengths_BQ, own)
        out_N1D = attend(rows, mask_BHQS.transpose(1, 2).flatten(0, 1)[:, :, None], backend)[0]
        return out_N1D.unflatten(0, (batch_size, queries)).squeeze(2), None
    outs, weights = [], []
    for columns in _equal_columns(lengths_BQ):
        turned_BHSK = _turned(key_BHSK, positions_BS, lengths_BQ[:, columns.start], own)
        out, weight = attend((query_BHQK[:, :, columns], turned_BHSK, value_BHSK), mask_BHQS[:, :, columns], backend)
        outs.append(out)
        weights.append(weight)
    return torch.cat(outs, dim=1), None if weights[0] is None else torch.cat(weights, dim=2)


__all__ = ["attend_by_length", "with_positions", "without_positions"]
