"""Questions whose answer is a stretch of a given text (SQuAD, CMRC 2018), on contexts of any length."""

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from functools import wraps
from typing import Any

import numpy as np
from datasets import Dataset
from torch import Tensor
from transformers import AutoModelForQuestionAnswering, EvalPrediction, PreTrainedModel

from .answer_metrics import MATCHING
from .answer_spans import Answer, AnswerReading, Span, Window, answers_of, label_columns, read_windows
from .arguments import TaskArguments
from .sources import Table
from .tables import Key, chosen, read_cells, read_texts, row_length, spaced_alike
from .tasks import Batch, Held, Scorer, Scores, Task
from .token_counts import TextReader

logger = logging.getLogger(__name__)

IGNORED = -100
SHOWN_FAULTS = 3


# answers as they are given


def read_answers(cells: tuple[Any, ...]) -> dict[str, list[Any]]:
    """Read the answers of one question, given in either of the two forms that are in use; none is an empty list."""
    (value,) = cells
    if value is None or value == []:
        return {"text": [], "answer_start": []}
    try:
        if isinstance(value, list):
            value = {key: [answer[key] for answer in value] for key in ("text", "answer_start")}
        texts, starts = list(value["text"]), [int(start) for start in value["answer_start"]]
    except (KeyError, TypeError, ValueError):
        texts, starts = [None], []
    if len(texts) != len(starts) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f'is {value!r:.80}, which is not {{"text": [...], "answer_start": [...]}}')
    return {"text": texts, "answer_start": starts}


def fault_of(context: str, text: str, start: int) -> str | None:
    """Say what is wrong with an answer, if anything is."""
    if not text.strip():
        return f"the answer at {start} is empty"
    if start < 0 or start + len(text) > len(context):
        return f"{text!r:.60} at answer_start {start} leads out of the context, which has {len(context)} characters"
    found = context[start : start + len(text)]
    return None if found == text else f"the answer is {text!r:.60}, but at answer_start {start} stands {found!r:.60}"


def _faults(table: Table) -> list[list[str | None]]:
    pairs = zip(table["context"], table["label"], strict=True)
    return [
        [fault_of(context, *answer) for answer in zip(label["text"], label["answer_start"], strict=True)]
        for context, label in pairs
    ]


def _refuse_faults(table: Table, faults: list[list[str | None]], split: str) -> None:
    told = [(name, fault) for name, row in zip(table["id"], faults, strict=True) for fault in row if fault]
    if told:
        shown = "; ".join(f"question {name}: {fault}" for name, fault in told[:SHOWN_FAULTS])
        raise ValueError(
            f"{len(told)} of the {sum(map(len, faults))} {split} answers are not where they are said to be: {shown}: "
            "correct them, or give drop_bad_answers: true"
        )


def _drop_faults(table: Table, faults: list[list[str | None]], split: str) -> Table:
    """Leave out the answers that have a fault, and the questions all of whose answers have one."""
    labels = []
    for label, row in zip(table["label"], faults, strict=True):
        good = [number for number, fault in enumerate(row) if not fault]
        labels.append({part: [values[number] for number in good] for part, values in label.items()})
    kept = [n for n, (label, row) in enumerate(zip(labels, faults, strict=True)) if label["text"] or not row]
    bad = sum(fault is not None for row in faults for fault in row)
    if bad:
        logger.warning(
            "%d of the %d %s answers are not where they are said to be; they are left out, and with them %d questions",
            *(bad, sum(map(len, faults)), split, len(labels) - len(kept)),
        )
    return chosen({**table, "label": labels}, kept)


def first_answer(label: Mapping[str, Any]) -> Span | None:
    """Return the characters of the first answer, which is the one that is taught."""
    if not label["text"]:
        return None
    start = label["answer_start"][0]
    return start, start + len(label["text"][0])


# windows as features


def _columns_of(window: Window) -> dict[str, Any]:
    return {"null": window.null, "first": window.first, "begin": window.begin, "places": window.places.ravel()}


WINDOW_COLUMNS = ["null", "first", "begin", "places"]


def windows_of(features: Dataset) -> list[Window]:
    """Rebuild the windows of a split; each row's first one begins at its context's first token."""
    columns = features.select_columns(WINDOW_COLUMNS).with_format("numpy")
    row, windows = -1, []
    for null, first, begin, places in zip(*(columns[name][:] for name in WINDOW_COLUMNS), strict=True):
        row += begin == 0
        windows.append(Window(row, int(null), int(first), int(begin), places.reshape(-1, 2)))
    return windows


# heads that know of starts and ends alone


def take_joined_labels(model: PreTrainedModel) -> None:
    """Let a head of the library's own take start and end as one `labels` [batch, 2], -100 being ignored."""
    plain = model.forward

    @wraps(plain)
    def forward(*args: Any, labels: Tensor | None = None, **inputs: Any) -> Any:
        if labels is not None:
            # the library ignores what lies beyond the row, and takes what lies before it for the first token
            beyond = labels.masked_fill(labels < 0, inputs["input_ids"].shape[-1])
            inputs["start_positions"], inputs["end_positions"] = beyond.unbind(dim=-1)
        return plain(*args, **inputs)

    model.forward = forward


class QuestionAnswering(Task):
    """Find the stretch of a context that answers a question, or that there is none."""

    auto_class = AutoModelForQuestionAnswering
    text_parts = ("question", "context")

    def __init__(self, settings: TaskArguments) -> None:
        super().__init__(settings)
        self.label_arguments = ["labels"]
        if settings.metrics:
            raise ValueError(f"metrics {settings.metrics} are for labels and numbers; answers are scored by their own")
        matching = "cmrc" if "zh" in (settings.language or ()) else "squad"
        self.metric = MATCHING[settings.answer_matching or matching]

    def reading(self, max_length: int) -> AnswerReading:
        """Say how questions are read and answered."""
        told = self.settings
        lengths = (max_length, told.window_overlap, told.max_question_length, told.max_answer_length)
        return AnswerReading(*lengths, told.n_best_answers, told.null_threshold)

    # tables to rows

    def columns(self) -> dict[str, list[str]]:
        """Name the columns that play each part."""
        told = self.settings
        parts = {"id": told.id_column, "question": told.question_column, "context": told.context_column}
        return {**{part: [name] for part, name in parts.items()}, "label": [told.answers_column]}

    def prepare(self, table: Table, split: str) -> Table:
        """Number the questions where the table does not name them."""
        if table and self.settings.id_column not in table:
            table = {**table, self.settings.id_column: [str(n) for n in range(1, row_length(table) + 1)]}
        return super().prepare(table, split)

    def rows(self, table: Table, split: str) -> Table:
        """Check texts, and that each answer stands where it is said to."""
        columns = {part: names[0] for part, names in self.columns().items()}
        rows: Table = {"id": [str(name) for name in table[columns["id"]]]}
        for part in self.text_parts:
            rows[part] = read_texts(table[columns[part]], columns[part], split)
        where = f"the answers ({columns['label']}) of row {{}} of the {split} data"
        rows["label"] = read_cells(zip(table[columns["label"]], strict=True), read_answers, where)
        faults = _faults(rows)
        if not self.settings.drop_bad_answers:
            _refuse_faults(rows, faults, split)
        return _drop_faults(rows, faults, split)

    def keys(self, table: Any) -> list[Key]:
        """Give the rows of one context one key: what is asked of it in training tells of what it is asked later."""
        return [(spaced_alike(context),) for context in table["context"]]

    def repeats(self, table: Any) -> list[Key]:
        """Give rows of one question on one context the same key."""
        parts = zip(table["question"], table["context"], strict=True)
        return [tuple(map(spaced_alike, row)) for row in parts]

    def label_names(self, splits: Mapping[str, Table], order: Sequence[str]) -> list[str]:
        """There are no labels; refuse questions without an answer where every question is to have one."""
        for name, table in splits.items():
            without = sum(not label["text"] for label in table["label"])
            if without and self.settings.null_threshold is None:
                raise ValueError(
                    f"{without} of the {row_length(table)} {name} questions have no answer: null_threshold: 0 lets "
                    "the model give none, when that scores higher than any answer"
                )
        return []

    # rows to features

    def config_fields(self, labels: Sequence[str]) -> dict[str, Any]:
        """The model is told of no labels."""
        return {}

    def equip(self, model: PreTrainedModel) -> PreTrainedModel:
        """Let any model take the labels of this task, and keep with it how its questions are to be read."""
        told = self.reading(self.settings.max_length)
        model.config.reading = dataclasses.asdict(told)
        if "labels" not in getattr(model, "_own_label_arguments", ()):
            take_joined_labels(model)
        return model

    def _label(self, window: Window, tokens: Span | None, has_answer: bool) -> Span:
        """Say what a window is taught: its answer, the first token for none, or nothing."""
        if columns := label_columns(window, tokens):
            return columns
        unreachable = has_answer and tokens is None
        ignored = unreachable or (has_answer and self.settings.windows_without_answer == "ignore")
        return (IGNORED, IGNORED) if ignored else (window.null, window.null)

    def features(self, batch: Batch, reader: TextReader, labels: Sequence[str]) -> Batch:
        """Turn questions into windows, with what each column stands for."""
        if reader.tokenizer.padding_side != "right":
            raise ValueError(
                "the tokenizer pads on the left, which would move answers: set its padding_side to 'right'"
            )
        spans = [first_answer(label) for label in batch["label"]]
        read = read_windows(
            reader.tokenizer, batch["question"], batch["context"], self.reading(reader.max_length), spans
        )
        reader.count(read.inputs["input_ids"], read.lost)
        reader.notes.update(windows=len(read.windows), answers_inexact=read.exact.count(False))
        taught = [self._label(w, read.answers[w.row], spans[w.row] is not None) for w in read.windows]
        told = [_columns_of(window) for window in read.windows]
        return {**read.inputs, "labels": taught, **{name: [one[name] for one in told] for name in WINDOW_COLUMNS}}

    # outputs to answers

    def metric_names(self, labels: Sequence[str]) -> tuple[str, ...]:
        """Name the scores of an evaluation."""
        return self.metric.names

    def greater_is_better(self, labels: Sequence[str]) -> bool:
        """A share that is right improves upwards."""
        return True

    def kept_outputs(self, outputs: Any, labels: Any) -> Any:
        """Keep the scores of starts and ends."""
        return outputs[:2]

    def best_answers(self, held: Held, windows: Sequence[Window], outputs: Any) -> list[list[Answer]]:
        """List the best answers to each row, the best first."""
        start_NL, end_NL = outputs[:2]
        return answers_of(held.rows["context"][:], windows, start_NL, end_NL, self.reading(self.settings.max_length))

    def scorer(self, held: Held, labels: Sequence[str], before: Mapping[str, Scores]) -> Scorer:
        """Score the best answers by the dataset's own rules."""
        metric = self.metric(keep_in_memory=True)
        right, windows = [label["text"] for label in held.rows["label"][:]], windows_of(held.features)

        def compute(evaluation: EvalPrediction) -> Scores:
            if any(np.isnan(scores).any() for scores in evaluation.predictions[:2]):
                return dict.fromkeys(self.metric.names, float("nan"))
            best = [answers[0].text for answers in self.best_answers(held, windows, evaluation.predictions)]
            return dict(metric.compute(predictions=best, references=right) or {})

        return compute

    def answers(self, held: Held, outputs: Any, labels: Sequence[str], shown: Sequence[int]) -> list[dict[str, Any]]:
        """Put a few questions beside the answers given and the right ones."""
        best = self.best_answers(held, windows_of(held.features), outputs)
        told = []
        for index in shown:
            row, answer = held.rows[index], best[index][0]
            judged = {"predicted": answer.text or "no answer", "score": round(answer.score, 4)}
            label = " / ".join(dict.fromkeys(row["label"]["text"])) or "no answer"
            told.append({"text": row["question"], "text_pair": row["context"], **judged, "label": label})
        return told
