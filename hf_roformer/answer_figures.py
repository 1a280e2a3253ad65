"""Where a classifier errs, in two pictures: which labels it takes for which, and how long the texts are.

An answer counts as its row does: once, right or wrong.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from scipy.stats import binomtest
from sklearn.metrics import confusion_matrix

from .figures import drawable
from .own_folders import write_figure

CONFUSION, BY_LENGTH = "confusion.png", "accuracy_by_length.png"
PICTURES = (CONFUSION, BY_LENGTH)
NUMBERED_LABELS, NAMED_LABELS = 20, 100
LONGEST_NAME = 24
BINS = 8


def _name(number: int, label: str) -> str:
    shown = drawable(label)
    # where the font lacks a script, all its labels look alike
    shown = f"{number}: {shown}" if shown.count("?") > label.count("?") else shown
    return shown if len(shown) <= LONGEST_NAME else f"{shown[: LONGEST_NAME - 3]}..."


def _name_axes(axes: Axes, labels: Sequence[str]) -> None:
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    named = labels if len(labels) <= NAMED_LABELS else []
    size = 10 if len(labels) <= NUMBERED_LABELS else 6
    axes.set_xticks(range(len(named)), [_name(*pair) for pair in enumerate(named)], rotation=90, fontsize=size)
    axes.set_yticks(range(len(named)), [_name(*pair) for pair in enumerate(named)], fontsize=size)


def _number_cells(axes: Axes, counts: np.ndarray, shares: np.ndarray) -> None:
    for (row, column), count in np.ndenumerate(counts):
        color = "white" if shares[row, column] > 0.5 else "black"
        axes.text(column, row, str(count), ha="center", va="center", color=color, fontsize=9)


def confusion_figure(truth: Sequence[str], predicted: Sequence[str], labels: Sequence[str], *, title: str) -> Figure:
    """Count, for each true label, what it was taken for; the shade is the share of the true label's rows."""
    counts = confusion_matrix(truth, predicted, labels=list(labels))
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    size = min(12.0, 4.5 + 0.35 * len(labels))
    figure = Figure(figsize=(size + 1, size), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(drawable(title), wrap=True)
    axes = figure.subplots()
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    figure.colorbar(image, ax=axes, label="share of the true label's rows", shrink=0.8)
    _name_axes(axes, labels)
    if len(labels) <= NUMBERED_LABELS:
        _number_cells(axes, counts, shares)
    return figure


def length_bins(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Cut lengths into ranges, both ends included, that hold about equally many; equal lengths stay together."""
    edges = np.unique(np.quantile(lengths, np.linspace(0, 1, BINS + 1), method="inverted_cdf").astype(int))
    firsts = [int(edges[0]), *(int(edge) + 1 for edge in edges[1:-1])]
    return list(zip(firsts, [int(edge) for edge in edges[1:]] or firsts, strict=True))


def by_length(lengths: Sequence[int], right: Sequence[bool]) -> list[dict[str, float]]:
    """Give each range of lengths its count, its accuracy and the 95 % interval of it (Wilson's)."""
    told = []
    for first, last in length_bins(lengths):
        inside = [one for length, one in zip(lengths, right, strict=True) if first <= length <= last]
        interval = binomtest(sum(inside), len(inside)).proportion_ci(method="wilson")
        share = sum(inside) / len(inside)
        told.append(
            {"first": first, "last": last, "count": len(inside), "accuracy": share}
            | {"low": float(interval.low), "high": float(interval.high)}
        )
    return told


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def length_figure(lengths: Sequence[int], right: Sequence[bool], *, title: str) -> Figure:
    """Draw the accuracy of each range of lengths, with its interval, over the number of rows in it."""
    bins = by_length(lengths, right)
    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(drawable(title), wrap=True)
    above, below = figure.subplots(2, sharex=True, height_ratios=(3, 1))
    places = range(len(bins))
    accuracy = [one["accuracy"] for one in bins]
    spread = [[one["accuracy"] - one["low"] for one in bins], [one["high"] - one["accuracy"] for one in bins]]
    above.errorbar(places, accuracy, yerr=np.clip(spread, 0, None), marker="o", capsize=4)
    overall = sum(right) / len(right)
    above.axhline(overall, color="0.4", linestyle="--", linewidth=1, label=f"all rows: {overall:.4g}")
    above.set_ylabel("accuracy, 95 % interval")
    above.legend(frameon=False)
    above.grid(alpha=0.3)
    below.bar(places, [one["count"] for one in bins], color="0.7")
    below.set_ylabel("rows")
    below.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=3))
    below.set_xticks(places, [_range(int(one["first"]), int(one["last"])) for one in bins])
    below.set_xlabel("tokens of the input")
    return figure


def draw_answers(folder: Path, features: Dataset, logits: np.ndarray, labels: Sequence[str], *, split: str) -> None:
    """Write both pictures of a split into a run's folder.

    features: the rows as the network read them, with their `labels`; one row of logits answers each.
    """
    truth, predicted = np.asarray(features["labels"][:]), logits.argmax(-1)
    right = (truth == predicted).tolist()
    words = f"{folder.name}, {split}, {len(right)} rows"
    names = np.asarray(labels, dtype=object)
    confusion = confusion_figure(names[truth].tolist(), names[predicted].tolist(), labels, title=words)
    write_figure(folder / CONFUSION, confusion)
    lengths = [_length(ids) for ids in features["input_ids"]]
    write_figure(folder / BY_LENGTH, length_figure(lengths, right, title=words))


def _length(ids: Sequence[Any]) -> int:
    """Count the tokens of an input, or of all its windows."""
    return sum(map(_length, ids)) if ids and isinstance(ids[0], list) else len(ids)
