"""Vectors whose cosine says how alike two texts are, learnt from pairs that belong together.

Each row is a pair. Pairs that belong together are learnt from, with all other texts of the batch as what does not
belong; the two texts of a row never part, and texts that are linked by such pairs count as one group. What is known of
the held-out pairs decides how they are scored: nothing (all belong together), a yes or no, or a number.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from transformers import AutoModelForTextEncoding, EvalPrediction, PreTrainedTokenizerBase

from .metrics import IGNORED
from .pair_metrics import binary_scores, graded_scores, retrieval_scores
from .sources import Table
from .tables import Key, chosen, read_cells, read_texts, row_length
from .task_sequences import finite_numbers
from .tasks import Batch, Held, Scorer, Scores, Task, first_output
from .token_counts import TextReader

logger = logging.getLogger(__name__)

YES_OR_NO = ["0", "1"]


def linked_groups(pairs: Sequence[tuple[str, str]]) -> dict[str, int]:
    """Number texts so that those which pairs link, directly or through others, have the same number."""
    parent: dict[str, str] = {}

    def root(text: str) -> str:
        while parent.setdefault(text, text) != text:
            parent[text] = text = parent[parent[text]]
        return text

    for first, second in pairs:
        parent[root(second)] = root(first)
    numbers: dict[str, int] = {}
    return {text: numbers.setdefault(root(text), len(numbers)) for text in list(parent)}


class PairCollator:
    """Lay the two texts of each row out side by side, [2 * rows, length], and give both the row's group."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, Any]:
        """Return tensors."""
        names = [name for name in self.tokenizer.model_input_names if name in features[0]]
        rows = [{name: feature[name][side] for name in names} for feature in features for side in (0, 1)]
        batch = self.tokenizer.pad(rows, padding_side="right", return_tensors="pt")
        groups = batch["input_ids"].new_tensor([feature["labels"] for feature in features])
        return {**batch, "labels": groups.repeat_interleave(2)}


class SentenceEmbedding(Task):
    """A vector for each text."""

    auto_class = AutoModelForTextEncoding

    def columns(self) -> dict[str, list[str]]:
        """Name the columns of both texts, and of the label if there is one."""
        task = self.settings
        label = {} if task.label_column == "none" else {"label": [task.label_column]}
        return {"text": [task.text_column], "text_pair": [str(task.text_pair_column)], **label}

    def rows(self, table: Table, split: str) -> Table:
        """Check texts and scores; a pair without a label belongs together."""
        columns = self.columns()
        rows: Table = {part: read_texts(table[columns[part][0]], columns[part][0], split) for part in self.text_parts}
        labels: Sequence[Any] = [1.0] * row_length(rows)
        if "label" in columns:
            (name,) = columns["label"]
            where = f"the label ({name}) of row {{}} of the {split} data"
            labels = read_cells(zip(table[name], strict=True), lambda cells: finite_numbers(cells)[0], where)
        keys = self.keys(rows)
        together = [self._belong(label) for label in labels]
        groups = linked_groups([(key[0], key[1]) for key, own in zip(keys, together, strict=True) if own])
        numbers = [groups[key[0]] if own else IGNORED for key, own in zip(keys, together, strict=True)]
        return {**rows, "label": labels, "group": numbers}

    def _belong(self, label: float) -> bool:
        return label >= (1 if self.settings.positive_score is None else self.settings.positive_score)

    def split_keys(self, table: Any) -> list[Key]:
        """Keep all pairs that share a text, directly or through other pairs, in one split."""
        pairs = [(key[0], key[1]) for key in self.keys(table)]
        groups = linked_groups(pairs)
        return [(str(groups[first]),) for first, _ in pairs]

    def learnt(self, table: Table) -> Table:
        """Keep the pairs that belong together: the others would be taken for strangers of what they resemble."""
        kept = [number for number, group in enumerate(table["group"]) if group != IGNORED]
        if not kept:
            raise ValueError(
                f"no pair of the training data has a {self.settings.label_column} of 1 or more, or of positive_score: "
                "there is nothing to learn from"
            )
        return chosen(table, kept)

    def label_names(self, splits: Mapping[str, Table], order: Sequence[str]) -> list[str]:
        """Say what is known of the pairs: nothing, no or yes, or the number of that name."""
        if "label" not in self.columns():
            return []
        values = {label for table in splits.values() for label in table["label"]}
        if values - {0, 1}:
            if self.settings.positive_score is None:
                raise ValueError(
                    f"column {self.settings.label_column} holds numbers from {min(values):g} to {max(values):g}: say "
                    "by positive_score from which on a pair belongs together"
                )
            return [self.settings.label_column]
        for name in splits.keys() - {"train"}:
            if len(set(splits[name]["label"])) < 2:
                raise ValueError(f"the {name} data must have pairs of both kinds, 0 and 1, to tell them apart")
        return YES_OR_NO

    def config_fields(self, labels: Sequence[str]) -> dict[str, Any]:
        """Tell nothing: the head has no labels."""
        return {}

    def tell_of_parts(self, parts: int) -> None:
        """Warn that a text is told from those of its own part alone."""
        if parts > 1:
            logger.warning(
                "a step is taken in %d parts (processes, gradient_accumulation_steps), and a text learns to differ "
                "from the texts of its own part alone: a larger per_device_train_batch_size gives it more of them",
                parts,
            )

    def features(self, batch: Batch, reader: TextReader, labels: Sequence[str]) -> Batch:
        """Read both texts of each pair, each by itself."""
        sides = [reader.read(batch[part]) for part in self.text_parts]
        pairs = {name: [list(pair) for pair in zip(*(side[name] for side in sides), strict=True)] for name in sides[0]}
        lengths = [max(map(len, pair)) for pair in pairs["input_ids"]]
        return {**pairs, "labels": batch["group"], "length": lengths}

    def collator(self, tokenizer: PreTrainedTokenizerBase) -> Callable[..., Any]:
        """Return what keeps the texts of a pair in one batch."""
        return PairCollator(tokenizer)

    def kept_outputs(self, outputs: Any, labels: Any) -> Any:
        """Keep the two vectors of each row, [rows, 2, width]."""
        vectors = super().kept_outputs(outputs, labels)
        return vectors.view(-1, 2, vectors.shape[-1])

    def metric_names(self, labels: Sequence[str]) -> tuple[str, ...]:
        """Name the scores that what is known of the pairs allows."""
        if labels == YES_OR_NO:
            return "average_precision", "accuracy", "cosine_threshold"
        return ("spearman", "pearson") if labels else ("mean_reciprocal_rank", "nearest")

    def greater_is_better(self, labels: Sequence[str]) -> bool:
        """All the first scores grow with quality."""
        return True

    def scorer(self, held: Held, labels: Sequence[str], before: Mapping[str, Scores]) -> Scorer:
        """Score cosines; the threshold of the validation split, once it is scored, parts the others."""
        known = np.array(held.rows["label"][:])
        threshold = before.get("validation", {}).get("cosine_threshold")

        def score(evaluation: EvalPrediction) -> Scores:
            vectors = first_output(evaluation.predictions).astype(np.float64)
            if not np.isfinite(vectors).all():
                return dict.fromkeys(self.metric_names(labels), float("nan"))
            cosines = (vectors[:, 0] * vectors[:, 1]).sum(axis=-1)
            if labels == YES_OR_NO:
                return binary_scores(cosines, known, threshold)
            return graded_scores(cosines, known) if labels else retrieval_scores(vectors[:, 0], vectors[:, 1])

        return score

    def answers(self, held: Held, outputs: Any, labels: Sequence[str], shown: Sequence[int]) -> list[dict[str, Any]]:
        """Give the cosines of a few pairs."""
        vectors = first_output(outputs).astype(np.float64)
        cosines = (vectors[:, 0] * vectors[:, 1]).sum(axis=-1)
        rows = [(index, dict(held.rows[index])) for index in shown]
        return [
            {
                "text": row["text"],
                "text_pair": row["text_pair"],
                "predicted": round(float(cosines[index]), 4),
                "score": None,
                "label": row["label"] if labels else "a pair",
            }
            for index, row in rows
        ]
