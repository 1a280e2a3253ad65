# Copyright 2026 The hf_roformer authors. Licensed under the Apache License, Version 2.0.
"""Positions that are added to the embeddings: the baselines that rotation is measured against.

Shapes: B batch, L tokens, E embedding size.
"""

from typing import Any

import torch
from torch import Tensor, nn

from .rotary import rotation_frequencies, rotation_table, values_are_hidden


class HFRoFormerSinusoids(nn.Module):
    """Sines in the even channels and cosines in the odd ones (arXiv 1706.03762, 3.5); nothing is stored."""

    # the published base, whatever the rotation's is
    base = 10_000.0

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    @torch.no_grad()
    def forward(self, position_ids: Tensor, visible_BL: Tensor | None) -> Tensor:
        """Return float32 [B or 1, L, E]."""
        table = rotation_table(position_ids, rotation_frequencies(self.width, theta=self.base))
        return torch.stack((table.sin, table.cos), dim=-1).flatten(-2)


class HFRoFormerLearnedPositions(nn.Embedding):
    """A vector for each position of the trained length, and none beyond."""

    def forward(self, position_ids: Tensor, visible_BL: Tensor | None = None) -> Tensor:  # type: ignore[override]
        """Return [B or 1, L, E].

        Raises:
            ValueError: for a visible token's position that is no row of the table.
        """
        if position_ids.is_floating_point():
            raise ValueError("position_kind 'learned' has whole positions alone: give integer position_ids")
        # a pad beyond the end asks for no row
        shown_BL = position_ids if visible_BL is None else torch.where(visible_BL, position_ids, 0)
        if not values_are_hidden(shown_BL):
            wrong = shown_BL[(shown_BL < 0) | (shown_BL >= self.num_embeddings)]
            if wrong.numel():
                raise ValueError(
                    f"a token has position {wrong[0].item()}, and position_kind 'learned' has {self.num_embeddings} "
                    "rows (max_position_embeddings): shorten the text, or choose a position_kind without a table"
                )
        return super().forward(shown_BL)


def make_position_embeddings(config: Any) -> nn.Module | None:
    """Build what is added to the embeddings, if anything is."""
    if config.position_kind == "sinusoidal":
        return HFRoFormerSinusoids(config.embedding_size)
    if config.position_kind == "learned":
        return HFRoFormerLearnedPositions(config.max_position_embeddings, config.embedding_size)
    return None


__all__ = ["HFRoFormerLearnedPositions", "HFRoFormerSinusoids", "make_position_embeddings"]
