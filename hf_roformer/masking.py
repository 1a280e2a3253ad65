"""What a masked LM must guess: drawn anew each time a row is seen, and the same for the same seed and number of draw.

A unit is masked as a whole: a token, or all tokens of a word. Of what is chosen, most becomes [MASK], some another
token and some stays (BERT, arXiv 1810.04805). Spans take several neighbouring units, of a geometrically distributed
number, which share their fate (SpanBERT, arXiv 1907.10529).

Shapes: L tokens of a row, U units of it.
"""

from typing import NamedTuple

import numpy as np

from .losses import IGNORED

MASKED, REPLACED = 0.8, 0.1


class Masking(NamedTuple):
    """How to mask.

    share: of the tokens that may be masked.
    spans: whether neighbouring units are masked together; `stop` is the chance that a span ends after each unit.
    fixed: ids that are never masked: special tokens.
    drawn: ids to put in place of others.
    """

    share: float
    mask: int
    fixed: np.ndarray
    drawn: np.ndarray
    spans: bool = False
    stop: float = 0.2
    longest: int = 10


def _chosen_units(choices: Masking, free_U: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Choose each free unit with the same chance, bool [U]; a group of its own each, int [U]."""
    return np.where((generator.random(len(free_U)) < choices.share) & free_U, np.arange(len(free_U)), -1)


def span_lengths(choices: Masking) -> np.ndarray:
    """Return the chance of each length from 1 to the longest: geometric, cut off and made to sum to 1."""
    chances = choices.stop * (1 - choices.stop) ** np.arange(choices.longest)
    return chances / chances.sum()


def _chosen_spans(
    choices: Masking, free_U: np.ndarray, sizes_U: np.ndarray, pieces_U: np.ndarray, generator: np.random.Generator
) -> np.ndarray:
    """Draw spans until the share of tokens is reached, numbered, int [U]; -1 is not chosen.

    The span that reaches the share is kept by chance, so that on average the share is met.
    """
    groups_U = np.full(len(free_U), -1)
    left = choices.share * sizes_U[free_U].sum()
    lengths, chances = np.arange(1, choices.longest + 1), span_lengths(choices)
    for number, start in enumerate(generator.permutation(np.flatnonzero(free_U))):
        length = int(generator.choice(lengths, p=chances))
        span = np.arange(start, min(start + length, len(free_U)))
        # a span ends at the end of its piece, and before what is masked already
        whole = free_U[span] & (pieces_U[span] == pieces_U[start]) & (groups_U[span] < 0)
        span = span[: int(np.argmin(whole)) if not whole.all() else len(span)]
        size = sizes_U[span].sum()
        if size and (size <= left or generator.random() < left / size):
            groups_U[span] = number
        left -= size
        if left <= 0:
            break
    return groups_U


def mask_row(
    choices: Masking,
    ids_L: np.ndarray,
    starts_L: np.ndarray,
    pieces_L: np.ndarray,
    generator: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the row as the model sees it and its labels, both [L].

    A unit that holds a special token is left alone; so are pads, which are of piece 0.
    """
    units_L = np.cumsum(starts_L) - 1
    count = int(units_L.max()) + 1
    fixed_L = np.isin(ids_L, choices.fixed) | (pieces_L == 0)
    sizes_U = np.bincount(units_L, minlength=count)
    free_U = np.bincount(units_L, weights=fixed_L, minlength=count) == 0
    if choices.spans:
        firsts_U = np.unique(units_L, return_index=True)[1]
        groups_U = _chosen_spans(choices, free_U, sizes_U, pieces_L[firsts_U], generator)
    else:
        groups_U = _chosen_units(choices, free_U, generator)
    groups_L = groups_U[units_L]
    chosen_L = groups_L >= 0
    fates_L = generator.random(len(ids_L))
    if choices.spans:
        # those of one span share one fate
        fates_L = fates_L[np.maximum(groups_L, 0)]
    others_L = generator.choice(choices.drawn, len(ids_L))
    seen_L = np.where(chosen_L & (fates_L < MASKED), choices.mask, ids_L)
    replaced_L = chosen_L & (fates_L >= MASKED) & (fates_L < MASKED + REPLACED)
    seen_L = np.where(replaced_L, others_L, seen_L)
    return seen_L, np.where(chosen_L, ids_L, IGNORED)


__all__ = ["MASKED", "REPLACED", "Masking", "mask_row", "span_lengths"]
