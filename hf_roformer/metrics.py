"""How good the answers are, with nothing to download.

Each metric is an `evaluate.Metric` over scikit-learn, scipy or seqeval, so it is used as one from the Hub is.
A label of -100 is no label: the item, entry or token that carries it counts nowhere. Where nothing is labelled, or the
network answers with NaN, every score is NaN: the Trainer never takes that for the best, and no number hides it.
"""

import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import evaluate
import numpy as np
from datasets import Features, List, Value
from scipy.stats import NearConstantInputWarning, pearsonr, spearmanr
from seqeval import metrics as seqeval
from sklearn import metrics as sklearn
from transformers import EvalPrediction

Pair = tuple[Any, Any]

IGNORED = -100
ERRORS = frozenset({"mse", "mae"})


def _info(description: str, item: Any) -> evaluate.MetricInfo:
    features = Features({"predictions": item, "references": item})
    return evaluate.MetricInfo(description=description, citation="", features=features)


def _labelled_columns(predictions: list[list[Any]], references: list[list[Any]]) -> list[Pair]:
    """Split rows into columns without their unlabelled entries; a column of nothing else is left out."""
    predicted, true = np.asarray(predictions), np.asarray(references)
    known = true != IGNORED
    return [(predicted[known[:, c], c], true[known[:, c], c]) for c in range(known.shape[-1]) if known[:, c].any()]


def _labelled_classes(predictions: list[int], references: list[int]) -> tuple[np.ndarray, np.ndarray]:
    predicted, true = np.asarray(predictions), np.asarray(references)
    return predicted[true != IGNORED], true[true != IGNORED]


def _quietly(score: Callable[..., float], *arguments: Any, **settings: Any) -> float:
    """Score classes without scikit-learn's guess that many classes mean a regression."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The number of unique classes", category=UserWarning)
        return float(score(*arguments, **settings))


class Accuracy(evaluate.Metric):
    """The share of items whose class is right."""

    names = ("accuracy",)

    def _info(self) -> evaluate.MetricInfo:
        return _info("The share of items whose class is right.", Value("int64"))

    def _compute(self, predictions: list[int], references: list[int]) -> dict[str, float]:
        predicted, true = _labelled_classes(predictions, references)
        return {"accuracy": _quietly(sklearn.accuracy_score, true, predicted) if true.size else np.nan}


class MacroF1(evaluate.Metric):
    """The mean F1 of the classes that occur among the labels or the predictions."""

    names = ("macro_f1",)

    def _info(self) -> evaluate.MetricInfo:
        return _info("The mean F1 of the classes that occur.", Value("int64"))

    def _compute(self, predictions: list[int], references: list[int]) -> dict[str, float]:
        predicted, true = _labelled_classes(predictions, references)
        score = partial(_quietly, sklearn.f1_score, average="macro", zero_division=0.0)
        return {"macro_f1": score(true, predicted) if true.size else np.nan}


class MatthewsCorrelation(evaluate.Metric):
    """The correlation of predicted and true classes, 0 by chance; CoLA's metric."""

    names = ("matthews_correlation",)

    def _info(self) -> evaluate.MetricInfo:
        return _info("The correlation of predicted and true classes.", Value("int64"))

    def _compute(self, predictions: list[int], references: list[int]) -> dict[str, float]:
        predicted, true = _labelled_classes(predictions, references)
        return {"matthews_correlation": _quietly(sklearn.matthews_corrcoef, true, predicted) if true.size else np.nan}


class BinaryF1(evaluate.Metric):
    """The F1 of the second of two classes, such as `equivalent`; the metric of MRPC and QQP."""

    names = ("f1",)

    def _info(self) -> evaluate.MetricInfo:
        return _info("The F1 of the second of two classes.", Value("int64"))

    def _compute(self, predictions: list[int], references: list[int]) -> dict[str, float]:
        predicted, true = _labelled_classes(predictions, references)
        if max(np.max(predicted, initial=0), np.max(true, initial=0)) > 1:
            raise ValueError("f1 is that of the second of two classes, and there are more: use macro_f1")
        return {"f1": float(sklearn.f1_score(true, predicted, zero_division=0.0)) if true.size else np.nan}


class MultiLabel(evaluate.Metric):
    """F1 over all entries (micro), mean F1 of the labels (macro), share of rows with every entry right (subset)."""

    names = ("f1", "macro_f1", "subset_accuracy")

    def _info(self) -> evaluate.MetricInfo:
        return _info("Micro F1, macro F1 and subset accuracy over 0/1 entries.", List(Value("int64")))

    def _compute(self, predictions: list[list[int]], references: list[list[int]]) -> dict[str, float]:
        predicted, true = np.asarray(predictions), np.asarray(references)
        known = true != IGNORED
        if not known.any():
            return dict.fromkeys(self.names, np.nan)
        columns = _labelled_columns(predictions, references)
        rows_right = ((predicted == true) | ~known).all(axis=1)
        return {
            "f1": float(sklearn.f1_score(true[known], predicted[known], zero_division=0.0)),
            "macro_f1": float(np.mean([sklearn.f1_score(t, p, zero_division=0.0) for p, t in columns])),
            "subset_accuracy": float(rows_right[known.any(axis=1)].mean()),
        }


def correlation(measure: Callable[..., Any], predicted: np.ndarray, true: np.ndarray) -> float:
    """Correlate two columns; one that never varies shows no relation, so it scores 0 and not NaN."""
    if np.ptp(predicted) == 0 or np.ptp(true) == 0:
        return 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NearConstantInputWarning)
        value = float(measure(predicted, true).statistic)
    return value if np.isfinite(value) else 0.0


class Regression(evaluate.Metric):
    """Pearson's and Spearman's correlation, squared and absolute error, each the mean over the outputs."""

    names = ("pearson", "spearman", "mse", "mae")

    def _info(self) -> evaluate.MetricInfo:
        return _info("Pearson, Spearman, MSE and MAE, averaged over outputs.", List(Value("float64")))

    def _compute(self, predictions: list[list[float]], references: list[list[float]]) -> dict[str, float]:
        columns = _labelled_columns(predictions, references)
        if not columns:
            return dict.fromkeys(self.names, np.nan)
        return {
            "pearson": float(np.mean([correlation(pearsonr, *column) for column in columns])),
            "spearman": float(np.mean([correlation(spearmanr, *column) for column in columns])),
            "mse": float(np.mean([sklearn.mean_squared_error(*column) for column in columns])),
            "mae": float(np.mean([sklearn.mean_absolute_error(*column) for column in columns])),
        }


class Entities(evaluate.Metric):
    """F1, precision and recall of whole chunks: an entity counts when its type, start and end are right."""

    names = ("f1", "precision", "recall")

    def _info(self) -> evaluate.MetricInfo:
        return _info("Entity F1, precision and recall over chunk tags.", List(Value("string")))

    def _compute(self, predictions: list[list[str]], references: list[list[str]]) -> dict[str, float]:
        if not any(references):
            return dict.fromkeys(self.names, np.nan)
        scores = (seqeval.f1_score, seqeval.precision_score, seqeval.recall_score)
        return {n: float(s(references, predictions, zero_division=0)) for n, s in zip(self.names, scores, strict=True)}


METRICS: dict[str, Any] = {
    "accuracy": Accuracy,
    "macro_f1": MacroF1,
    "matthews_correlation": MatthewsCorrelation,
    "f1": BinaryF1,
    "multi_label": MultiLabel,
    "regression": Regression,
    "entities": Entities,
}

METRICS_OF: dict[str, tuple[type[Any], ...]] = {
    "single_label_classification": (Accuracy, MacroF1),
    "multi_label_classification": (MultiLabel,),
    "regression": (Regression,),
    "token_classification": (Entities,),
    # tags that are no parts of chunks, such as parts of speech
    "word_tags": (Accuracy, MacroF1),
    "multiple_choice": (Accuracy,),
}


def load_metric(name: str) -> evaluate.EvaluationModule:
    """Give our metric of that name, or else the Hub's, which needs a network."""
    if name in METRICS:
        return METRICS[name](keep_in_memory=True)
    try:
        return evaluate.load(name)
    except (OSError, RuntimeError) as error:
        raise ValueError(
            f"metric {name!r} is none of {sorted(METRICS)} and the Hub does not give it ({error}); "
            "correct the name, go online, or use one of those"
        ) from error


def metric_names(problem: str) -> tuple[str, ...]:
    """Name what `metrics_for` computes, the headline first."""
    if problem not in METRICS_OF:
        raise ValueError(f"no metric fits the problem {problem!r}; use one of {sorted(METRICS_OF)}")
    return tuple(name for metric in METRICS_OF[problem] for name in metric.names)


def _told_name(metric: str, key: str) -> str:
    """Name a score of a metric that was asked for: by its key, and whose it is where that is another word."""
    label = metric.rsplit("/", 1)[-1]
    return key if key == label else f"{label}_{key}"


def extra_names(metrics: Iterable[str]) -> list[str]:
    """Name what metrics that are asked for compute; of one that is not ours the likeliest."""
    return [
        _told_name(metric, key)
        for metric in metrics
        for key in (METRICS[metric].names if metric in METRICS else [metric.rsplit("/", 1)[-1]])
    ]


def headline(problem: str) -> str:
    """Name the metric by which the best checkpoint is chosen."""
    return metric_names(problem)[0]


def greater_is_better(problem: str) -> bool:
    """Say in which direction the headline improves."""
    return headline(problem) not in ERRORS


def _classes(logits: np.ndarray, labels: np.ndarray) -> Pair:
    return logits.argmax(axis=-1), labels.astype(np.int64)


def _flat_classes(logits: np.ndarray, labels: np.ndarray) -> Pair:
    classes, labels = _classes(logits, labels)
    return classes.reshape(-1), labels.reshape(-1)


def _switches(logits: np.ndarray, labels: np.ndarray) -> Pair:
    """Switch an entry on where its logit is positive, which is a probability above one half."""
    strange = labels[~np.isin(labels, (0, 1, IGNORED))]
    if strange.size:
        raise ValueError(f"a multi-label entry is {strange[0]}; make each 0, 1 or {IGNORED}")
    return (logits > 0).astype(np.int64), labels.astype(np.int64)


def _values(logits: np.ndarray, labels: np.ndarray) -> Pair:
    return logits.astype(np.float64), labels.astype(np.float64)


CHUNK_TAG = re.compile(r"O|[BIESMLU](-.+)?")
# seqeval knows B, I, E, S; middle, last and unit are the same letters in other schemes
SEQEVAL_LETTER = {"M": "I", "L": "E", "U": "S"}


def are_chunks(label_names: Iterable[str]) -> bool:
    """Say whether tags mark the begin, inside and end of chunks, as BIO tags do."""
    return all(CHUNK_TAG.fullmatch(name) for name in label_names)


def chunk_tags(label_names: Iterable[str]) -> list[str]:
    """Spell labels as seqeval reads them; names without chunk letters stand for one token each."""
    names = list(label_names)
    if are_chunks(names):
        return [SEQEVAL_LETTER.get(name[0], name[0]) + name[1:] for name in names]
    return [name if name == "O" else f"B-{name}" for name in names]


def _tags(logits: np.ndarray, labels: np.ndarray, *, tags: np.ndarray) -> Pair:
    classes, labels = _classes(logits, labels)
    rows = [row != IGNORED for row in labels]
    predicted = [tags[row[known]].tolist() for row, known in zip(classes, rows, strict=True)]
    return predicted, [tags[row[known]].tolist() for row, known in zip(labels, rows, strict=True)]


def _reader(problem: str, num_labels: int, label_names: Sequence[str] | None) -> Callable[..., Pair]:
    """Choose how logits and labels become what the problem's metrics compare."""
    if problem != "token_classification":
        readers = {"multi_label_classification": _switches, "regression": _values, "word_tags": _flat_classes}
        return readers.get(problem, _classes)
    if label_names is None or len(label_names) != num_labels:
        raise ValueError(f"token_classification needs the {num_labels} label names in order; got {label_names}")
    return partial(_tags, tags=np.array(chunk_tags(label_names)))


def _first(arrays: Any) -> np.ndarray:
    """Unpack the logits, or labels, from the tuple that a model with more outputs gives."""
    while isinstance(arrays, (tuple, list)):
        arrays = arrays[0]
    return np.asarray(arrays)


def _matched(evaluation: EvalPrediction, problem: str, num_labels: int) -> tuple[np.ndarray, np.ndarray]:
    """Return logits with the outputs last, and labels of the shape that the problem gives them."""
    logits, labels = _first(evaluation.predictions), _first(evaluation.label_ids)
    if problem == "regression":
        logits, labels = logits.reshape(len(logits), -1), labels.reshape(len(labels), -1)
    elif problem == "single_label_classification" and labels.shape[1:] == (1,):
        labels = labels[:, 0]
    per_output = problem in ("regression", "multi_label_classification")
    if logits.shape[-1:] != (num_labels,) or labels.shape != (logits.shape if per_output else logits.shape[:-1]):
        raise ValueError(
            f"logits {logits.shape} and labels {labels.shape} do not fit {problem} with {num_labels} labels; "
            "give one logit a label and one answer an item"
        )
    return logits, labels


def _is_broken(logits: np.ndarray, labels: np.ndarray) -> bool:
    """Say whether an answer that counts is not a number; a class ruled out by minus infinity is no fault."""
    answers = logits if labels.ndim == logits.ndim else logits.max(axis=-1)
    return not np.isfinite(answers[labels != IGNORED]).all()


def _plain_answers(answers: Pair) -> Pair:
    """Keep rows that are labelled throughout: no other metric knows of missing labels; flatten a single column."""
    predicted, true = answers
    if isinstance(true, list):
        return answers
    whole = (true != IGNORED).reshape(len(true), -1).all(axis=1)
    flat = true.shape[1:] == (1,)
    return (predicted[whole, 0], true[whole, 0]) if flat else (predicted[whole], true[whole])


def _extra_scores(name: str, metric: evaluate.EvaluationModule, answers: Pair) -> dict[str, float]:
    """Score by a metric asked for by name; its keys say whose they are."""
    predicted, true = _plain_answers(answers)
    scores = metric.compute(predictions=predicted, references=true) if len(true) else {}
    numbers = {key: float(value) for key, value in scores.items() if isinstance(value, (int, float, np.number))}
    return {_told_name(name, key): value for key, value in numbers.items()}


def metrics_for(
    problem: str, num_labels: int, *, label_names: Sequence[str] | None = None, extra: Sequence[str] = ()
) -> Callable[[EvalPrediction], dict[str, float]]:
    """Build the Trainer's `compute_metrics`; the headline is the first key.

    label_names: the labels by id, needed for token classification alone.
    extra: further metrics by name (see `load_metric`), given the predictions of rows that are labelled throughout.
    """
    names = metric_names(problem)
    read = _reader(problem, num_labels, label_names)
    metrics = [metric(keep_in_memory=True) for metric in METRICS_OF[problem]]
    extras = {name: load_metric(name) for name in extra}

    def compute(evaluation: EvalPrediction) -> dict[str, float]:
        logits, labels = _matched(evaluation, problem, num_labels)
        if _is_broken(logits, labels):
            return dict.fromkeys(names, float("nan"))
        answers = read(logits, labels)
        scores: dict[str, float] = {}
        for metric in metrics:
            scores |= metric.compute(predictions=answers[0], references=answers[1])
        for name, metric in extras.items():
            scores |= {k: v for k, v in _extra_scores(name, metric, answers).items() if k not in scores}
        return scores

    return compute
