# Copyright 2026 The hf_roformer authors. Licensed under the Apache License, Version 2.0.
"""Dropout whose draws are cheap on a CPU: sixteen bits for each number, four of them from one draw of NumPy's SFC64.

PyTorch draws one by one there, which takes several times as long as all else that dropout does. The probability is
rounded to a multiple of 2^-16; the mean is kept to the rounded one. What falls out is multiplied by 0, as PyTorch
does it: a fill under a mask takes ten times as long.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .rotary import values_are_hidden

LEVELS = 1 << 16
# below so many numbers the draws cost less than the calls
SMALLEST = 1 << 14


def kept_share(probability: float) -> float:
    """Return the share that stays, as the draws have it."""
    return 1 - round(probability * LEVELS) / LEVELS


def draw_seed() -> int:
    """Take a seed from PyTorch's global generator, which a checkpointed layer puts back before it runs again."""
    return int(torch.randint(2**62, (), device="cpu"))


class Draws:
    """The draws of one call on the CPU; those of one seed are the same in every process and release of NumPy."""

    def __init__(self, seed: int) -> None:
        self._bits = np.random.SFC64(seed)

    def kept(self, shape: Sequence[int], probability: float, dtype: torch.dtype) -> Tensor:
        """Draw which numbers stay: 1 for them, and 0 for those that fall out."""
        count = torch.Size(shape).numel()
        draws = torch.from_numpy(self._bits.random_raw(-(-count // 4)).view(np.int16)[:count]).view(shape)
        bound = round(probability * LEVELS) - LEVELS // 2
        return torch.ge(draws, bound, out=torch.empty(shape, dtype=dtype, device="cpu"))


def _drop(x: Tensor, probability: float, seed: int) -> Tensor:
    kept, share = Draws(seed).kept(x.shape, probability, x.dtype), kept_share(probability)
    # half precision would round the scale of all of them alike, and shift the mean
    return x * kept / share if x.dtype.itemsize < 4 else x * kept.div_(share)


class _Dropped(torch.autograd.Function):
    """Dropout that keeps nothing for its gradient but the seed, and draws the same again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, probability: float, seed: int) -> Tensor:
        """Let numbers fall out, and scale the others."""
        ctx.told = probability, seed
        return _drop(x, probability, seed)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        """Do the same to the gradient, by operations that have gradients of their own."""
        return _drop(grad, *ctx.told), None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Tensor:
        """Do the same to a tangent."""
        return _drop(tangent, *ctx.told)


class HFRoFormerDropout(nn.Dropout):
    """Dropout as PyTorch has it, with cheaper draws for large tensors on a CPU."""

    def forward(self, x: Tensor) -> Tensor:
        """Let numbers fall out in training, and scale the others so that the mean stays."""
        cheap = self.training and 0 < self.p < 1 and x.device.type == "cpu"
        # the size comes last: a graph that has been asked for it serves small tensors alone
        if not cheap or values_are_hidden(x) or x.numel() < SMALLEST:
            return F.dropout(x, self.p, self.training)
        return _Dropped.apply(x, self.p, draw_seed())


__all__ = ["Draws", "HFRoFormerDropout", "draw_seed", "kept_share"]
