"""Time and memory of linear attention against softmax attention, in one network on rows of growing length.

Both are timed in turn, round after round; memory is the most that a forward takes beyond the loaded network, in a
process of its own.
"""

import itertools
import math
import statistics
from collections.abc import Sequence
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


def _is_short(seconds: Sequence[float]) -> bool:
    return sum(seconds) < ENOUGH_SECONDS and len(seconds) < MOST_ROUNDS


def _measure(sizes: StudySizes, part: str, arm: str, seed: int) -> Cell:
    length = int(part)
    setting = Setting("forward", "fp32", "cpu", torch.get_num_threads())
    shape, (case,) = _shape(sizes, length), fixed_cases([length], [1], length)
    inputs = draw_inputs(case, vocab_size=sizes.vocabulary, device="cpu")
    passes = {
        name: pass_of(make_ready(build(system, shape), system, setting), inputs, setting)
        for name, system in SYSTEMS.items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in passes}
    for run in passes.values():
        run()
    # one pass of a short row says little
    while len(seconds["linear"]) < sizes.rounds or _is_short(seconds["softmax"]):
        for name, run in passes.items():
            seconds[name].append(round(seconds_of(run), 6))
    del passes
    peaks = {name: measure_peak(Task(system, shape, case, setting, PRECISION)) for name, system in SYSTEMS.items()}
    return {"seconds": seconds, "peak_bytes": peaks}


# telling


def _by_length(cells: Sequence[Cell]) -> list[Cell]:
    """Join the sweeps over the lengths, which are told apart by their seeds."""
    joined = []
    for length in sorted({int(cell["part"]) for cell in cells}):
        same = select(cells, part=str(length))
        seconds = {name: [s for cell in same for s in cell["seconds"][name]] for name in SYSTEMS}
        peaks = {name: statistics.median(cell["peak_bytes"][name] for cell in same) for name in SYSTEMS}
        joined.append({"part": str(length), "seconds": seconds, "peak_bytes": peaks})
    return joined


def _median(cell: Cell, name: str) -> float:
    return statistics.median(cell["seconds"][name])


def _peak(cell: Cell, name: str) -> float:
    return cell["peak_bytes"][name]


def growth(cells: Sequence[Cell], name: str, value: Any) -> list[tuple[int, float]]:
    """Return what a value (of a length's cell and a system) grows by from each length to its double."""
    known = {int(cell["part"]): value(cell, name) for cell in _by_length(cells)}
    return [(n, known[n] / known[n // 2]) for n in sorted(known) if n % 2 == 0 and known.get(n // 2)]


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
    grown = {(name, value): dict(growth(cells, name, value)) for name in SYSTEMS for value in (_median, _peak)}
    rows = []
    for cell in _by_length(cells):
        length = int(cell["part"])
        row = [f"{length:,}"]
        for name in SYSTEMS:
            times, memory = (grown[name, value].get(length) for value in (_median, _peak))
            row += [_ends(cell["seconds"][name]), "" if times is None else f"{times:.2f}"]
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
        "rounds": 1,
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

__all__ = ["COST", "crossing", "growth"]
