"""Decay with distance: the bound of the paper, and how far the heads of trained networks look.

The paper bounds a score at distance s by a factor of the contents times `(2/d) sum_j |S_j|`, where S_j sums the first
j turns `e^(i s theta_l)` (section 3.4.3). A bound does not say where a trained head looks: that is measured.

Shapes: B rows, H heads, L symbols of a row, N distances, P pairs.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.stats import spearmanr
from torch import Tensor

from .markdown_tables import markdown_table
from .modeling_roformer import HFRoFormerForMaskedLM
from .position_curves import decay_curve
from .rotary import rotation_frequencies
from .study_cells import Cell, Claim, StudySizes, names_of, select, spread
from .study_figures import draw_seeds, panels, plain_numbers, style
from .study_language import KINDS, texts_of, trained
from .study_texts import BYTES, read_stream
from .study_training import SETTINGS, held_out_batches, shape_of, start

THETA = 10_000.0
# the paper's own figure: the width of a head, and how far it reaches
PUBLISHED_WIDTH, PUBLISHED_REACH = 128, 256
NEAR = 8
DIGITS = 5


def curve_of(width: int, distances: Sequence[int]) -> np.ndarray:
    """Return the published curve of a head of this width, [N]."""
    return decay_curve(torch.tensor(list(distances)), rotation_frequencies(width, theta=THETA)).numpy()


def profile(weights_BHLL: Tensor) -> list[float]:
    """Return the mean weight at each distance, both ways, in multiples of what equal weights would be."""
    mean_LL = weights_BHLL.double().mean(dim=(0, 1))
    length = len(mean_LL)
    both_ways = [(mean_LL.diagonal(s).mean() + mean_LL.diagonal(-s).mean()).item() / 2 for s in range(length)]
    return [weight * length for weight in both_ways]


def share_near(profile_L: Sequence[float], reach: int = NEAR) -> float:
    """Return which share of a row's attention falls on symbols no further than `reach` away."""
    length = len(profile_L)
    # so many pairs lie at a distance, of length ** 2
    pairs = [length] + [2 * (length - s) for s in range(1, length)]
    weights = [weight * count for weight, count in zip(profile_L, pairs, strict=True)]
    return sum(weights[: reach + 1]) / sum(weights)


@torch.no_grad()
def profiles_of(model: Any, batches: Sequence[dict[str, Tensor]]) -> list[list[float]]:
    """Return the profile of each layer."""
    found = []
    for inputs in batches:
        attentions = model.eval()(input_ids=inputs["input_ids"], output_attentions=True).attentions
        found.append([profile(weights_BHLL) for weights_BHLL in attentions])
    sizes = [len(inputs["input_ids"]) for inputs in batches]
    means = np.average(np.array(found), axis=0, weights=sizes)
    return np.round(means, DIGITS).tolist()


def _measure(sizes: StudySizes, part: str, arm: str, seed: int) -> Cell:
    stream = read_stream(sizes.data, part, sizes.vocabulary)
    batches = held_out_batches(stream, sizes, causal=False)
    untrained = start(HFRoFormerForMaskedLM, shape_of(sizes, stream.vocab_size), KINDS[arm], seed)
    model, curve = trained(sizes, part, KINDS[arm], seed, causal=False)
    return {
        "loss": curve[-1][1],
        "before": profiles_of(untrained, batches),
        "after": profiles_of(model, batches),
    }


# telling


def _whole(cell: Cell, when: str) -> list[float]:
    """Return the profile over all layers."""
    return np.mean(cell[when], axis=0).tolist()


def _agreement(cell: Cell, width: int) -> float:
    """Return how far the order of the distances by attention is that by the curve (Spearman), from distance 1 on."""
    measured = _whole(cell, "after")[1:]
    return float(spearmanr(measured, curve_of(width, range(1, len(measured) + 1))).statistic)


def _table(cells: Sequence[Cell], sizes: StudySizes) -> str:
    width = sizes.hidden_size // sizes.heads
    head = ["arm", "loss, nats", f"attention within {NEAR}, untrained", f"within {NEAR}, trained"]
    head += [*(f"layer {layer + 1}" for layer in range(sizes.layers)), "rank correlation with the curve"]
    rows = [["equal weights", "", *[f"{share_near([1.0] * sizes.length):.3f}"] * (2 + sizes.layers), ""]]
    for arm in names_of(cells, "arm"):
        same = select(cells, arm=arm)
        shares = [[share_near(_whole(cell, when)) for cell in same] for when in ("before", "after")]
        shares += [[share_near(cell["after"][layer]) for cell in same] for layer in range(sizes.layers)]
        told = [spread(values) for values in ([cell["loss"] for cell in same], *shares)]
        rows.append([arm, *told, spread([_agreement(cell, width) for cell in same], ".2f")])
    return markdown_table(head, rows)


def _draw(cells: Sequence[Cell], sizes: StudySizes) -> Figure:
    figure, (bound, measured) = panels(2)
    distances = range(PUBLISHED_REACH)
    for number, width in enumerate((PUBLISHED_WIDTH, sizes.hidden_size // sizes.heads)):
        look = {**style(number), "marker": ""}
        label = f"heads {width} wide" + (", as in the paper" if width == PUBLISHED_WIDTH else ", as trained here")
        heights = curve_of(width, distances)
        bound.plot(distances, heights / heights[0], label=label, **look)
    bound.set(title="the bound's curve", xlabel="distance", ylabel=r"mean of $|S_j|$, as a share of its value at 0")
    bound.set_ylim(0, 1.05)
    for number, arm in enumerate(names_of(cells, "arm")):
        curves = [list(enumerate(_whole(cell, "after")))[1:] for cell in select(cells, arm=arm)]
        draw_seeds(measured, curves, label=arm, **{**style(number), "marker": ""})
    measured.axhline(1, color="black", linewidth=0.8, label="equal weights")
    measured.set(xscale="log", yscale="log", title="where trained heads look", xlabel="distance")
    for axis in (measured.xaxis, measured.yaxis):
        plain_numbers(axis)
    measured.set_ylabel("attention, in multiples of equal weights")
    for axes in (bound, measured):
        axes.legend(loc="upper right", fontsize=9)
    figure.suptitle(DECAY.title)
    return figure


DECAY = Claim(
    letter="d",
    name="decay",
    title="Attention and distance: the bound, and a trained masked LM",
    sizes={"eval_rows": 32},
    arms=lambda sizes: ["rotary", "sinusoidal", "none"],
    parts=lambda sizes: [BYTES],
    texts=texts_of,
    measure=_measure,
    table=_table,
    draw=_draw,
    settings=SETTINGS,
)

__all__ = ["DECAY", "curve_of", "profile", "profiles_of", "share_near"]
