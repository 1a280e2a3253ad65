# Copyright 2026 The hf_roformer authors. Licensed under the Apache License, Version 2.0.
"""Dropout whose draws are cheap on a CPU: sixteen bits for each number, four of them from one draw.

PyTorch draws one by one there, which takes several times as long as all else that dropout does. The probability is
rounded to a multiple of 2^-16; the mean is kept to the rounded one.
"""

from collections.abc import Sequence

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


def draw_dropped(shape: Sequence[int], probability: float, generator: torch.Generator | None = None) -> Tensor:
    """Draw on the CPU which numbers fall out, bool of that shape."""
    count = torch.Size(shape).numel()
    draws = torch.empty(-(-count // 4), dtype=torch.int64, device="cpu").random_(-(2**63), None, generator=generator)
    bound = round(probability * LEVELS) - LEVELS // 2
    return (draws.view(torch.int16)[:count] < bound).view(shape)


class HFRoFormerDropout(nn.Dropout):
    """Dropout as PyTorch has it, with cheaper draws for large tensors on a CPU."""

    def forward(self, x: Tensor) -> Tensor:
        """Let numbers fall out in training, and scale the others so that the mean stays."""
        cheap = self.training and 0 < self.p < 1 and x.device.type == "cpu"
        # the size comes last: a graph that has been asked for it serves small tensors alone
        if not cheap or values_are_hidden(x) or x.numel() < SMALLEST:
            return F.dropout(x, self.p, self.training)
        return x.masked_fill(draw_dropped(x.shape, self.p), 0) / kept_share(self.p)


__all__ = ["HFRoFormerDropout", "draw_dropped", "kept_share"]
