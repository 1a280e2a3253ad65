"""A run in one picture: what was lost, what was scored, and which step was best."""

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .own_folders import write_figure

# what colour-blind readers tell apart too (Okabe and Ito)
BLUE, ORANGE, GREEN, SKY, YELLOW, PINK = "#0072B2", "#D55E00", "#009E73", "#56B4E9", "#E69F00", "#CC79A7"

Log = list[dict[str, Any]]
Curves = dict[str, dict[int, float]]

BOOKKEEPING = ("_runtime", "_per_second", "_time", "_seen")
LOWER_IS_BETTER = ("loss", "mse", "mae", "rmse", "perplexity")
MAY_BE_ABSENT = ("validation error (0 is perfect)", "learning rate")
MARKERS = "osD^vPX"
MARKED_POINTS = 40


def _curves(log_history: Log, name_of: Callable[[str], str | None]) -> Curves:
    """Gather the named values by step; a step counts once, as it was first logged.

    After training the best checkpoint is evaluated again under the number of the last step: it is no second value.
    """
    curves: Curves = {}
    for entry in log_history:
        for key, value in entry.items():
            name = name_of(key)
            if name is not None and isinstance(value, (int, float)) and "step" in entry:
                curves.setdefault(name, {}).setdefault(entry["step"], float(value))
    return curves


def _loss_name(key: str) -> str | None:
    if key in ("loss", "eval_loss"):
        return "training" if key == "loss" else "validation"
    return key.removeprefix("eval_") if key.startswith("eval_") and key.endswith("_loss") else None


def _metric_name(key: str) -> str | None:
    if not key.startswith("eval_") or key.endswith(("_loss", *BOOKKEEPING)):
        return None
    return key.removeprefix("eval_")


def _rate_name(key: str) -> str | None:
    return key.replace("_", " ") if key == "learning_rate" else None


def _is_error(name: str) -> bool:
    return name.split("_")[-1] in LOWER_IS_BETTER


def _finite(curve: dict[int, float]) -> dict[int, float]:
    return {step: value for step, value in curve.items() if math.isfinite(value)}


def _best_of(curve: dict[int, float], *, lower: bool) -> int | None:
    finite = _finite(curve)
    if not finite:
        return None
    return (min if lower else max)(finite, key=finite.__getitem__)


def _best_step(losses: Curves, metrics: Curves) -> int | None:
    """Find the step where the first metric is best, or without metrics where the validation loss is lowest."""
    for name, curve in metrics.items():
        return _best_of(curve, lower=_is_error(name))
    return _best_of(losses.get("validation", {}), lower=True)


def drawable(text: str) -> str:
    """Put a question mark for each character that the figure's font lacks, and let no dollar start a formula."""
    font = font_manager.get_font(font_manager.findfont(font_manager.FontProperties()))
    shown = "".join(character if font.get_char_index(ord(character)) else "?" for character in " ".join(text.split()))
    return shown.replace("$", r"\$")


def _label(name: str, curve: dict[int, float], best_step: int | None) -> str:
    """Name a curve with what cannot be read off it: its value at the best step and how much of it is missing."""
    finite = _finite(curve)
    notes = [f"{finite[best_step]:.4g} at best step"] if best_step in finite else []
    notes += [f"{len(curve) - len(finite)} not finite"] if len(finite) < len(curve) else []
    return f"{drawable(name)} ({', '.join(notes)})" if notes else drawable(name)


def _draw_curve(axes: Axes, curve: dict[int, float], best_step: int | None, **style: Any) -> None:
    steps, finite = sorted(curve), _finite(curve)
    # a point that is not finite leaves a gap in the line
    values = [finite.get(step, math.nan) for step in steps]
    (line,) = axes.plot(steps, values, markersize=4, **style)
    if best_step in finite:
        axes.plot([best_step], [finite[best_step]], marker="*", markersize=13, color=line.get_color())


def _draw_panel(axes: Axes, curves: Curves, best_step: int | None, *, unit: str) -> None:
    axes.set_ylabel(unit)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.grid(alpha=0.3)
    if not any(_finite(curve) for curve in curves.values()):
        axes.text(0.5, 0.5, "no finite value" if curves else "none recorded", ha="center", transform=axes.transAxes)
        axes.set_yticks([])
        return
    if best_step is not None:
        axes.axvline(best_step, color="0.4", linestyle="--", linewidth=1, label=f"best step: {best_step}")
    for (name, curve), marker in zip(curves.items(), itertools.cycle(MARKERS)):
        marker = marker if len(curve) <= MARKED_POINTS else ""
        # a training loss is one noisy stretch: its value at a step says nothing of that step's checkpoint
        starred = None if name in ("training", "learning rate") else best_step
        _draw_curve(axes, curve, starred, marker=marker, label=_label(name, curve, starred))
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, fontsize=9, frameon=False)


def curves_figure(log_history: Log, *, title: str, best_step: int | None = None) -> Figure:
    """Draw losses, metrics and the learning rate against the step, one panel a kind; see `draw_curves`."""
    losses, metrics = _curves(log_history, _loss_name), _curves(log_history, _metric_name)
    best_step = _best_step(losses, metrics) if best_step is None else best_step
    panels = {
        "loss (mean per item)": losses,
        "validation score (1 is perfect)": {name: curve for name, curve in metrics.items() if not _is_error(name)},
        "validation error (0 is perfect)": {name: curve for name, curve in metrics.items() if _is_error(name)},
        "learning rate": _curves(log_history, _rate_name),
    }
    drawn = [(unit, curves) for unit, curves in panels.items() if curves or unit not in MAY_BE_ABSENT]
    figure = Figure(figsize=(8, 3.4 * len(drawn)), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(drawable(title), wrap=True)
    rows = figure.subplots(len(drawn), sharex=True)
    for axes, (unit, curves) in zip(rows, drawn, strict=True):
        _draw_panel(axes, curves, best_step, unit=unit)
    rows[-1].set_xlabel("optimizer step")
    return figure


def draw_curves(log_history: Log, path: Path, *, title: str, best_step: int | None = None) -> None:
    """Write the curves of a run as a PNG.

    log_history: the Trainer's `state.log_history`.
    best_step: the step to mark; without it, the one where the first metric is best.
    """
    figure = curves_figure(log_history, title=title, best_step=best_step)
    write_figure(path, figure)
