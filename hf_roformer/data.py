"""From tables to splits that share no text, and from texts to numbers.

A table is checked and reduced to text, text_pair and label, and what is left becomes the splits. Whatever is wrong
with the data is said here, before anything is trained or written.
"""

import logging
import math
import random
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from .arguments import TaskArguments
from .sources import Table, read_source

logger = logging.getLogger(__name__)

SHOWN = 10


@dataclass(frozen=True)
class Splits:
    """Texts to train on, to choose on and to test on; each set has text, label and, for pairs, text_pair.

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


def _shown(items: Iterable[Any]) -> str:
    items = list(items)
    more = f" and {len(items) - SHOWN} more" if len(items) > SHOWN else ""
    return ", ".join(map(str, items[:SHOWN])) + more


# one table: its columns, texts and labels


def _columns(task: TaskArguments) -> dict[str, list[str]]:
    """Name the columns that play each part."""
    columns = {"text": [task.text_column]}
    if task.text_pair_column:
        columns["text_pair"] = [task.text_pair_column]
    columns["label"] = task.label_columns or [task.label_column]
    return columns


def _check_columns(task: TaskArguments, table: Table, split: str) -> None:
    if not any(map(len, table.values())):
        raise ValueError(f"the {split} data is empty: it has no row; its columns are {', '.join(table) or 'none'}")
    wanted = [name for names in _columns(task).values() for name in names]
    missing = [name for name in wanted if name not in table]
    if missing:
        raise ValueError(
            f"the {split} data has no column {_shown(missing)}; its columns are {', '.join(table) or 'none'} "
            "(text_column, text_pair_column, label_column and label_columns say which to read)"
        )


def _refuse_rows(values: list[Any], wrong: Callable[[Any], bool], fault: str) -> None:
    rows = [number for number, value in enumerate(values, 1) if wrong(value)]
    if rows:
        raise ValueError(
            f"{fault} in row {_shown(rows)} (the first row is 1), for example {values[rows[0] - 1]!r}: "
            "correct these rows; those without text are left out by drop_empty_texts: true"
        )


def _is_blank(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _texts(column: Sequence[Any], name: str, split: str) -> list[str]:
    """Check that each value is text that says something."""
    values = list(column)
    _refuse_rows(values, lambda value: value is None, f"column {name} of the {split} data is None")
    _refuse_rows(values, lambda value: not isinstance(value, str), f"column {name} of the {split} data is no text")
    _refuse_rows(values, _is_blank, f"column {name} of the {split} data is an empty string")
    return values


def _single_label(values: tuple[Any, ...], task: TaskArguments) -> str:
    (value,) = values
    if _is_blank(value) or isinstance(value, (list, dict)):
        raise ValueError(f"is {value!r}, which is not one label")
    return str(value).strip()


def _switched_on(value: Any) -> bool:
    words = {"1": True, "true": True, "1.0": True, "0": False, "false": False, "0.0": False}
    if str(value).strip().lower() not in words:
        raise ValueError(f"is {value!r}, which is not 0 or 1")
    return words[str(value).strip().lower()]


def _several_labels(values: tuple[Any, ...], task: TaskArguments) -> list[str]:
    if task.label_columns:
        return [name for name, value in zip(task.label_columns, values, strict=True) if _switched_on(value)]
    (value,) = values
    if value is None:
        return []
    if isinstance(value, str):
        if task.label_separator is None:
            raise ValueError(f"is the text {value!r}: say by label_separator what stands between its labels")
        value = value.split(task.label_separator)
    if not isinstance(value, list):
        raise ValueError(f"is {value!r}, which is neither a list of labels nor text")
    return sorted({str(label).strip() for label in value if not _is_blank(label)})


def _numbers(values: tuple[Any, ...], task: TaskArguments) -> list[float]:
    try:
        numbers = [float(value) for value in values]
    except (TypeError, ValueError):
        numbers = [math.nan]
    if not all(map(math.isfinite, numbers)):
        raise ValueError(f"is {_shown(values)}, which is not a finite number")
    return numbers


LABEL_READERS: dict[str, Callable[[tuple[Any, ...], TaskArguments], Any]] = {
    "single_label_classification": _single_label,
    "multi_label_classification": _several_labels,
    "regression": _numbers,
}


def _labels(task: TaskArguments, table: Table, split: str) -> list[Any]:
    read = LABEL_READERS[task.problem_type]
    columns = _columns(task)["label"]
    labels = []
    for number, values in enumerate(zip(*(table[name] for name in columns), strict=True), 1):
        try:
            labels.append(read(values, task))
        except ValueError as error:
            raise ValueError(
                f"the label ({', '.join(columns)}) of row {number} of the {split} data (the first row is 1) {error}"
            ) from None
    return labels


def _without_blanks(task: TaskArguments, table: Table) -> Table:
    parts = _columns(task)
    names = [name for part in parts.values() for name in part]
    texts = zip(*(table[name] for part in ("text", "text_pair") for name in parts.get(part, [])), strict=True)
    kept = [index for index, row in enumerate(texts) if not any(map(_is_blank, row))]
    return {name: [column[index] for index in kept] for name in names for column in [list(table[name])]}


def prepare_table(task: TaskArguments, table: Table, split: str) -> Table:
    """Check a table and reduce it to text, text_pair (if any) and label."""
    _check_columns(task, table, split)
    table = _without_blanks(task, table) if task.drop_empty_texts else table
    rows: Table = {}
    for part in ("text", "text_pair"):
        for name in _columns(task).get(part, []):
            rows[part] = _texts(table[name], name, split)
    rows["label"] = _labels(task, table, split)
    rows = _without_repeats(rows) if task.deduplicate else rows
    if not rows["text"]:
        raise ValueError(f"the {split} data is empty: none of its rows is left once those without text are dropped")
    return rows


# splitting


def text_keys(table: Any) -> list[tuple[str, ...]]:
    """Give each row a key that rows with the same words share, however they are spaced."""
    parts = [table[name] for name in ("text", "text_pair") if name in table]
    return [tuple(" ".join(text.split()) for text in row) for row in zip(*parts, strict=True)]


def _chosen(table: Table, kept: Iterable[int]) -> Table:
    kept = list(kept)
    return {name: [column[index] for index in kept] for name, column in table.items()}


def _without_repeats(table: Table) -> Table:
    """Keep each text's first row, and none of a text whose rows carry different labels."""
    first: dict[tuple[str, ...], int] = {}
    contradictory = set()
    for index, key in enumerate(text_keys(table)):
        if table["label"][first.setdefault(key, index)] != table["label"][index]:
            contradictory.add(key)
    return _chosen(table, [index for key, index in first.items() if key not in contradictory])


def cut_table(table: Table, shares: dict[str, float], seed: int) -> dict[str, Table]:
    """Share a table out by text: a text with all its rows falls into one split; the rest is `train`."""
    keys = text_keys(table)
    texts = list(dict.fromkeys(keys))
    random.Random(seed).shuffle(texts)
    part_of = dict.fromkeys(texts, "train")
    start = 0
    for name, share in shares.items():
        end = start + max(1, round(share * len(texts)))
        part_of.update(dict.fromkeys(texts[start:end], name))
        start = end
    parts = {name: [i for i, key in enumerate(keys) if part_of[key] == name] for name in ("train", *shares)}
    if empty := [name for name, rows in parts.items() if not rows]:
        raise ValueError(f"{len(texts)} different texts are too few to leave any for {', '.join(empty)}")
    return {name: _chosen(table, rows) for name, rows in parts.items()}


def _split(task: TaskArguments, tables: dict[str, Table]) -> dict[str, Table]:
    """Cut the splits that the source does not give from its training table."""
    shares = {"validation": task.validation_share, "test": task.test_share}
    if task.test_split == "none":
        shares.pop("test")
    shares = {name: share for name, share in shares.items() if name not in tables and share > 0}
    splits = {**tables, **(cut_table(tables["train"], shares, task.split_seed) if shares else {})}
    if "validation" not in splits:
        raise ValueError("there is nothing to choose the best checkpoint on: give a validation split or a share")
    return splits


def _warn_of_shared_texts(splits: dict[str, Table]) -> None:
    known = set(text_keys(splits["train"]))
    for name, table in splits.items():
        shared = sum(key in known for key in text_keys(table))
        if name != "train" and shared:
            logger.warning("%d of the %d %s texts are training texts too", shared, len(table["text"]), name)


# labels and the sets


def _natural(label: str) -> tuple[bool, int, str]:
    return (True, 0, label) if not label.isdecimal() else (False, int(label), label)


def _names_in(table: Table) -> set[str]:
    return {name for label in table["label"] for name in ([label] if isinstance(label, str) else label)}


def _label_names(task: TaskArguments, splits: dict[str, Table], order: Sequence[str]) -> list[str]:
    """List the training labels in the order of their ids, and refuse a split that has others."""
    if task.problem_type == "regression":
        return _columns(task)["label"]
    known = _names_in(splits["train"])
    for name, table in splits.items():
        if unseen := _names_in(table) - known:
            raise ValueError(
                f"the {name} data has labels that the training data lacks: {_shown(sorted(unseen, key=_natural))}; "
                "train on them, or take their rows out"
            )
    if len(known) < (2 if task.problem_type == "single_label_classification" else 1):
        raise ValueError(f"the training data has too few labels to learn from: {_shown(known) or 'none at all'}")
    return [n for n in order if n in known] or task.label_columns or sorted(known, key=_natural)


def _sample(task: TaskArguments, table: Table) -> Table:
    rows = len(table["text"])
    if task.max_rows is None or rows <= task.max_rows:
        return table
    return _chosen(table, sorted(random.Random(task.split_seed).sample(range(rows), task.max_rows)))


def load_splits(task: TaskArguments) -> Splits:
    """Read, check and split the texts that a task names."""
    source = read_source(task)
    tables = {name: prepare_table(task, table, name) for name, table in source.tables.items()}
    splits = _split(task, tables)
    _warn_of_shared_texts(splits)
    labels = _label_names(task, splits, source.label_order)
    sets = {name: Dataset.from_dict(_sample(task, table)) for name, table in splits.items()}
    facts = {
        **source.facts,
        "columns": {part: ", ".join(names) for part, names in _columns(task).items()},
        "rows_read": {name: len(next(iter(table.values()))) for name, table in source.tables.items()},
        "rows": {name: len(rows) for name, rows in sets.items()},
        "labels": labels,
    }
    return Splits(sets["train"], sets["validation"], sets.get("test"), labels, facts)


def _label_ids(problem: str, label: Any, ids: dict[str, int]) -> Any:
    """Turn a label into what the loss reads: a class, a 0/1 for each label, or the numbers."""
    if problem == "single_label_classification":
        return ids[label]
    if problem == "multi_label_classification":
        return [float(name in label) for name in ids]
    return label


def encode(rows: Dataset, tokenizer: PreTrainedTokenizerBase, task: TaskArguments, labels: Sequence[str]) -> Dataset:
    """Turn texts into token ids, without padding, and labels into numbers."""
    ids = {name: index for index, name in enumerate(labels)}
    length = min(task.max_length, tokenizer.model_max_length)

    def to_numbers(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        encoded = tokenizer(batch["text"], batch.get("text_pair"), truncation=True, max_length=length)
        return {**encoded, "labels": [_label_ids(task.problem_type, label, ids) for label in batch["label"]]}

    # a fingerprint of its own: nothing is cached, so nothing needs hashing
    return rows.map(
        to_numbers,
        batched=True,
        remove_columns=rows.column_names,
        keep_in_memory=True,
        new_fingerprint=uuid.uuid4().hex,
        desc="Turning texts into token ids",
    )
