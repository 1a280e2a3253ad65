"""From tables to splits that share no text, and from texts to numbers.

A table is checked and reduced to the parts that its task reads, and what is left becomes the splits. Whatever is wrong
with the data is said here, before anything is trained or written.
"""

import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from .arguments import TaskArguments
from .sources import Table, read_source
from .tables import cut_table, row_length, sampled, text_keys, without_repeats
from .task_table import task_of
from .tasks import Task
from .token_counts import TextReader

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Splits:
    """Rows to train on, to choose on and to test on; each set has the parts that its task reads.

    labels: the label names in the order of their ids, or the names of the numbers.
    """

    train: Dataset
    validation: Dataset
    test: Dataset | None
    labels: list[str]
    facts: dict[str, Any]

    @property
    def named(self) -> dict[str, Dataset]:
        """The splits that there are, by name."""
        sets = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: rows for name, rows in sets.items() if rows is not None}


def prepare_table(settings: TaskArguments, table: Table, split: str) -> Table:
    """Check a table and reduce it to the parts that the task reads, one column each."""
    task = task_of(settings)
    rows = task.prepare(table, split)
    rows = without_repeats(rows, task.repeats(rows)) if settings.deduplicate else rows
    if not row_length(rows):
        dropped = "without text, and texts with contrary labels," if settings.deduplicate else "without text"
        raise ValueError(f"the {split} data is empty: none of its rows is left once those {dropped} are dropped")
    return rows


def _split(task: Task, tables: dict[str, Table]) -> dict[str, Table]:
    """Cut the splits that the source does not give from its training table."""
    settings = task.settings
    shares = {"validation": settings.validation_share, "test": settings.test_share}
    if settings.test_split == "none":
        shares.pop("test")
    shares = {name: share for name, share in shares.items() if name not in tables and share > 0}
    cut = cut_table(tables["train"], shares, settings.split_seed, task.split_keys) if shares else {}
    splits = {**tables, **cut}
    if "validation" not in splits:
        raise ValueError("there is nothing to choose the best checkpoint on: give a validation split or a share")
    return splits


def _warn_of_shared_texts(task: Task, splits: dict[str, Table]) -> None:
    known = set(task.keys(splits["train"]))
    for name, table in splits.items():
        keys = task.keys(table)
        shared = sum(key in known for key in keys)
        if name != "train" and shared:
            logger.warning("%d of the %d %s texts are training texts too", shared, len(keys), name)


def load_splits(settings: TaskArguments) -> Splits:
    """Read, check and split the texts that a task names."""
    task = task_of(settings)
    source = read_source(settings)
    tables = {name: prepare_table(settings, table, name) for name, table in source.tables.items()}
    splits = _split(task, tables)
    _warn_of_shared_texts(task, splits)
    labels = task.label_names(splits, source.label_order)
    splits["train"] = task.learnt(splits["train"])
    sets = {name: Dataset.from_dict(sampled(settings, table)) for name, table in splits.items()}
    facts = {
        **source.facts,
        "columns": {part: ", ".join(names) for part, names in task.columns().items()},
        "rows_read": {name: row_length(table) for name, table in source.tables.items()},
        "rows": {name: len(rows) for name, rows in sets.items()},
        "labels": labels,
    }
    return Splits(sets["train"], sets["validation"], sets.get("test"), labels, facts)


def _encode(rows: Dataset, task: Task, reader: TextReader, labels: Sequence[str]) -> Dataset:
    # a fingerprint of its own: nothing is cached, so nothing needs hashing
    return rows.map(
        lambda batch: task.features(batch, reader, labels),
        batched=True,
        remove_columns=rows.column_names,
        keep_in_memory=True,
        new_fingerprint=uuid.uuid4().hex,
        desc="Turning texts into token ids",
    )


def encode(
    rows: Dataset, tokenizer: PreTrainedTokenizerBase, settings: TaskArguments, labels: Sequence[str]
) -> Dataset:
    """Turn rows into features: token ids, without padding, and labels as numbers."""
    return _encode(rows, task_of(settings), TextReader(tokenizer, settings.max_length), labels)


def encode_splits(
    splits: Splits, tokenizer: PreTrainedTokenizerBase, settings: TaskArguments
) -> tuple[dict[str, Dataset], dict[str, Any]]:
    """Turn every split into features; return them with what was cut off and unknown, by fact and split."""
    task = task_of(settings)
    sets: dict[str, Dataset] = {}
    facts: dict[str, Any] = {}
    for name, rows in splits.named.items():
        reader = TextReader(tokenizer, settings.max_length)
        sets[name] = _encode(rows, task, reader, splits.labels)
        reader.warn(name)
        for fact, value in reader.facts().items():
            facts.setdefault(fact, {})[name] = value
    return sets, facts


__all__ = ["Splits", "cut_table", "encode", "encode_splits", "load_splits", "prepare_table", "text_keys"]
