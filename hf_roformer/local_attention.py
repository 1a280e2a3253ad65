# Copyright 2026 The hf_roformer authors. Licensed under the Apache License, Version 2.0.
"""Attention to the neighbourhood alone, in time and memory that grow with the length.

Queries go block by block, each with the keys that its block can reach; the backend sees many short rows.

Shapes: B batch, H heads, L tokens, K width of one head, N blocks of all rows, Q queries and S keys of one block.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

# queries of a block, where the window is smaller
SMALLEST_BLOCK = 64


class Neighbourhood(NamedTuple):
    """Which keys each block of queries can reach, and which of them it sees: bool [N, 1, Q, S]."""

    size: int
    before: int
    after: int
    seen_N1QS: Tensor

    def queries(self, state: Tensor) -> Tensor:
        """Cut [B, L, ...] into blocks, [B, blocks, Q, ...]; the last is filled up."""
        return _filled(state, 0, -state.shape[1] % self.size).unflatten(1, (-1, self.size))

    def keys(self, state: Tensor) -> Tensor:
        """Cut [B, L, ...] into what each block reaches, [B, blocks, S, ...]."""
        filled = _filled(state, self.before, -state.shape[1] % self.size + self.after)
        return filled.unfold(1, self.before + self.size + self.after, self.size).movedim(-1, 2)


def _filled(state: Tensor, before: int, after: int) -> Tensor:
    return F.pad(state, (*[0, 0] * (state.dim() - 2), before, after))


def block_size(window: int) -> int:
    """Return how many queries go together."""
    return max(window - 1, SMALLEST_BLOCK)


def neighbourhood(columns_BL: Tensor, sequences_BL: Tensor, window: int, *, causal: bool) -> Neighbourhood:
    """Let tokens see those of their sequence that are fewer than `window` columns away.

    `sequences_BL` count from 1; pads have 0 and are left to each other. Columns grow within a sequence.
    """
    reach = window - 1
    cut = Neighbourhood(block_size(window), reach, 0 if causal else reach, columns_BL)
    away_BNQS = cut.queries(columns_BL)[..., :, None] - cut.keys(columns_BL)[..., None, :]
    together_BNQS = cut.queries(sequences_BL)[..., :, None] == cut.keys(sequences_BL)[..., None, :]
    seen_BNQS = together_BNQS & (away_BNQS < window)
    seen_BNQS = seen_BNQS & (away_BNQS >= 0 if causal else away_BNQS > -window)
    return cut._replace(seen_N1QS=seen_BNQS.flatten(0, 1)[:, None])


def attend_nearby(
    attend: Callable, module: nn.Module, states: tuple[Tensor, Tensor, Tensor], near: Neighbourhood, **kwargs: Any
) -> Tensor:
    """Attend block by block, [B, L, H, K]."""
    query_BLHK, key_BLHK, value_BLHK = (state.transpose(1, 2) for state in states)
    query_NHQK = near.queries(query_BLHK).flatten(0, 1).transpose(1, 2)
    key_NHSK, value_NHSK = (near.keys(x).flatten(0, 1).transpose(1, 2).contiguous() for x in (key_BLHK, value_BLHK))
    out_NQHK = attend(module, query_NHQK.contiguous(), key_NHSK, value_NHSK, near.seen_N1QS, **kwargs)[0]
    batch_size, length = query_BLHK.shape[:2]
    return out_NQHK.unflatten(0, (batch_size, -1)).flatten(1, 2)[:, :length]


__all__ = ["Neighbourhood", "attend_nearby", "block_size", "neighbourhood"]
