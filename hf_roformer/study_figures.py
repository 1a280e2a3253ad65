"""How the studies draw: a colour, a line and a mark for each arm; every seed shows."""

import statistics
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from .figures import BLUE, GREEN, ORANGE, PINK, SKY, YELLOW

# told apart without colours too
COLOURS = (BLUE, ORANGE, GREEN, "#666666", PINK, YELLOW, SKY, "#000000")
LINES = ("-", "--", "-.", ":")
MARKS = "osD^vPX*"

Points = Sequence[tuple[float, float]]


def style(number: int) -> dict[str, Any]:
    """Return how the arm of a number looks."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": LINES[number % len(LINES)],
        "marker": MARKS[number % len(MARKS)],
        "markersize": 4,
    }


def panels(number: int, *, width: float = 5.2) -> tuple[Figure, list[Axes]]:
    """Return a figure and its panels, side by side."""
    figure = Figure(figsize=(width * number + 1.5, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(1, number, squeeze=False)[0])
    for one in axes:
        one.grid(alpha=0.3)
    return figure, axes


def draw_seeds(axes: Axes, curves: Sequence[Points], *, label: str, **look: Any) -> None:
    """Draw the mean of several seeds' curves, which share their x, and from the least to the most a shade."""
    if not curves:
        return
    places = [x for x, _ in curves[0]]
    heights = [[y for _, y in points] for points in zip(*curves, strict=True)]
    axes.plot(places, [statistics.fmean(values) for values in heights], label=label, **look)
    if len(curves) > 1:
        lowest, highest = [min(values) for values in heights], [max(values) for values in heights]
        axes.fill_between(places, lowest, highest, color=look["color"], alpha=0.15, linewidth=0)


def draw_dots(axes: Axes, place: float, values: Sequence[float], **look: Any) -> None:
    """Draw every seed as a dot and the mean as a dash."""
    if not values:
        return
    axes.plot([place] * len(values), values, "o", color=look["color"], markersize=5, alpha=0.7)
    axes.plot([place], [statistics.fmean(values)], "_", color=look["color"], markersize=26, markeredgewidth=2.5)


def name_doublings(axes: Axes, lengths: Sequence[float]) -> None:
    """Let lengths that double lie at equal distances, each with its number."""
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(list(lengths)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:,.0f}"))


def _only_some(number: float, place: int) -> str:
    return f"{number:,g}" if f"{number:e}"[0] in "25" else ""


def plain_numbers(axis: Axis) -> None:
    """Write the numbers of a logarithmic axis as they are."""
    axis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:,g}"))
    axis.set_minor_formatter(FuncFormatter(_only_some))


def legend_beside(figure: Figure, axes: Axes) -> None:
    """Put one legend for all panels to their right, where it covers nothing."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside right upper", frameon=False, fontsize=9)


__all__ = ["draw_dots", "draw_seeds", "legend_beside", "name_doublings", "panels", "plain_numbers", "style"]
