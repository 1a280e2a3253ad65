"""One tag a word: names of people and places by BIO tags, parts of speech, any tags of one's own.

A word's tag stands at its first token; the tokens behind it are not scored, and learn only if labelled_tokens says so.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from datasets import Dataset
from seqeval.metrics.sequence_labeling import get_entities
from transformers import AutoModelForTokenClassification, EvalPrediction, PreTrainedTokenizerBase

from .metrics import CHUNK_TAG, IGNORED, are_chunks, chunk_tags, greater_is_better, metric_names, metrics_for
from .sources import Table
from .tables import Key, is_blank, read_cells, refuse_mixed_types, shown
from .task_sequences import declared, known_labels
from .tasks import Batch, Held, Scorer, Scores, Task, first_output
from .token_counts import TextReader


def _items(cell: Any, separator: str | None, what: str) -> list[str]:
    """Return the words or tags of a cell, which is a list or text with separators."""
    if isinstance(cell, str):
        cell = cell.strip().split(separator)
    if not isinstance(cell, list) or not cell:
        raise ValueError(f"is {cell!r}, which is no list of {what}")
    if wrong := [item for item in cell if is_blank(item) or isinstance(item, (list, dict))]:
        raise ValueError(f"holds {wrong[0]!r}, which is none of the {what}")
    return [str(item).strip() for item in cell]


def _refuse_odd_tags(labels: Sequence[str]) -> None:
    """Refuse a misspelt tag among BIO tags, which would change how all are scored."""
    typed = [name for name in labels if "-" in name and CHUNK_TAG.fullmatch(name)]
    odd = [name for name in labels if not CHUNK_TAG.fullmatch(name)]
    if typed and odd and len(typed) > len(odd):
        raise ValueError(f"the tags {shown(odd)} are not spelt as {shown(typed)} are: begin each with a letter and -")


def _continued(tag: str, ids: Mapping[str, int]) -> int:
    """Return the tag of a word's further tokens: inside what the first one begins."""
    inside = f"I{tag[1:]}" if CHUNK_TAG.fullmatch(tag) and tag[0] == "B" else tag
    return ids[inside if inside in ids else tag]


class WordCollator:
    """Pad features on the right, and their labels with what is ignored."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer

    def __call__(self, features: list[dict[str, Any]]) -> Any:
        """Lay features out as one batch of tensors."""
        labels = [list(feature["labels"]) for feature in features]
        inputs = [{name: value for name, value in feature.items() if name != "labels"} for feature in features]
        batch = self.tokenizer.pad(inputs, padding_side="right", return_tensors="pt")
        length = batch["input_ids"].shape[1]
        padded = [row + [IGNORED] * (length - len(row)) for row in labels]
        return {**batch, "labels": batch["input_ids"].new_tensor(padded)}


class TokenClassification(Task):
    """A tag for each word of a text that comes cut into words."""

    auto_class = AutoModelForTokenClassification
    text_parts = ("text",)

    def columns(self) -> dict[str, list[str]]:
        """Name the columns of the words and of the tags."""
        return {"text": [self.settings.text_column], "label": [self.settings.label_column]}

    def rows(self, table: Table, split: str) -> Table:
        """Read words and tags, as many of one as of the other."""
        separator = self.settings.word_separator
        columns = {"text": self.settings.text_column, "label": self.settings.label_column}

        def read(cells: tuple[Any, ...]) -> list[list[str]]:
            words, tags = _items(cells[0], separator, "words"), _items(cells[1], separator, "tags")
            if len(words) != len(tags):
                raise ValueError(f"has {len(words)} words and {len(tags)} tags; give each word one tag")
            return [words, [declared(tag, self.settings.labels) for tag in tags]]

        refuse_mixed_types(table[columns["label"]], f"column {columns['label']} of the {split} data")
        where = f"row {{}} of the {split} data ({', '.join(columns.values())})"
        cells = zip(*(table[name] for name in columns.values()), strict=True)
        read_rows = read_cells(cells, read, where)
        return {"text": [words for words, _ in read_rows], "label": [tags for _, tags in read_rows]}

    def keys(self, table: Any) -> list[Key]:
        """Give sentences of the same characters the same key, however they are cut into words."""
        return [("".join("".join(words).split()),) for words in table["text"]]

    def texts(self, rows: Dataset) -> list[str]:
        """Give every word, for a vocabulary."""
        return [word for words in rows["text"] for word in words]

    def label_names(self, splits: Mapping[str, Table], order: Sequence[str]) -> list[str]:
        """List the tags of the training words."""
        labels = known_labels(splits, 2, order, self.settings.labels)
        _refuse_odd_tags(labels)
        return labels

    def taught_labels(self, rows: Dataset) -> list[str]:
        """Give the tag of each word."""
        return [tag for tags in rows["label"] for tag in tags]

    def features(self, batch: Batch, reader: TextReader, labels: Sequence[str]) -> Batch:
        """Turn words into token ids, and put each tag at its word's first token."""
        ids = {name: index for index, name in enumerate(labels)}
        everywhere = self.settings.labelled_tokens == "all"
        encoded = reader.read(batch["text"], is_split_into_words=True)
        targets, starts, read = [], [], []
        for row, tags in enumerate(batch["label"]):
            words = encoded.word_ids(row)
            first = [n for n, word in enumerate(words) if word is not None and (n == 0 or words[n - 1] != word)]
            rest = [IGNORED if word is None or not everywhere else _continued(tags[word], ids) for word in words]
            for n in first:
                rest[n] = ids[tags[words[n]]]
            targets.append(rest)
            starts.append(first)
            read.append([words[n] for n in first])
        return {**encoded, "labels": targets, "word_starts": starts, "words_read": read}

    def collator(self, tokenizer: PreTrainedTokenizerBase) -> Callable[..., Any]:
        """Return what pads features and labels alike."""
        return WordCollator(tokenizer)

    def _scored_as(self, labels: Sequence[str]) -> str:
        return "token_classification" if are_chunks(labels) else "word_tags"

    def metric_names(self, labels: Sequence[str]) -> tuple[str, ...]:
        """Name the scores of whole entities, or where the tags are no chunks, those of words."""
        return metric_names(self._scored_as(labels))

    def greater_is_better(self, labels: Sequence[str]) -> bool:
        """Say in which direction the first score improves."""
        return greater_is_better(self._scored_as(labels))

    def scorer(self, held: Held, labels: Sequence[str], before: Mapping[str, Scores]) -> Scorer:
        """Score the first token of each word."""
        compute = metrics_for(
            self._scored_as(labels), len(labels), label_names=labels, extra=self.settings.metrics or ()
        )
        starts = held.features["word_starts"][:]

        def score(evaluation: EvalPrediction) -> Scores:
            targets = first_output(evaluation.label_ids)
            is_first = np.zeros(targets.shape, dtype=bool)
            for row, columns in enumerate(starts):
                is_first[row, columns] = True
            return compute(EvalPrediction(evaluation.predictions, np.where(is_first, targets, IGNORED)))

        return score

    def answers(self, held: Held, outputs: Any, labels: Sequence[str], shown: Sequence[int]) -> list[dict[str, Any]]:
        """Read the tags of a few texts; the score is the mean probability of the tags of their words."""
        logits = first_output(outputs)
        answers = []
        for index in shown:
            row, features = held.rows[index], held.features[index]
            scores = logits[index, features["word_starts"]]
            best = scores.argmax(axis=-1)
            predicted = {word: labels[tag] for word, tag in zip(features["words_read"], best, strict=True)}
            chances = 1 / np.exp(scores - scores.max(axis=-1, keepdims=True)).sum(axis=-1)
            answers.append(
                {
                    "text": " ".join(row["text"]),
                    "predicted": _told(row["text"], predicted, labels),
                    "score": round(float(chances.mean()), 4) if chances.size else None,
                    "label": _told(row["text"], dict(enumerate(row["label"])), labels),
                }
            )
        return answers


def _told(words: Sequence[str], tags: Mapping[int, str], labels: Sequence[str]) -> list[str]:
    """Tell of whole entities with their type, or of every word with its tag; a word cut off has none."""
    if not are_chunks(labels):
        return [f"{word}/{tags.get(number, '?')}" for number, word in enumerate(words)]
    spelt = chunk_tags([tags.get(number, "O") for number in range(len(words))])
    return [f"{' '.join(words[start : end + 1])} ({kind})" for kind, start, end in get_entities(spelt)]
