"""Which of several texts goes with a first one: answers to a question, endings of a story, the more similar case.

Every choice is read together with the text, the longer of the two being cut first, and gets one score; the softmax is
over the choices of a row. Rows may have different numbers of choices: a choice without a token takes no part.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from transformers import AutoModelForMultipleChoice, EvalPrediction, PreTrainedTokenizerBase

from .metrics import metrics_for
from .sources import Table
from .tables import Key, is_blank, read_cells, spaced_alike, text_keys
from .task_sequences import best_label
from .tasks import Batch, Held, Scorer, Scores, Task, first_output
from .token_counts import TextReader

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def _choices(cells: Sequence[Any]) -> list[str]:
    """Return the choices of a row: a cell each, or one cell with a list of them; those at the end may be missing."""
    choices = list(cells[0]) if len(cells) == 1 and isinstance(cells[0], list) else list(cells)
    while choices and is_blank(choices[-1]):
        choices.pop()
    if wrong := [choice for choice in choices if is_blank(choice) or not isinstance(choice, str)]:
        raise ValueError(f"has the choice {wrong[0]!r}, which is no text")
    if len(choices) < 2:
        raise ValueError(f"has the choices {choices!r}; there must be two or more (choice_columns says where)")
    return choices


def _right_choice(label: Any, choices: Sequence[str], columns: Sequence[str]) -> int:
    """Return the number of the right choice, from 0: a number tells it; text is its name, its words or its number.

    Its name is that of its column; the choices of one column are called A, B, C ...
    """
    word = str(label).strip()
    numbers = [str(number) for number in range(len(choices))]
    names = columns if len(columns) > 1 else LETTERS
    tellings = [names[: len(choices)], [choice.strip() for choice in choices], numbers]
    if isinstance(label, int) and not isinstance(label, bool):
        tellings = [numbers]
    found = ([number for number, name in enumerate(telling) if name == word] for telling in tellings)
    meant = next(filter(None, found), [])
    if len(meant) != 1:
        fault = "could mean several of them" if len(meant) > 1 else "is none of them"
        raise ValueError(
            f"has {len(choices)} choices, and the label {label!r} {fault}: give its number from 0, the name of "
            "its column (A, B, C ... where one column holds all) or its text"
        )
    return meant.pop()


class ChoiceCollator:
    """Lay the choices of all rows out as one block, [batch, choices, length]; missing ones are without tokens."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, Any]:
        """Return tensors."""
        most = max(len(feature["input_ids"]) for feature in features)
        names = [name for name in self.tokenizer.model_input_names if name in features[0]]
        rows = [
            {name: feature[name][choice] if choice < len(feature[name]) else [] for name in names}
            for feature in features
            for choice in range(most)
        ]
        batch = self.tokenizer.pad(rows, padding_side="right", return_tensors="pt")
        laid_out = {name: tensor.view(len(features), most, -1) for name, tensor in batch.items()}
        labels = batch["input_ids"].new_tensor([feature["labels"] for feature in features])
        return {**laid_out, "labels": labels}


class MultipleChoice(Task):
    """The right one of several texts."""

    auto_class = AutoModelForMultipleChoice

    def columns(self) -> dict[str, list[str]]:
        """Name the columns of the text, the question if there is one, the choices and the label."""
        task = self.settings
        pair = {"text_pair": [task.text_pair_column]} if task.text_pair_column else {}
        return {
            "text": [task.text_column],
            **pair,
            "choices": list(task.choice_columns or ()),
            "label": [task.label_column],
        }

    def rows(self, table: Table, split: str) -> Table:
        """Check texts and choices, and read which choice is right."""
        columns = self.columns()
        rows = self.text_columns(table, split)

        def read(cells: tuple[Any, ...]) -> tuple[list[str], int]:
            choices = _choices(cells[:-1])
            return choices, _right_choice(cells[-1], choices, columns["choices"])

        names = [*columns["choices"], *columns["label"]]
        cells = zip(*(table[name] for name in names), strict=True)
        read_rows = read_cells(cells, read, f"row {{}} of the {split} data ({', '.join(names)})")
        return {**rows, "choices": [choices for choices, _ in read_rows], "label": [label for _, label in read_rows]}

    def keys(self, table: Any) -> list[Key]:
        """Keep all that is asked about a text together."""
        return [(spaced_alike(text),) for text in table["text"]]

    def repeats(self, table: Any) -> list[Key]:
        """Give rows of the same text, question and choices the same key."""
        texts = text_keys(table)
        return [(*key, *map(spaced_alike, choices)) for key, choices in zip(texts, table["choices"], strict=True)]

    def texts(self, rows: Any) -> list[str]:
        """Give every text, question and choice, for a vocabulary."""
        return [*super().texts(rows), *(choice for choices in rows["choices"] for choice in choices)]

    def label_names(self, splits: Mapping[str, Table], order: Sequence[str]) -> list[str]:
        """Name the choices by their columns, or else number them."""
        columns = self.columns()["choices"]
        most = max(len(choices) for table in splits.values() for choices in table["choices"])
        return columns if len(columns) == most else [str(number) for number in range(most)]

    def features(self, batch: Batch, reader: TextReader, labels: Sequence[str]) -> Batch:
        """Read the text with each of its choices; a question goes before the choice."""
        counts = [len(choices) for choices in batch["choices"]]
        texts = [text for text, count in zip(batch["text"], counts, strict=True) for _ in range(count)]
        questions = [f"{question} " for question in batch["text_pair"]] if "text_pair" in batch else [""] * len(counts)
        rows = zip(questions, batch["choices"], strict=True)
        encoded = reader.read(texts, [question + choice for question, choices in rows for choice in choices])
        ends = np.cumsum(counts)
        nested = {
            name: [column[end - count : end] for end, count in zip(ends, counts, strict=True)]
            for name, column in encoded.items()
        }
        lengths = [max(map(len, row)) for row in nested["input_ids"]]
        return {**nested, "labels": batch["label"], "length": lengths}

    def collator(self, tokenizer: PreTrainedTokenizerBase) -> Callable[..., Any]:
        """Return what lays choices out as a block."""
        return ChoiceCollator(tokenizer)

    def _scores(self, held: Held, outputs: Any) -> np.ndarray:
        """Return the scores of all rows, minus infinity where a row has no such choice."""
        logits = first_output(outputs).astype(np.float64)
        counts = np.array([len(choices) for choices in held.rows["choices"]])
        return np.where(np.arange(logits.shape[1]) < counts[:, None], logits, -np.inf)

    def scorer(self, held: Held, labels: Sequence[str], before: Mapping[str, Scores]) -> Scorer:
        """Score how often the right choice is the best."""

        def score(evaluation: EvalPrediction) -> Scores:
            scores = self._scores(held, evaluation.predictions)
            compute = metrics_for(self.problem, scores.shape[1], extra=self.settings.metrics or ())
            return compute(EvalPrediction(scores, first_output(evaluation.label_ids)))

        return score

    def answers(self, held: Held, outputs: Any, labels: Sequence[str], shown: Sequence[int]) -> list[dict[str, Any]]:
        """Name the best choices of a few rows, with their probability among the choices."""
        scores = self._scores(held, outputs)
        rows = [(index, dict(held.rows[index])) for index in shown]
        return [{**row, **best_label(scores[index], labels), "label": labels[row["label"]]} for index, row in rows]
