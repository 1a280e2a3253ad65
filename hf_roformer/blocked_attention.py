# Copyright 2026 The hf_roformer authors. Licensed under the Apache License, Version 2.0.
"""Softmax attention on a CPU by plain products of blocks, where PyTorch's fused kernel is the slower one.

The fused kernel leaves the processor's half-precision units unused, and takes no dropout: PyTorch then falls back to
the formula, which stores every weight. Here a few heads and at most `ROWS` queries at a time see all keys, so memory
grows linearly with the length; the backward pass computes the weights again, and draws the same dropout again.

Shapes: B batch, H heads, Q query columns, S key columns, K width of one head, N = B * H; lower case in one block.
"""

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .dropout import Draws, draw_seed, kept_share
from .rotary import values_are_hidden

# queries of a block, and weights of a block: what the processor's caches hold
ROWS = 512
WEIGHTS = 1 << 20
# the fewest keys with which the blocks are no slower, without and with dropout
SHORTEST, SHORTEST_WITH_DROPOUT = 64, 96


class Settings(NamedTuple):
    """What a call is told besides its tensors; `seed` is that of the dropout."""

    scaling: float
    dropout: float
    causal: bool
    seed: int


class Block(NamedTuple):
    """The queries of one block and the keys that they see, of some of the N heads."""

    queries: tuple[slice, slice]
    keys: tuple[slice, slice]


@functools.cache
def has_half_precision_units() -> bool:
    """Say whether this processor multiplies bfloat16 matrices in hardware."""
    probes = (getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
    return any(probe() for probe in probes if probe is not None)


def blocks_are_faster(query_BHQK: Tensor, key_BHSK: Tensor, mask: Tensor | None, dropout: float) -> bool:
    """Say whether plain products beat the fused kernel on this device, at this dtype, length and dropout."""
    if query_BHQK.device.type != "cpu" or values_are_hidden(query_BHQK):
        return False
    if mask is not None and mask.dtype != torch.bool:
        return False
    if dropout:
        return key_BHSK.shape[2] >= SHORTEST_WITH_DROPOUT
    if mask is not None:
        return False
    in_half = query_BHQK.dtype == torch.bfloat16 and has_half_precision_units()
    return in_half and key_BHSK.shape[2] >= SHORTEST


def _blocks(query_NQK: Tensor, key_NSK: Tensor, causal: bool) -> Iterator[Block]:
    num_heads, queries, keys = *query_NQK.shape[:2], key_NSK.shape[1]
    rows = min(ROWS, queries)
    together = max(1, WEIGHTS // (rows * keys))
    for head in range(0, num_heads, together):
        heads = slice(head, head + together)
        for row in range(0, queries, rows):
            end = min(row + rows, queries)
            yield Block((heads, slice(row, end)), (heads, slice(0, end if causal else keys)))


def _hidden(mask_BHQS: Tensor, block: Block, num_heads: int) -> Tensor:
    """Return what the queries of one block do not see, [n, q, s]; one mask may serve all heads."""
    (heads, rows), (_, columns) = block
    seen_BHqs = mask_BHQS[:, :, rows, columns]
    head_n = torch.arange(heads.start, min(heads.stop, len(mask_BHQS) * num_heads))
    return ~seen_BHqs[head_n // num_heads, head_n % num_heads % mask_BHQS.shape[1]]


def _product(left_nab: Tensor, right_nbc: Tensor, scaling: float = 1.0) -> Tensor:
    """Multiply head by head; a matrix alone, and without a batch around it, is multiplied faster."""
    nothing = left_nab.new_empty(())
    if len(left_nab) == 1:
        return torch.addmm(nothing, left_nab[0], right_nbc[0], beta=0, alpha=scaling)[None]
    return torch.baddbmm(nothing.expand(len(left_nab), 1, 1), left_nab, right_nbc, beta=0, alpha=scaling)


def _weights(query_NQK: Tensor, key_NSK: Tensor, mask_BHQS: Tensor | None, block: Block, settings: Settings) -> Tensor:
    """Return the softmax of one block's scores; like those of the formula, they have the dtype of the queries."""
    scores_nqs = _product(query_NQK[block.queries], key_NSK[block.keys].transpose(1, 2), settings.scaling)
    if settings.causal:
        row_q1 = torch.arange(block.queries[1].start, block.queries[1].stop)[:, None]
        scores_nqs.masked_fill_(torch.arange(block.keys[1].stop) > row_q1, torch.finfo(scores_nqs.dtype).min)
    if mask_BHQS is None:
        return scores_nqs.softmax(dim=-1)
    hidden_nqs = _hidden(mask_BHQS, block, len(query_NQK) // len(mask_BHQS))
    # -inf alone would make a query that sees nothing NaN
    scores_nqs.masked_fill_(hidden_nqs, torch.finfo(scores_nqs.dtype).min)
    return scores_nqs.softmax(dim=-1).masked_fill_(hidden_nqs, 0)


class _Gradients(NamedTuple):
    """What a backward pass fills; on the keys, blocks of queries add up in a wide dtype."""

    query_NQK: Tensor
    key_NSK: Tensor
    value_NSK: Tensor

    @classmethod
    def of(cls, query_NQK: Tensor, key_NSK: Tensor) -> "_Gradients":
        wide = torch.promote_types(key_NSK.dtype, torch.float32)
        sums = (torch.zeros_like(key_NSK, dtype=wide) for _ in range(2))
        return cls(torch.empty_like(query_NQK), *sums)


class _BlockedAttention(torch.autograd.Function):
    """Scaled dot-product attention, block by block."""

    @staticmethod
    def forward(
        ctx: Any,
        query_NQK: Tensor,
        key_NSK: Tensor,
        value_NSK: Tensor,
        mask_BHQS: Tensor | None,
        settings: Settings,
    ) -> Tensor:
        """Return the attended values [N, Q, K]; the mask's H is that of the heads or 1."""
        out_NQK = torch.empty_like(query_NQK)
        draws = Draws(settings.seed)
        for block in _blocks(query_NQK, key_NSK, settings.causal):
            weights_nqs = _weights(query_NQK, key_NSK, mask_BHQS, block, settings)
            if settings.dropout:
                weights_nqs *= draws.kept(weights_nqs.shape, settings.dropout, weights_nqs.dtype)
            out_NQK[block.queries] = _product(weights_nqs, value_NSK[block.keys])
        if settings.dropout:
            out_NQK /= kept_share(settings.dropout)
        ctx.save_for_backward(query_NQK, key_NSK, value_NSK, mask_BHQS, out_NQK)
        ctx.settings = settings
        return out_NQK

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NQK: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of queries, keys and values."""
        query_NQK, key_NSK, value_NSK, mask_BHQS, out_NQK = ctx.saved_tensors
        settings, gradients = ctx.settings, _Gradients.of(query_NQK, key_NSK)
        # the softmax takes back what its weights and their gradients share: a sum over the keys, known without them
        shared_NQ1 = (grad_NQK * out_NQK).sum(dim=-1, keepdim=True)
        grad_NQK = grad_NQK / kept_share(settings.dropout)
        draws = Draws(settings.seed)
        for block in _blocks(query_NQK, key_NSK, settings.causal):
            weights_nqs = used_nqs = _weights(query_NQK, key_NSK, mask_BHQS, block, settings)
            grad_nqs = _product(grad_NQK[block.queries], value_NSK[block.keys].transpose(1, 2))
            if settings.dropout:
                kept_nqs = draws.kept(weights_nqs.shape, settings.dropout, weights_nqs.dtype)
                used_nqs = weights_nqs * kept_nqs
                grad_nqs *= kept_nqs
            gradients.value_NSK[block.keys] += _product(used_nqs.transpose(1, 2), grad_NQK[block.queries])
            grad_nqs.sub_(shared_NQ1[block.queries]).mul_(weights_nqs)
            keys_nsK, queries_nqK = key_NSK[block.keys], query_NQK[block.queries]
            gradients.query_NQK[block.queries] = _product(grad_nqs, keys_nsK, settings.scaling)
            gradients.key_NSK[block.keys] += _product(grad_nqs.transpose(1, 2), queries_nqK, settings.scaling)
        return *(x.to(query_NQK.dtype) for x in gradients), None, None


def blocked_attention_forward(
    module: nn.Module,
    query_BHQK: Tensor,
    key_BHSK: Tensor,
    value_BHSK: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend, [B, Q, H, K]; a bool mask [B or 1, H or 1, Q or 1, S] says itself what is seen, causal or not.

    Where a causal module without a mask has fewer queries than keys, a single one sees all. A query that sees nothing
    gives 0. It is differentiable once. Each call with dropout takes one number from PyTorch's global generator.
    """
    causal = attention_mask is None and bool(module.is_causal) and query_BHQK.shape[2] == key_BHSK.shape[2]
    settings = Settings(scaling, dropout, causal, seed=draw_seed() if dropout else 0)
    heads_NLK = (state.flatten(0, 1) for state in (query_BHQK, key_BHSK, value_BHSK))
    if attention_mask is not None:
        attention_mask = attention_mask.expand(len(query_BHQK), -1, query_BHQK.shape[2], -1)
    out_NQK = _BlockedAttention.apply(*heads_NLK, attention_mask, settings)
    return out_NQK.unflatten(0, query_BHQK.shape[:2]).transpose(1, 2), None


__all__ = ["blocked_attention_forward", "blocks_are_faster"]
