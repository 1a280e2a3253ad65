"""Texts into token ids that are held end to end, and those into the rows and batches of a run.

A batch is a function of its number and the seed alone: which rows, in which order, and what is masked in them. So a
resumed run sees what an uninterrupted one sees, and so do several processes what one sees.

Shapes: T tokens of all documents, R rows, L length of a row.
"""

import bisect
import itertools
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset
from transformers import PreTrainedTokenizerBase

from .losses import IGNORED
from .masking import Masking, mask_row
from .packing import SHORTEST_PIECE, Document, Frame, Row, pack
from .pretraining_arguments import PretrainingArguments, Stage
from .pretraining_texts import Reader, shuffled
from .tokenization_roformer import import_jieba

logger = logging.getLogger(__name__)

AT_ONCE = 1000
MANY_UNKNOWN = 0.05
# apart from every batch's own number
OF_EVALUATION, OF_ORDER = 2**62, 2**61


# texts into ids


def _jieba_starts(text: str, offsets: Sequence[tuple[int, int]]) -> np.ndarray:
    """Say which tokens begin another of jieba's words than the token before is in."""
    lengths = np.fromiter((len(word) for word in import_jieba().cut(text, False)), int)
    words = np.searchsorted(np.cumsum(lengths), [start for start, _ in offsets], side="right")
    return np.diff(words, prepend=-1) != 0


def _word_starts(words: Sequence[int | None]) -> np.ndarray:
    numbers = np.array([-2 if word is None else word for word in words], int)
    return np.diff(numbers, prepend=-3) != 0


class Reading:
    """Turn texts into token ids and the starts of what is masked as a whole; count what was read."""

    def __init__(self, told: PretrainingArguments, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer, self.unit = tokenizer, told.mask_unit if told.objective == "masked_lm" else "token"
        self.end = [tokenizer.sep_token_id] if told.objective == "causal_lm" else []
        self.counts = {"documents": 0, "tokens": 0, "unknown": 0, "too_short": 0}

    def encode(self, texts: list[str]) -> Any:
        """Return the ids of texts, and where each token stands."""
        return self.tokenizer(
            texts,
            add_special_tokens=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            return_offsets_mapping=True,
            verbose=False,
        )

    def starts(self, text: str, encoded: Any, number: int) -> np.ndarray:
        """Say which tokens of the text of that number begin a unit."""
        if self.unit == "token":
            return np.ones(len(encoded["input_ids"][number]), bool)
        if self.unit == "word":
            return _word_starts(encoded.encodings[number].word_ids)
        return _jieba_starts(text, encoded["offset_mapping"][number])

    def _read(self, texts: list[str]) -> Iterator[Document]:
        encoded = self.encode(texts)
        for number, text in enumerate(texts):
            ids = np.array(encoded["input_ids"][number] + self.end, np.int32)
            self.counts["documents"] += 1
            if len(ids) < SHORTEST_PIECE:
                self.counts["too_short"] += 1
                continue
            self.counts["tokens"] += len(ids)
            self.counts["unknown"] += int((ids == self.tokenizer.unk_token_id).sum())
            yield Document(ids, np.concatenate([self.starts(text, encoded, number), np.ones(len(self.end), bool)]))

    def read(self, texts: Iterable[str]) -> Iterator[Document]:
        """Read texts in their order; those of fewer than two tokens are left out."""
        texts = iter(texts)
        while part := list(itertools.islice(texts, AT_ONCE)):
            yield from self._read(part)

    def report(self, part: str) -> dict[str, Any]:
        """Tell what was read, and warn of what the tokenizer does not know."""
        counts = self.counts
        if not counts["tokens"]:
            raise ValueError(
                f"none of the {counts['documents']} {part} documents holds {SHORTEST_PIECE} tokens: "
                "document_separator says where documents end"
            )
        if counts["too_short"]:
            logger.warning("%d %s documents of fewer than 2 tokens were left out", counts["too_short"], part)
        unknown = counts["unknown"] / counts["tokens"]
        if unknown > MANY_UNKNOWN:
            logger.warning(
                "the tokenizer knows %.0f %% of the %s tokens not: %d", 100 * unknown, part, counts["unknown"]
            )
        return {"tokens": counts["tokens"], "unknown_share": round(unknown, 6), "too_short": counts["too_short"]}


@dataclass(frozen=True)
class TokenStore:
    """Documents end to end: ids [T], the starts of units [T], and where each document ends."""

    ids: np.ndarray
    starts: np.ndarray
    ends: np.ndarray

    @classmethod
    def of(cls, documents: Iterable[Document]) -> "TokenStore":
        """Take documents up."""
        parts = list(documents)
        if not parts:
            return cls(np.zeros(0, np.int32), np.zeros(0, bool), np.zeros(0, int))
        ends = np.cumsum([len(part.ids) for part in parts])
        return cls(np.concatenate([p.ids for p in parts]), np.concatenate([p.starts for p in parts]), ends)

    def documents(self, order: Iterable[int]) -> Iterator[Document]:
        """Give documents back in an order."""
        for number in order:
            begin, end = (self.ends[number - 1] if number else 0), self.ends[number]
            yield Document(self.ids[begin:end], self.starts[begin:end])


# ids into batches


@dataclass(frozen=True)
class Shaping:
    """How rows become what the network reads: the frame of their pieces, and what is masked, None for a causal LM."""

    frame: Frame
    masking: Masking | None
    seed: int

    def row(self, row: Row, number: int) -> dict[str, Tensor]:
        """Return a row and its labels; what is masked depends on the seed and the row's number alone."""
        if self.masking is None:
            hidden = (row.pieces == 0) | (row.ids == self.frame.first)
            seen, labels = row.ids, np.where(hidden, IGNORED, row.ids)
        else:
            generator = np.random.default_rng((self.seed, number))
            seen, labels = mask_row(self.masking, row.ids, row.starts, row.pieces, generator)
        columns = {"input_ids": seen, "labels": labels, "sequence_ids": row.pieces, "attention_mask": row.pieces > 0}
        return {name: torch.from_numpy(np.asarray(column).astype(np.int64)) for name, column in columns.items()}

    def batch(self, rows: Sequence[Row], number: int) -> dict[str, Tensor]:
        """Return rows as one batch; `number` is that of its first row."""
        return stack(self.row(row, number + at) for at, row in enumerate(rows))


def stack(rows: Iterable[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Put rows of one length together; a mask of nothing but ones is left out, since looking at it would cost."""
    rows = list(rows)
    batch = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    if bool(batch["attention_mask"].all()):
        del batch["attention_mask"]
    return batch


@dataclass(frozen=True)
class Plan:
    """The schedule in micro-batches, of which a step has `parts`: one a process and accumulation."""

    stages: Sequence[Stage]
    parts: int

    def __post_init__(self) -> None:
        """Refuse what does not divide."""
        for number, stage in enumerate(self.stages, 1):
            if stage.batch_size % self.parts:
                raise ValueError(
                    f"stage {number} of the schedule has batch_size {stage.batch_size}, which {self.parts} parts "
                    "(processes times gradient_accumulation_steps) do not share out evenly"
                )

    def __len__(self) -> int:
        return self.parts * sum(stage.steps for stage in self.stages)

    def place(self, number: int) -> tuple[int, int]:
        """Return in which stage micro-batch `number` lies, and how many of the stage come before."""
        ends = list(itertools.accumulate(self.parts * stage.steps for stage in self.stages))
        stage = bisect.bisect_right(ends, number)
        return stage, number - (ends[stage - 1] if stage else 0)

    def rows_before(self, number: int) -> int:
        """Count the rows of all micro-batches before one: the number of its first row."""
        at, done = self.place(number)
        rows = sum(stage.batch_size * stage.steps for stage in self.stages[:at])
        return rows + done * self.size(at)

    def size(self, at: int) -> int:
        """How many rows a micro-batch of a stage has."""
        return self.stages[at].batch_size // self.parts


class HeldBatches(Dataset):
    """The micro-batches of a run whose tokens are held; documents are shuffled and packed anew in every pass."""

    def __init__(self, store: TokenStore, plan: Plan, shaping: Shaping) -> None:
        self.store, self.plan, self.shaping = store, plan, shaping
        self._pass: tuple[int, int] | None = None
        self._rows: list[Row] = []
        # where each pass of each stage ends, as far as it was needed
        self._ends: list[list[int]] = [[] for _ in plan.stages]

    def __len__(self) -> int:
        return len(self.plan)

    def _pack(self, stage: int, number: int) -> list[Row]:
        if self._pass != (stage, number):
            generator = np.random.default_rng((self.shaping.seed, OF_ORDER, stage, number))
            order = generator.permutation(len(self.store.ends))
            length = self.plan.stages[stage].max_length
            rows = list(pack(self.store.documents(order), length, self.shaping.frame))
            self._rows = [rows[at] for at in generator.permutation(len(rows))]
            self._pass = stage, number
        return self._rows

    def _row(self, stage: int, number: int) -> Row:
        ends = self._ends[stage]
        while not ends or ends[-1] <= number:
            ends.append((ends[-1] if ends else 0) + len(self._pack(stage, len(ends))))
        at = bisect.bisect_right(ends, number)
        return self._pack(stage, at)[number - (ends[at - 1] if at else 0)]

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        if not 0 <= number < len(self):
            raise IndexError(number)
        stage, done = self.plan.place(number)
        size = self.plan.size(stage)
        rows = [self._row(stage, done * size + at) for at in range(size)]
        return self.shaping.batch(rows, self.plan.rows_before(number))


class StreamedBatches(IterableDataset):
    """The micro-batches of a run that reads its texts as it goes; at each stage's end it goes on where it stands."""

    def __init__(self, texts: Reader, reading: Reading, plan: Plan, shaping: Shaping, buffer: int) -> None:
        self.texts, self.reading, self.plan, self.shaping, self.buffer = texts, reading, plan, shaping, buffer

    def _documents(self) -> Iterator[Document]:
        for number in itertools.count():
            some = False
            for document in self.reading.read(shuffled(self.texts(), self.buffer, self.shaping.seed + number)):
                some = True
                yield document
            if not some:
                self.reading.report("training")

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        if torch.utils.data.get_worker_info() is not None:
            raise ValueError("streaming reads in the main process: leave dataloader_num_workers at 0")
        documents = self._documents()
        number = 0
        for at, stage in enumerate(self.plan.stages):
            rows = pack(documents, stage.max_length, self.shaping.frame)
            for _ in range(stage.steps * self.plan.parts):
                part = list(itertools.islice(rows, self.plan.size(at)))
                yield self.shaping.batch(part, self.plan.rows_before(number))
                number += 1


class EvaluationRows(Dataset):
    """Held-out documents at one length, masked in the same way each time."""

    def __init__(self, store: TokenStore, length: int, shaping: Shaping) -> None:
        self.rows = list(pack(store.documents(range(len(store.ends))), length, shaping.frame))
        self.shaping = shaping

    @property
    def mean_piece(self) -> float:
        """How many tokens a piece has: what stands beside a token for it to look at."""
        return sum(int((row.pieces > 0).sum()) for row in self.rows) / sum(int(row.pieces.max()) for row in self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        return self.shaping.row(self.rows[number], OF_EVALUATION + number)


def collate(items: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Unwrap the one micro-batch that a loader was given, or stack rows of one length."""
    (first, *others) = items
    if first["input_ids"].dim() == 2:
        if others:
            raise ValueError("micro-batches come one at a time: leave per_device_train_batch_size at 1")
        return first
    return stack(items)


__all__ = [
    "EvaluationRows",
    "HeldBatches",
    "Plan",
    "Reading",
    "Shaping",
    "StreamedBatches",
    "TokenStore",
    "collate",
]
