"""What a run must know of its task, whichever that is.

A task reads tables into rows, rows into features, and the network's outputs into answers and scores. Loading,
training and telling ask it, and know of no task themselves. Each task has a file of its own; `task_table` lists them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from datasets import Dataset
from transformers import DataCollatorWithPadding, EvalPrediction, PreTrainedModel, PreTrainedTokenizerBase

from .arguments import TaskArguments
from .class_losses import read_weights, teach_by
from .metrics import greater_is_better, metric_names
from .sources import Table
from .tables import Key, check_columns, read_texts, text_keys, without_blanks
from .token_counts import TextReader

Batch = dict[str, list[Any]]
Scores = dict[str, float]
Scorer = Callable[[EvalPrediction], Scores]


@dataclass(frozen=True)
class Held:
    """A split that answers are judged on: its rows as they were prepared, and as the network reads them."""

    rows: Dataset
    features: Dataset


class Task(ABC):
    """One kind of head, told of the settings of a run.

    auto_class: the class of transformers that builds and loads the head.
    text_parts: the parts of a row that hold text; a row in which one is empty can be dropped.
    label_arguments: what the model is given as labels, or None for what its signature says.
    """

    auto_class: Any
    text_parts: tuple[str, ...] = ("text", "text_pair")
    label_arguments: list[str] | None = None

    def __init__(self, settings: TaskArguments) -> None:
        self.settings = settings

    @property
    def problem(self) -> str:
        """The name under which metrics and the card know the task."""
        return self.settings.problem

    # tables to rows

    @abstractmethod
    def columns(self) -> dict[str, list[str]]:
        """Name the columns that play each part."""

    @abstractmethod
    def rows(self, table: Table, split: str) -> Table:
        """Check the cells of a table that has every column, and return one column a part."""

    def text_columns(self, table: Table, split: str) -> Table:
        """Check and return the columns of text that there are, by part."""
        named = {part: names[0] for part, names in self.columns().items() if part in self.text_parts and names}
        return {part: read_texts(table[name], name, split, self.settings.list_joiner) for part, name in named.items()}

    def prepare(self, table: Table, split: str) -> Table:
        """Check a table and reduce it to its parts, one column each."""
        columns = self.columns()
        read = [name for names in columns.values() for name in names]
        check_columns(table, read, split)
        texts = [name for part in self.text_parts for name in columns.get(part, [])]
        return self.rows(without_blanks(table, read, texts) if self.settings.drop_empty_texts else table, split)

    def keys(self, table: Any) -> list[Key]:
        """Give each row a key that rows with the same words share."""
        return text_keys(table)

    def repeats(self, table: Any) -> list[Key]:
        """Give each row a key that rows of the same input share."""
        return self.keys(table)

    def split_keys(self, table: Any) -> list[Key]:
        """Give each row a key that rows share which may not fall into two splits."""
        return self.keys(table)

    def texts(self, rows: Dataset) -> Iterable[str]:
        """Give every text, for a vocabulary."""
        return [text for part in self.text_parts if part in rows.features for text in rows[part][:]]

    def learnt(self, table: Table) -> Table:
        """Choose from the training rows those that can be learnt from."""
        return table

    @abstractmethod
    def label_names(self, splits: Mapping[str, Table], order: Sequence[str]) -> list[str]:
        """List the labels in the order of their ids, and refuse a split with others than the training rows have.

        order: the labels as the source itself orders them, if it does.
        """

    # rows to features

    def config_fields(self, labels: Sequence[str]) -> dict[str, Any]:
        """Return what the model's config is told of the labels."""
        return {
            "id2label": dict(enumerate(labels)),
            "label2id": {name: index for index, name in enumerate(labels)},
        }

    def equip(self, model: PreTrainedModel) -> PreTrainedModel:
        """Let a model read the features of this task; what is saved stays a plain model."""
        # the base model may have been told how another task reads
        vars(model.config).pop("reading", None)
        return model

    def taught_labels(self, rows: Dataset) -> Iterable[str]:
        """Give the label of each item that is taught, for tasks of one label an item."""
        raise ValueError(f"{self.problem} teaches no items of one label each: leave class_weights out")

    def shape_loss(self, model: PreTrainedModel, rows: Dataset, labels: Sequence[str]) -> PreTrainedModel:
        """Let a model be taught by the loss that is asked for; `rows` are those of the training."""
        told = self.settings
        if not told.class_weights and not told.label_smoothing:
            return model
        weights = read_weights(told.class_weights, labels, self.taught_labels(rows)) if told.class_weights else None
        return teach_by(model, weights, told.label_smoothing)

    def tell_of_parts(self, parts: int) -> None:  # noqa: B027 - most tasks have nothing to tell
        """Warn, where it matters, that a step is taken in so many parts, each with a loss of its own."""

    @abstractmethod
    def features(self, batch: Batch, reader: TextReader, labels: Sequence[str]) -> Batch:
        """Turn rows into what the network reads; there may be more features than rows."""

    def collator(self, tokenizer: PreTrainedTokenizerBase) -> Callable[..., Any]:
        """Return what lays features of several lengths out as one batch."""
        return DataCollatorWithPadding(tokenizer)

    # outputs to answers

    def metric_names(self, labels: Sequence[str]) -> tuple[str, ...]:
        """Name the scores of an evaluation; the first chooses the checkpoint."""
        return metric_names(self.problem)

    def greater_is_better(self, labels: Sequence[str]) -> bool:
        """Say in which direction the first score improves."""
        return greater_is_better(self.problem)

    def kept_outputs(self, outputs: Any, labels: Any) -> Any:
        """Keep of a batch's outputs what the scores need: all that is kept is gathered over the whole split."""
        return outputs[0] if isinstance(outputs, tuple) else outputs

    @abstractmethod
    def scorer(self, held: Held, labels: Sequence[str], before: Mapping[str, Scores]) -> Scorer:
        """Build the Trainer's `compute_metrics` for one split, whose features are answered in their order.

        before: what the splits scored before had, by name.
        """

    @abstractmethod
    def answers(self, held: Held, outputs: Any, labels: Sequence[str], shown: Sequence[int]) -> list[dict[str, Any]]:
        """Put rows, by their numbers, beside what was `predicted`, with what `score`, and the right `label`."""


def first_output(outputs: Any) -> np.ndarray:
    """Unpack the logits from the tuple that a model with more outputs gives."""
    while isinstance(outputs, (tuple, list)):
        outputs = outputs[0]
    return np.asarray(outputs)
