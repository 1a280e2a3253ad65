"""One answer a text, or a pair of texts: a label, several, or numbers."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from datasets import Dataset
from transformers import AutoModelForSequenceClassification

from .arguments import TaskArguments
from .metrics import metrics_for
from .sources import Table
from .tables import is_blank, read_cells, refuse_mixed_types, shown
from .tasks import Batch, Held, Scorer, Scores, Task, first_output
from .token_counts import TextReader

Cells = tuple[Any, ...]


def declared(value: Any, names: Sequence[str] | None) -> str:
    """Return the name of a label, which may be given as its number where all names are declared."""
    word = str(value).strip()
    if not names or word in names:
        return word
    if word.isdecimal() and int(word) < len(names):
        return names[int(word)]
    raise ValueError(
        f"is {value!r}, which is neither one of the {len(names)} labels that are declared, {shown(names)}, nor the "
        f"number of one, from 0 to {len(names) - 1}"
    )


def _single_label(values: Cells, task: TaskArguments) -> str:
    (value,) = values
    if is_blank(value) or isinstance(value, (list, dict)):
        raise ValueError(f"is {value!r}, which is not one label")
    return declared(value, task.labels)


def _switched_on(value: Any) -> bool:
    words = {"1": True, "true": True, "1.0": True, "0": False, "false": False, "0.0": False}
    if str(value).strip().lower() not in words:
        raise ValueError(f"is {value!r}, which is not 0 or 1")
    return words[str(value).strip().lower()]


def _several_labels(values: Cells, task: TaskArguments) -> list[str]:
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
    return sorted({declared(label, task.labels) for label in value if not is_blank(label)})


def finite_numbers(values: Cells) -> list[float]:
    """Read numbers, and refuse what is none."""
    try:
        numbers = [float(value) for value in values]
    except (TypeError, ValueError):
        numbers = [math.nan]
    if not all(map(math.isfinite, numbers)):
        raise ValueError(f"is {shown(values)}, which is not a finite number")
    return numbers


def _numbers(values: Cells, task: TaskArguments) -> list[float]:
    return finite_numbers(values)


LABEL_READERS: dict[str, Callable[[Cells, TaskArguments], Any]] = {
    "single_label_classification": _single_label,
    "multi_label_classification": _several_labels,
    "regression": _numbers,
}


def _natural(label: str) -> tuple[bool, int, str]:
    """Give the key by which numbers sort as numbers, before words."""
    return (True, 0, label) if not label.isdecimal() else (False, int(label), label)


def _names_in(table: Table) -> set[str]:
    return {name for label in table["label"] for name in ([label] if isinstance(label, str) else label)}


def known_labels(
    splits: Mapping[str, Table], least: int, order: Sequence[str], names: Sequence[str] | None
) -> list[str]:
    """List the labels in the order of their ids: all that are declared, or else those of the training rows.

    Refuse too few of them, and a split that has others.
    order: the labels as their source orders them; else numbers come by size, and words by the alphabet behind them.
    """
    if names:
        return list(names)
    known = _names_in(splits["train"])
    for name, table in splits.items():
        if unseen := _names_in(table) - known:
            raise ValueError(
                f"the {name} data has labels that the training data lacks: {shown(sorted(unseen, key=_natural))}; "
                "train on them, take their rows out, or declare all labels by the setting labels"
            )
    if len(known) < least:
        raise ValueError(f"the training data has too few labels to learn from: {shown(known) or 'none at all'}")
    return [name for name in order if name in known] or sorted(known, key=_natural)


def _label_ids(problem: str, label: Any, ids: dict[str, int]) -> Any:
    """Turn a label into what the loss reads: a class, a 0/1 for each label, or the numbers."""
    if problem == "single_label_classification":
        return ids[label]
    if problem == "multi_label_classification":
        return [float(name in label) for name in ids]
    return label


def best_label(logits: np.ndarray, labels: Sequence[str]) -> dict[str, Any]:
    """Say which label a row of logits means, and how probable it is."""
    best = int(logits.argmax())
    return {"predicted": labels[best], "score": round(float(1 / np.exp(logits - logits[best]).sum()), 4)}


def _read_answer(problem: str, logits: np.ndarray, labels: Sequence[str]) -> dict[str, Any]:
    """Say in labels, or in numbers, what a row of logits means."""
    if problem == "regression":
        values = [round(float(value), 4) for value in logits]
        return {"predicted": values[0] if len(values) == 1 else values, "score": None}
    if problem == "multi_label_classification":
        shares = {name: round(float(1 / (1 + np.exp(-logit))), 4) for name, logit in zip(labels, logits, strict=True)}
        chosen = [name for name, logit in zip(labels, logits, strict=True) if logit > 0]
        return {"predicted": chosen, "score": [shares[name] for name in chosen]}
    return best_label(logits, labels)


def _true_answer(label: Any) -> Any:
    return label[0] if isinstance(label, list) and len(label) == 1 and isinstance(label[0], float) else label


class SequenceClassification(Task):
    """A label, several labels or numbers for each text or pair of texts."""

    auto_class = AutoModelForSequenceClassification

    def columns(self) -> dict[str, list[str]]:
        """Name the columns that play each part."""
        task = self.settings
        pair = {"text_pair": [task.text_pair_column]} if task.text_pair_column else {}
        return {"text": [task.text_column], **pair, "label": task.label_columns or [task.label_column]}

    def _refuse_mixed_labels(self, table: Table, split: str) -> None:
        if self.problem == "regression" or self.settings.label_columns:
            return
        name = self.settings.label_column
        values = list(table[name])
        if self.problem == "multi_label_classification":
            values = [value if isinstance(value, list) else None for value in values]
        refuse_mixed_types(values, f"column {name} of the {split} data")

    def rows(self, table: Table, split: str) -> Table:
        """Check texts and labels."""
        columns = self.columns()
        rows = self.text_columns(table, split)
        self._refuse_mixed_labels(table, split)
        read = LABEL_READERS[self.settings.problem_type]
        cells = zip(*(table[name] for name in columns["label"]), strict=True)
        where = f"the label ({', '.join(columns['label'])}) of row {{}} of the {split} data"
        rows["label"] = read_cells(cells, lambda values: read(values, self.settings), where)
        return rows

    def label_names(self, splits: Mapping[str, Table], order: Sequence[str]) -> list[str]:
        """List the training labels, or the columns of the numbers."""
        if self.problem == "regression":
            return self.columns()["label"]
        least = 2 if self.problem == "single_label_classification" else 1
        # columns are declared by being named
        return known_labels(splits, least, order, self.settings.labels or self.settings.label_columns)

    def config_fields(self, labels: Sequence[str]) -> dict[str, Any]:
        """Return the labels, and which problem they pose."""
        return {**super().config_fields(labels), "problem_type": self.problem}

    def taught_labels(self, rows: Dataset) -> list[str]:
        """Give the label of each text."""
        return rows["label"][:]

    def label_numbers(self, answers: Sequence[Any], labels: Sequence[str]) -> list[Any]:
        """Turn labels into what the loss reads."""
        ids = {name: index for index, name in enumerate(labels)}
        return [_label_ids(self.problem, label, ids) for label in answers]

    def features(self, batch: Batch, reader: TextReader, labels: Sequence[str]) -> Batch:
        """Turn texts into token ids and labels into numbers."""
        encoded = reader.read(batch["text"], batch.get("text_pair"))
        return {**encoded, "labels": self.label_numbers(batch["label"], labels)}

    def scorer(self, held: Held, labels: Sequence[str], before: Mapping[str, Scores]) -> Scorer:
        """Score by the problem's own metrics and those asked for."""
        return metrics_for(self.problem, len(labels), extra=self.settings.metrics or ())

    def answers(self, held: Held, outputs: Any, labels: Sequence[str], shown: Sequence[int]) -> list[dict[str, Any]]:
        """Read the logits of a few rows."""
        logits = first_output(outputs)
        answers = []
        for index in shown:
            row = dict(held.rows[index])
            label = _true_answer(row.pop("label"))
            answers.append({**row, **_read_answer(self.problem, logits[index], labels), "label": label})
        return answers
