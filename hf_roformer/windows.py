"""Texts that are longer than a row: cut off, reduced to head and tail, or read through windows that overlap.

A text is turned into tokens whole, with whatever the tokenizer puts around it; then columns are left out. So a window
holds the tokens of the whole text and not those of a text that begins in the middle of a word, and any tokenizer
serves. Of a pair one text is the long one; the other stands in every window.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

# of a row's room, which a pair shares: the shorter text of two long ones gets at most this part of it
SHORT_SHARE = 2


class Cut(NamedTuple):
    """Which columns each row keeps, and how many tokens are in none."""

    rows: list[list[int]]
    lost: int


# what a long text of `count` tokens leaves in rows that have room for `room`
Chooser = Callable[[int, int], list[list[int]]]


def head_and_tail(share: float) -> Chooser:
    """Keep the first tokens and the last, the first being this share of the room (Sun et al. 2019, arXiv 1905.05583).

    They found it better than either end alone for BERT on long reviews, with 128 of 510 tokens for the head.
    """

    def choose(count: int, room: int) -> list[list[int]]:
        head = min(round(share * room), room)
        return [[*range(head), *range(count - (room - head), count)]]

    return choose


def overlapping(overlap: int, most: int | None = None) -> Chooser:
    """Keep windows that share `overlap` tokens with their neighbours, the first `most` of them."""

    def choose(count: int, room: int) -> list[list[int]]:
        if overlap >= room:
            raise ValueError(
                f"window_overlap is {overlap}, and a window has room for {room} tokens of the long text: give a "
                "smaller window_overlap or a greater max_length"
            )
        starts = range(0, max(count - overlap, 1), room - overlap)
        return [[*range(start, min(start + room, count))] for start in starts[:most]]

    return choose


def longer_part(sequence_ids: Sequence[int | None]) -> int:
    """Say which of the texts in a row is the longer one."""
    parts = [part for part in sequence_ids if part is not None]
    return max((1, 0), key=parts.count)


def cut_row(
    sequence_ids: Sequence[int | None],
    max_length: int,
    choose: Chooser,
    long_part: int | None = None,
    short_limit: int | None = None,
) -> Cut:
    """Fit one row of tokens.

    sequence_ids: to which text each column belongs, as a tokenizer's encoding tells; None for what stands around.
    long_part: the text to cut; None is the longer one.
    short_limit: most tokens of the other text.
    """
    part = longer_part(sequence_ids) if long_part is None else long_part
    long = [column for column, owner in enumerate(sequence_ids) if owner == part]
    short = [column for column, owner in enumerate(sequence_ids) if owner not in (part, None)]
    around = len(sequence_ids) - len(long) - len(short)
    limit = len(short) if short_limit is None else short_limit
    if len(sequence_ids) > max_length:
        limit = min(limit, (max_length - around) // SHORT_SHARE)
    frame = sorted({*range(len(sequence_ids))} - {*long} - {*short[limit:]})
    room = max_length - len(frame)
    if room < 1:
        raise ValueError(f"max_length {max_length} leaves no room for text beside {around} special tokens: raise it")
    pieces = choose(len(long), room) if len(long) > room else [[*range(len(long))]]
    kept = {index for piece in pieces for index in piece}
    rows = [sorted([*frame, *(long[index] for index in piece)]) for piece in pieces]
    return Cut(rows, len(sequence_ids) - len(frame) - len(kept))


@torch.inference_mode()
def run_rows(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: Sequence[dict[str, list[int]]], batch_size: int
) -> Iterator[Any]:
    """Yield a model's outputs for batches of rows, in their order."""
    was_training = model.training
    model.eval()
    try:
        for start in range(0, len(rows), batch_size):
            # whoever reads columns counts from the first one
            batch = tokenizer.pad(list(rows[start : start + batch_size]), padding_side="right", return_tensors="pt")
            yield model(**batch.to(model.device))
    finally:
        model.train(was_training)
