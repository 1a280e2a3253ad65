"""From a question and a context to windows of tokens, and from scores of tokens back to answers in words.

A context longer than a row is read through overlapping windows. Every context token keeps the characters for which it
stands, so an answer is cut from the context as it was given. Where a token is a word, an answer that begins inside
one is widened to it.

Shapes: L tokens of a row, C tokens of the context in it, A lengths of an answer.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from transformers import BatchEncoding, PreTrainedConfig, PreTrainedTokenizerBase

from .windows import cut_row, overlapping

Span = tuple[int, int]
Inputs = dict[str, list[int]]


@dataclasses.dataclass(frozen=True)
class AnswerReading:
    """How questions are read and answered.

    window_overlap: tokens of the context that two neighbouring windows share.
    max_answer_length: most tokens of an answer.
    null_threshold: by how much no answer must score above the best answer; None: there always is an answer.
    """

    max_length: int = 384
    window_overlap: int = 128
    max_question_length: int = 64
    max_answer_length: int = 30
    n_best: int = 20
    null_threshold: float | None = None


def reading_of(config: PreTrainedConfig, **told: Any) -> AnswerReading:
    """Read questions as a model was taught to, which its config says, but for what is told otherwise."""
    known = {field.name for field in dataclasses.fields(AnswerReading)}
    taught = {name: value for name, value in (getattr(config, "reading", None) or {}).items() if name in known}
    return AnswerReading(**{**taught, **told})


class Window(NamedTuple):
    """One row of tokens: whose it is, and which characters of the context its columns stand for.

    null: the column that stands for no answer.
    first: the column of the first context token, which is the context's token number `begin`.
    places: [C, 2], where each context token starts and ends.
    """

    row: int
    null: int
    first: int
    begin: int
    places: np.ndarray


class Windows(NamedTuple):
    """Rows of tokens by the names of the model's inputs, what each stands for, and what was found on the way.

    answers: of each question, the first and last context token of its answer; None where it has none.
    exact: of each question, whether tokens delimit its answer exactly.
    lost: of each question, how many of its tokens no window holds.
    """

    inputs: dict[str, list[list[int]]]
    windows: list[Window]
    answers: list[Span | None]
    exact: list[bool]
    lost: list[int]


class Answer(NamedTuple):
    """An answer, the characters of the context that it is, and its probability among the best; "" is no answer."""

    text: str
    start: int
    end: int
    score: float


# to tokens


class _Whole(NamedTuple):
    """A question and its context as tokens, before anything is cut; `owners` tells which column is whose."""

    inputs: dict[str, list[int]]
    owners: list[int | None]
    places_C2: np.ndarray

    @property
    def first(self) -> int:
        """The column of the first context token."""
        return self.owners.index(1) if 1 in self.owners else len(self.owners)


def _read_whole(encoded: BatchEncoding, row: int, names: Sequence[str]) -> _Whole:
    owners = encoded.sequence_ids(row)
    places = [place for place, owner in zip(encoded["offset_mapping"][row], owners, strict=True) if owner == 1]
    return _Whole({n: encoded[n][row] for n in names}, owners, np.array(places, np.int32).reshape(-1, 2))


def _cut_window(
    whole: _Whole, row: int, columns: list[int], cls_id: int | None
) -> tuple[dict[str, list[int]], Window]:
    inputs = {name: [values[column] for column in columns] for name, values in whole.inputs.items()}
    own = [at for at, column in enumerate(columns) if whole.owners[column] == 1]
    first = own[0] if own else 0
    begin = columns[first] - whole.first if own else 0
    ids = inputs["input_ids"]
    null = ids.index(cls_id) if cls_id in ids else 0
    return inputs, Window(row, null, first, begin, whole.places_C2[begin : begin + len(own)])


def _answer_tokens(places_C2: np.ndarray, answer: Span) -> Span | None:
    """Find the tokens that touch an answer, None where none does."""
    touched = np.flatnonzero((places_C2[:, 1] > answer[0]) & (places_C2[:, 0] < answer[1]))
    return (int(touched[0]), int(touched[-1])) if touched.size else None


def _is_exact(context: str, places_C2: np.ndarray, tokens: Span | None, answer: Span) -> bool:
    if tokens is None:
        return False
    cut = context[places_C2[tokens[0], 0] : places_C2[tokens[1], 1]]
    return cut.strip() == context[slice(*answer)].strip()


def read_windows(
    tokenizer: PreTrainedTokenizerBase,
    questions: Sequence[str],
    contexts: Sequence[str],
    reading: AnswerReading,
    answers: Sequence[Span | None] | None = None,
) -> Windows:
    """Turn questions and contexts into windows, in their order.

    answers: the characters of each context that answer, from `start` to before `end`.
    """
    encoded = tokenizer(list(questions), list(contexts), return_offsets_mapping=True, verbose=False)
    result = Windows({name: [] for name in tokenizer.model_input_names if name in encoded}, [], [], [], [])
    length = min(reading.max_length, tokenizer.model_max_length)
    choose = overlapping(reading.window_overlap)
    for row, answer in enumerate(answers or [None] * len(contexts)):
        whole = _read_whole(encoded, row, list(result.inputs))
        cut = cut_row(whole.owners, length, choose, long_part=1, short_limit=reading.max_question_length)
        result.lost.append(cut.lost)
        for columns in cut.rows:
            inputs, window = _cut_window(whole, row, columns, tokenizer.cls_token_id)
            result.windows.append(window)
            for name, ids in inputs.items():
                result.inputs[name].append(ids)
        tokens = _answer_tokens(whole.places_C2, answer) if answer else None
        result.answers.append(tokens)
        result.exact.append(answer is None or _is_exact(contexts[row], whole.places_C2, tokens, answer))
    return result


def label_columns(window: Window, tokens: Span | None) -> Span | None:
    """Find the columns of an answer's first and last token, None where the window does not hold it whole."""
    if tokens is None or tokens[0] < window.begin or tokens[1] >= window.begin + len(window.places):
        return None
    return window.first + tokens[0] - window.begin, window.first + tokens[1] - window.begin


# back to words


def _best_spans(window: Window, start_L: np.ndarray, end_L: np.ndarray, reading: AnswerReading) -> dict[Span, float]:
    """Score the best spans of a window by the characters that they stand for: start's score plus end's."""
    count = len(window.places)
    start_C, end_C = (scores[window.first : window.first + count].astype(np.float64) for scores in (start_L, end_L))
    longest = min(reading.max_answer_length, count)
    if not count:
        return {}
    end_CA = sliding_window_view(np.pad(end_C, (0, longest - 1), constant_values=-np.inf), longest)
    score_CA = start_C[:, None] + end_CA
    best = np.argsort(-score_CA, axis=None, kind="stable")[: reading.n_best]
    begins, more = np.unravel_index(best, score_CA.shape)
    return {
        (int(window.places[begin, 0]), int(window.places[begin + extra, 1])): float(score_CA[begin, extra])
        for begin, extra in zip(begins, more, strict=True)
        if score_CA[begin, extra] > -np.inf
    }


def _ranked(context: str, spans: dict[Span, float], null: float, reading: AnswerReading) -> list[Answer]:
    """List answers, the best first; no answer stands where its score and the threshold put it."""
    best = sorted(spans.items(), key=lambda item: -item[1])[: reading.n_best]
    choices = [(context[start:end], start, end, score) for (start, end), score in best]
    if reading.null_threshold is not None or not choices:
        first = not choices or null - choices[0][3] > reading.null_threshold  # type: ignore[operator]
        later = next((at for at, choice in enumerate(choices) if at and choice[3] < null), len(choices))
        choices.insert(0 if first else max(later, 1), ("", 0, 0, null))
    top = max(choice[3] for choice in choices)
    weights = [math.exp(choice[3] - top) for choice in choices]
    return [
        Answer(text, start, end, weight / sum(weights))
        for (text, start, end, _), weight in zip(choices, weights, strict=True)
    ]


def answers_of(
    contexts: Sequence[str],
    windows: Sequence[Window],
    start_NL: Sequence[np.ndarray],
    end_NL: Sequence[np.ndarray],
    reading: AnswerReading,
) -> list[list[Answer]]:
    """List each context's best answers over its windows, the best first.

    The score of no answer is the least of its windows', for a window without the answer is sure that there is none.
    """
    spans: list[dict[Span, float]] = [{} for _ in contexts]
    nulls = [math.inf] * len(contexts)
    for window, start_L, end_L in zip(windows, start_NL, end_NL, strict=True):
        for span, score in _best_spans(window, start_L, end_L, reading).items():
            spans[window.row][span] = max(score, spans[window.row].get(span, -math.inf))
        nulls[window.row] = min(nulls[window.row], float(start_L[window.null]) + float(end_L[window.null]))
    return [_ranked(*row, reading) for row in zip(contexts, spans, nulls, strict=True)]
