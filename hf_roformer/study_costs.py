"""Time and memory of linear attention against softmax attention, in one network on rows of growing length.

Both are timed in turn, round after round, and each on half the row too: the pace of a machine drifts within a minute,
so what a doubling costs is told by passes that stood side by side. Memory is the most that a forward takes beyond the
loaded network, in a process of its own.
"""

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .benchmark_cases import draw_inputs, fixed_cases
from .benchmark_memory import Task, measure_peak
from .benchmark_systems import Setting, Shape, System, build, make_ready, pass_of
from .fast_matmul import seconds_of
from .markdown_tables import markdown_table
from .study_cells import Cell, Claim, StudySizes, select
from .study_figures import name_doublings, panels, plain_numbers, style

SYSTEMS = {"softmax": System("ours"), "linear": System("linear")}
BOTH = "both"
WIDENING = 4
MEBI, MILLI = 2**20, 1e-3
PRECISION = "highest"
# a short row is timed for so long, but not more often
ENOUGH_SECONDS, MOST_ROUNDS = 1.0, 20


def _shape(sizes: StudySizes, length: int) -> Shape:
    widths = sizes.hidden_size, sizes.layers, sizes.heads, WIDENING * sizes.hidden_size
    return Shape(*widths, vocab_size=sizes.vocabulary, max_length=length, dropout=0.0)


def _setting() -> Setting:
    return Setting("forward", "fp32", "cpu", torch.get_num_threads())


def _is_short(seconds: Sequence[float]) -> bool:
    return sum(seconds) < ENOUGH_SECONDS and len(seconds) < MOST_ROUNDS


def _passes(sizes: StudySizes, length: int) -> dict[str, Callable[[], object]]:
    """Return a forward of each system on a row."""
    shape, (case,) = _shape(sizes, length), fixed_cases([length], [1], length)
    inputs = draw_inputs(case, vocab_size=sizes.vocabulary, device="cpu")
    return {
        name: pass_of(make_ready(build(system, shape), system, _setting()), inputs, _setting())
        for name, system in SYSTEMS.items()
    }


def _times(sizes: StudySizes, length: int) -> dict[str, dict[str, list[float]]]:
    """Time a row, and its half, round after round."""
    if length % 2:
        raise ValueError(f"lengths holds {length}, which has no half to compare it with: give even numbers")
    passes = {"seconds": _passes(sizes, length), "half_seconds": _passes(sizes, length // 2)}
    seconds: dict[str, dict[str, list[float]]] = {row: {name: [] for name in SYSTEMS} for row in passes}
    for runs in passes.values():
        for run in runs.values():
            run()
    # one pass of a short row says little
    while len(seconds["seconds"]["linear"]) < sizes.rounds or _is_short(seconds["seconds"]["softmax"]):
        for name in SYSTEMS:
            for row, runs in passes.items():
                seconds[row][name].append(round(seconds_of(runs[name]), 6))
    return seconds


def _measure(sizes: StudySizes, part: str, arm: str, seed: int) -> Cell:
    length = int(part)
    shape, (case,) = _shape(sizes, length), fixed_cases([length], [1], length)
    times = _times(sizes, length)
    peaks = {name: measure_peak(Task(system, shape, case, _setting(), PRECISION)) for name, system in SYSTEMS.items()}
    return {**times, "peak_bytes": peaks}


# telling


def _by_length(cells: Sequence[Cell]) -> list[Cell]:
    """Join the sweeps over the lengths, which are told apart by their seeds."""
    joined = []
    for length in sorted({int(cell["part"]) for cell in cells}):
        same = select(cells, part=str(length))
        times = {
            row: {name: [s for cell in same for s in cell[row][name]] for name in SYSTEMS}
            for row in ("seconds", "half_seconds")
        }
        peaks = {name: statistics.median(cell["peak_bytes"][name] for cell in same) for name in SYSTEMS}
        joined.append({"part": str(length), **times, "peak_bytes": peaks})
    return joined


def _median(cell: Cell, name: str) -> float:
    return statistics.median(cell["seconds"][name])


def _peak(cell: Cell, name: str) -> float:
    return cell["peak_bytes"][name]


def growth_of_time(cell: Cell, name: str) -> float:
    """Return what a row takes as a multiple of what its half takes: the median over the rounds."""
    pairs = zip(cell["seconds"][name], cell["half_seconds"][name], strict=True)
    return statistics.median(row / max(1e-9, half) for row, half in pairs)


def growth_of_memory(cells: Sequence[Cell], name: str) -> dict[int, float]:
    """Return by length what the peak grows by from its half, where that was measured."""
    peaks = {int(cell["part"]): _peak(cell, name) for cell in _by_length(cells)}
    return {n: peaks[n] / peaks[n // 2] for n in peaks if n % 2 == 0 and peaks.get(n // 2)}


def crossing(cells: Sequence[Cell], value: Any = _median) -> str:
    """Say from which length on linear attention is the cheaper one, between two measured lengths by straight lines."""
    logs = [
        (math.log(int(cell["part"])), math.log(max(1e-9, value(cell, "linear")) / max(1e-9, value(cell, "softmax"))))
        for cell in _by_length(cells)
    ]
    if logs[0][1] <= 0:
        return f"below {round(math.exp(logs[0][0])):,} tokens, the shortest row"
    for (x, high), (y, low) in itertools.pairwise(logs):
        if low <= 0 < high:
            return f"at about {round(math.exp(x + (y - x) * high / (high - low))):,} tokens"
    return f"nowhere up to {round(math.exp(logs[-1][0])):,} tokens"


def _ends(seconds: Sequence[float]) -> str:
    middle, low, high = (value / MILLI for value in (statistics.median(seconds), min(seconds), max(seconds)))
    return f"{middle:.4g} ({low:.4g}–{high:.4g})"


def _table(cells: Sequence[Cell], sizes: StudySizes) -> str:
    head = ["tokens"]
    for name in SYSTEMS:
        head += [f"{name}: ms, median (least–most)", "times the half", "MiB", "times the half"]
    rows = []
    for cell in _by_length(cells):
        length = int(cell["part"])
        row = [f"{length:,}"]
        for name in SYSTEMS:
            memory = growth_of_memory(cells, name).get(length)
            row += [_ends(cell["seconds"][name]), f"{growth_of_time(cell, name):.2f}"]
            row += [f"{_peak(cell, name) / MEBI:.1f}", "" if memory is None else f"{memory:.2f}"]
        rows.append(row)
    told = (
        f"Linear attention becomes the faster one {crossing(cells)}, and the smaller one {crossing(cells, _peak)}.\n"
    )
    return f"{markdown_table(head, rows)}\n{told}"


def _draw_panel(axes: Axes, cells: Sequence[Cell], value: Any, unit: float) -> None:
    for number, name in enumerate(SYSTEMS):
        points = [(int(cell["part"]), value(cell, name) / unit) for cell in _by_length(cells)]
        axes.plot(*zip(*points, strict=True), label=name, **style(number))
        if value is _median:
            times = [cell["seconds"][name] for cell in _by_length(cells)]
            ends = [[end(seconds) / unit for seconds in times] for end in (min, max)]
            axes.fill_between([n for n, _ in points], ends[0], ends[1], color=style(number)["color"], alpha=0.2)
    first = _by_length(cells)[0]
    lengths = [int(cell["part"]) for cell in _by_length(cells)]
    begun = value(first, "linear") / unit
    axes.plot(
        lengths,
        [begun * n / lengths[0] for n in lengths],
        color="0.6",
        linewidth=0.8,
        label="growing as the length does",
    )
    name_doublings(axes, lengths)
    axes.set_yscale("log")
    plain_numbers(axes.yaxis)
    axes.tick_params(axis="x", labelrotation=45)
    axes.legend(loc="upper left", fontsize=9)


def _draw(cells: Sequence[Cell], sizes: StudySizes) -> Figure:
    figure, (time, memory) = panels(2)
    _draw_panel(time, cells, _median, MILLI)
    _draw_panel(memory, cells, _peak, MEBI)
    time.set(title="time of a forward", xlabel="tokens of a row", ylabel="ms (shade: least to most)")
    memory.set(title="memory of a forward", xlabel="tokens of a row", ylabel="MiB beyond the loaded network")
    figure.suptitle(COST.title)
    return figure


COST = Claim(
    letter="g",
    name="cost",
    title="What linear attention costs, and softmax attention",
    sizes={
        "rounds": 3,
        "hidden_size": 256,
        "heads": 4,
        "lengths": [512, 1024, 2048, 4096, 8192, 16384, 32768],
    },
    arms=lambda sizes: [BOTH],
    parts=lambda sizes: [str(length) for length in sizes.lengths],
    texts=lambda sizes, part: {"ids": "drawn at random"},
    measure=_measure,
    table=_table,
    draw=_draw,
    settings={"mode": "forward", "rows": 1, "dtype": "float32"},
)

__all__ = ["COST", "crossing", "growth_of_memory", "growth_of_time"]
