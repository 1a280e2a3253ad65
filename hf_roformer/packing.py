"""Documents into full rows, side by side, none seeing another: what does not fit goes on in the next row.

A row is cut into pieces, each of one document. A piece begins with [CLS], so that positions mean in training what they
mean in use, and for a masked LM it ends with [SEP]. A causal LM's documents bring a [SEP] of their own, which is what
ends them and nothing else does.

Shapes: L length of a row.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

# a piece shorter than this teaches nothing of its context
SHORTEST_PIECE = 2


class Document(NamedTuple):
    """Token ids of a document, and which of them begin a unit that is masked as a whole."""

    ids: np.ndarray
    starts: np.ndarray


class Frame(NamedTuple):
    """What stands around a piece: its first token, its last one if there is one, and what fills a row up."""

    first: int
    last: int | None
    pad: int

    @property
    def width(self) -> int:
        """How many tokens it takes."""
        return 1 if self.last is None else 2


class Row(NamedTuple):
    """One row, each part [L]: ids, which of them begin a unit, and which piece each is of; pads are of none, 0."""

    ids: np.ndarray
    starts: np.ndarray
    pieces: np.ndarray


class _OpenRow:
    """A row that is being filled."""

    def __init__(self, length: int, frame: Frame) -> None:
        self.length, self.frame = length, frame
        self.used = self.pieces = 0
        self.row = Row(np.full(length, frame.pad, np.int32), np.ones(length, bool), np.zeros(length, np.int32))

    @property
    def room(self) -> int:
        """How many tokens of a document still fit."""
        return self.length - self.used - self.frame.width

    def add(self, ids: np.ndarray, starts: np.ndarray) -> None:
        first = self.used + 1
        end = first + len(ids)
        self.row.ids[first - 1] = self.frame.first
        self.row.ids[first:end] = ids
        # the first token of a piece begins a unit, even where the unit began in the row before
        self.row.starts[first + 1 : end] = starts[1:]
        self.used = end
        if self.frame.last is not None:
            self.row.ids[end] = self.frame.last
            self.used += 1
        self.pieces += 1
        self.row.pieces[first - 1 : self.used] = self.pieces


def pack(documents: Iterable[Document], length: int, frame: Frame) -> Iterator[Row]:
    """Fill rows with documents in their order; only the last row, and a gap too small for a piece, hold pads."""
    if length < SHORTEST_PIECE + frame.width:
        raise ValueError(f"rows of {length} tokens hold no piece of a document: use {SHORTEST_PIECE + frame.width} up")
    open_row = _OpenRow(length, frame)
    for ids, starts in documents:
        at = 0
        while at < len(ids):
            if open_row.room < min(SHORTEST_PIECE, len(ids) - at):
                yield open_row.row
                open_row = _OpenRow(length, frame)
            end = min(len(ids), at + open_row.room)
            open_row.add(ids[at:end], starts[at:end])
            at = end
    if open_row.pieces:
        yield open_row.row


__all__ = ["SHORTEST_PIECE", "Document", "Frame", "Row", "pack"]
