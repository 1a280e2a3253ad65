"""Order matters: sentences as written against shuffled ones, and paraphrases that differ by the order of their words.

A row's vector is the mean over its symbols, so that without positions no order can be seen at all: a shuffled sentence
and its original then get the same score, and of the two one is judged wrong.
"""

from collections.abc import Sequence
from typing import Any

import torch
from matplotlib.figure import Figure

from .markdown_tables import markdown_table
from .modeling_roformer import HFRoFormerForSequenceClassification
from .study_cells import Cell, Claim, StudySizes, apart, names_of, select, spread
from .study_figures import COLOURS, draw_dots, panels
from .study_language import KINDS
from .study_texts import PAIRS, Judged, has_pairs, read_pairs, read_shuffled
from .study_training import SETTINGS, Inputs, judged_batches, padded, shape_of, start, train

SHUFFLED = "shuffled"
DIGITS = 5


def read_judged(sizes: StudySizes, part: str) -> Judged:
    """Read the rows of a part."""
    if part == PAIRS:
        return read_pairs(str(sizes.data), sizes.vocabulary)
    return read_shuffled(sizes.data, sizes.vocabulary, sizes.rows)


def _held_out(judged: Judged, sizes: StudySizes) -> list[Inputs]:
    # rows of like length side by side: fewer pads
    rows = sorted(judged.held_out, key=lambda row: len(row[0]))
    return [padded(rows[at : at + sizes.eval_rows], sizes.length) for at in range(0, len(rows), sizes.eval_rows)]


@torch.no_grad()
def accuracy(model: Any, batches: Sequence[Inputs]) -> float:
    """Return the share of rows whose class has the higher score; equal scores count half."""
    right, count = 0.0, 0
    for inputs in batches:
        scores_BC = model(**{name: value for name, value in inputs.items() if name != "labels"}).logits
        mine = scores_BC.gather(1, inputs["labels"][:, None])[:, 0]
        other = scores_BC.gather(1, 1 - inputs["labels"][:, None])[:, 0]
        right += (mine > other).double().sum().item() + 0.5 * (mine == other).double().sum().item()
        count += len(mine)
    return right / count


def _measure(sizes: StudySizes, part: str, arm: str, seed: int) -> Cell:
    judged = read_judged(sizes, part)
    shape = {**shape_of(sizes, judged.vocab_size), "classifier_pooling": "mean", "num_labels": 2}
    model = start(HFRoFormerForSequenceClassification, shape, KINDS[arm], seed)
    batches = _held_out(judged, sizes)
    curve: list[tuple[int, float]] = []

    def watch(step: int) -> None:
        curve.append((step, round(accuracy(model, batches), DIGITS)))

    train(model, judged_batches(judged, sizes, seed), sizes, watch)
    labels = [label for *_, label in judged.held_out]
    # what always naming the more frequent class reaches
    majority = max(labels.count(label) for label in set(labels)) / len(labels)
    return {"curve": curve, "accuracy": curve[-1][1], "majority": round(majority, DIGITS)}


# telling


def _accuracy(cell: Cell) -> float:
    return cell["accuracy"]


def _table(cells: Sequence[Cell], sizes: StudySizes) -> str:
    rows = []
    for part in names_of(cells, "part"):
        for arm in names_of(cells, "arm"):
            same = select(cells, part=part, arm=arm)
            more = [f"{100 * gap:+.1f}" for gap in apart(cells, part, arm, "none", _accuracy)]
            told = spread([100 * cell["accuracy"] for cell in same], ".1f")
            majority = f"{100 * select(cells, part=part)[0]['majority']:.1f}"
            rows.append([part, arm, told, majority, "-" if arm == "none" else ", ".join(more) or "not run"])
    return markdown_table(
        ["rows", "arm", "accuracy, %", "the more frequent class, %", "more than none, by seed"], rows
    )


def _draw(cells: Sequence[Cell], sizes: StudySizes) -> Figure:
    parts, arms = names_of(cells, "part"), names_of(cells, "arm")
    figure, axes = panels(len(parts), width=4.0)
    for one, part in zip(axes, parts, strict=True):
        for place, arm in enumerate(arms):
            values = [100 * cell["accuracy"] for cell in select(cells, part=part, arm=arm)]
            draw_dots(one, place, values, color=COLOURS[place % len(COLOURS)])
        majority = 100 * select(cells, part=part)[0]["majority"]
        one.axhline(majority, color="black", linewidth=0.8, linestyle=":", label="the more frequent class")
        one.set_xticks(range(len(arms)), arms)
        one.set(
            title=TITLES.get(part, part), ylabel="held-out accuracy, %", xlim=(-0.5, len(arms) - 0.5), ylim=(40, 100)
        )
        one.legend(loc="upper right", fontsize=8)
    figure.suptitle(f"{ORDER.title} (dash: mean, dot: a seed)")
    return figure


TITLES = {SHUFFLED: "a sentence as written, or shuffled", PAIRS: "do two sentences say the same? (PAWS)"}

ORDER = Claim(
    letter="f",
    name="order",
    title="Order matters",
    sizes={"batch_size": 32, "evaluations": 1},
    arms=lambda sizes: ["rotary", "sinusoidal", "none"],
    parts=lambda sizes: [SHUFFLED, *([PAIRS] if has_pairs(sizes.data) else [])],
    texts=lambda sizes, part: read_judged(sizes, part).facts,
    measure=_measure,
    table=_table,
    draw=_draw,
    settings=SETTINGS,
)

__all__ = ["ORDER", "accuracy", "read_judged"]
