"""What a benchmark tells: its numbers as JSON, a table, and a figure of time and memory against length."""

import dataclasses
import json
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogFormatter, NullLocator

from .own_folders import make_folder, write_figure, write_whole
from .records import read_facts, read_value
from .text_files import parse_json

MILLI, MEBI = 1e-3, 2**20
# each kind of system has one colour and mark in every figure; what has options differs from its kind by the mark
COLOURED = ("ours", "builtin", "bert", "modernbert", "eurobert", "nomic_bert", "linear", "onnx", "onnx_int8")
MARKERS, VARIANTS = "osD^vPX<>p", "*d8h"
MEASURE_AGAIN = "measure it again"
COMPUTED = ("median", "quartiles")
WIDEST_LINE = 1.8
# the series whose cases no line joins
MIXED = "mixed"
COLUMNS = (
    "case",
    "system",
    "products",
    "ms, median (quartiles)",
    "/ floor",
    "/ fast floor",
    "/ ours",
    "real tokens/s",
    "of matrix rate",
    "peak MiB",
    "note",
)
LEGEND = """\
`/ floor`, `/ fast floor`, `/ ours`: the median over rounds of the time divided by that system's time in the same
round; `ours` is ours with fast products where those were taken. Peak: beyond the loaded model, each in a process of
its own. `of matrix rate`: the wanted products (the floor's) a second, of what one large product reaches on the same
road."""


@dataclass
class Record:
    """What was found of one system on one case; `status` is `ok`, `over memory`, `failed` or `not run`."""

    system: str
    products: str
    case: str
    series: str
    longest: int
    rows: int
    real_tokens: int
    cells: int
    flop: int
    mode: str
    dtype: str
    status: str = "ok"
    reason: str = ""
    seconds: list[float] = field(default_factory=list)
    estimated_bytes: int | None = None
    peak_bytes: int | None = None
    matrix_rate: float | None = None

    @property
    def median(self) -> float:
        """Seconds of a pass; NaN where none was timed."""
        return statistics.median(self.seconds) if self.seconds else math.nan

    def refuse_zeros(self) -> None:
        """Refuse times and counts that nothing can be divided by."""
        least = min(self.rows, self.real_tokens, self.cells, *self.seconds)
        if least <= 0:
            raise ValueError(
                f"the report: {self.system} on {self.case} holds {least} where seconds, rows and tokens must be above "
                f"0: {MEASURE_AGAIN}"
            )

    @property
    def group(self) -> tuple[str, str]:
        """What shares one part of the table and one row of the figure."""
        return self.mode, self.dtype


@dataclass
class Report:
    """A run: what it ran on, what was asked, how far ours is from the built-in, and a record for each system."""

    command: str
    machine: dict[str, Any]
    versions: dict[str, str]
    settings: dict[str, Any]
    fast_products: str
    differences: dict[str, dict[str, float]]
    records: list[Record]

    def to_json(self) -> str:
        """Write everything, quartiles too."""
        facts = dataclasses.asdict(self)
        for record, told in zip(self.records, facts["records"], strict=True):
            told["median"], told["quartiles"] = _or_none(record.median), quartiles(record.seconds)
        return json.dumps(facts, indent=1, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Report":
        """Read what `to_json` wrote.

        Raises:
            ValueError: for a text that holds anything else.
        """
        facts = read_value(dict[str, Any], parse_json(text, "the report", MEASURE_AGAIN), "the report")
        told = read_value(list[dict[str, Any]], facts.get("records"), "the report: records")
        # what follows from the times is not read
        facts["records"] = [{k: v for k, v in record.items() if k not in COMPUTED} for record in told]
        report: Report = read_facts(cls, facts, "the report")
        for record in report.records:
            record.refuse_zeros()
        return report


def _or_none(number: float) -> float | None:
    return number if math.isfinite(number) else None


def quartiles(values: Sequence[float]) -> list[float]:
    """Return the first and third quartile, within what was seen; none of fewer than two values."""
    if len(values) < 2:
        return []
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return [first, third]


def ratios(record: Record, other: Record | None) -> list[float]:
    """Return the ratio of the times, round by round."""
    return [] if other is None else [a / b for a, b in zip(record.seconds, other.seconds, strict=False)]


def find(records: Iterable[Record], like: Record, system: str, products: Sequence[str]) -> Record | None:
    """Return the timed record of a system on the same case, with the first of the products that there is."""
    same = [r for r in records if (r.case, r.group, r.system) == (like.case, like.group, system) and r.seconds]
    return next((record for wanted in products for record in same if record.products == wanted), None)


def _spread(values: Sequence[float], form: str) -> str:
    if not values:
        return ""
    ends = quartiles(values)
    middle = format(statistics.median(values), form)
    return f"{middle} ({format(ends[0], form)}–{format(ends[1], form)})" if ends else middle


def _ratio_cells(record: Record, records: Sequence[Record]) -> list[str]:
    compared = (("floor", ("default",)), ("floor", ("fast",)), ("ours", ("fast", "default")))
    others = [find(records, record, system, products) for system, products in compared]
    return [_spread(ratios(record, other), ".2f") for other in others]


def _row(record: Record, records: Sequence[Record]) -> list[str]:
    rate = record.matrix_rate
    timed = bool(record.seconds)
    return [
        record.case if record.real_tokens == record.cells else f"{record.case}, {record.real_tokens}/{record.cells}",
        record.system,
        record.products,
        _spread([second / MILLI for second in record.seconds], ".4g"),
        *_ratio_cells(record, records),
        f"{record.real_tokens / record.median:.0f}" if timed else "",
        f"{record.flop / record.median / rate:.0%}" if timed and rate else "",
        "" if record.peak_bytes is None else f"{record.peak_bytes / MEBI:.0f}",
        record.reason if record.status == "ok" else f"{record.status}: {record.reason}".rstrip(": "),
    ]


def _line(cells: Iterable[str]) -> str:
    # a failure's own words must not end the row
    return f"| {' | '.join(' '.join(cell.split()).replace('|', '/') for cell in cells)} |"


def _groups(records: Sequence[Record]) -> list[tuple[str, str]]:
    return list(dict.fromkeys(record.group for record in records))


def _heading(report: Report) -> list[str]:
    machine = ", ".join(f"{name} {value}" for name, value in report.machine.items())
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    settings = ", ".join(f"{name} {value}" for name, value in report.settings.items())
    lines = [f"`{report.command}`", "", f"- machine: {machine}", f"- versions: {versions}", f"- settings: {settings}"]
    lines.append(f"- fast products: {report.fast_products}")
    for case, found in report.differences.items():
        differences = ", ".join(f"{name} {difference:.2g}" for name, difference in found.items())
        lines.append(f"- largest difference to the built-in on the real tokens of {case}, fp32: {differences}")
    return lines


def markdown(report: Report) -> str:
    """Return the table, one row for each system and case, under what it was run on."""
    lines = ["# Benchmark", "", *_heading(report), "", LEGEND]
    for group in _groups(report.records):
        lines += ["", f"## {' '.join(group)}", "", _line(COLUMNS), _line(["---"] * len(COLUMNS))]
        lines += [_line(_row(record, report.records)) for record in report.records if record.group == group]
    return "\n".join(lines) + "\n"


def _style(record: Record, systems: Sequence[str], lines: Sequence[str]) -> dict[str, Any]:
    """Tell systems by colour and marker, fast products by dashes, and mixed lengths by hollow marks."""
    kind, *options = record.system.split("+")
    place = COLOURED.index(kind) if kind in COLOURED else len(COLOURED)
    style: dict[str, Any] = {"color": f"C{place}", "marker": MARKERS[place], "markersize": 5}
    if options:
        variants = [system for system in systems if system.startswith(f"{kind}+")]
        style["marker"] = VARIANTS[variants.index(record.system) % len(VARIANTS)]
    if kind == "floor":
        style |= {"color": "black", "marker": "_"}
    if record.series == MIXED:
        return style | {"linestyle": "none", "markerfacecolor": "none"}
    style["linewidth"] = WIDEST_LINE / (1 + lines.index(record.series))
    return style | {"linestyle": "--" if record.products == "fast" else "-"}


def _points(records: Sequence[Record], like: Record, value: Callable[[Record], float]) -> list[tuple[float, float]]:
    drawn = (like.system, like.products, like.series)
    found = [record for record in records if (record.system, record.products, record.series) == drawn]
    points = sorted((record.real_tokens / record.rows, value(record)) for record in found)
    return [(length, height) for length, height in points if height > 0]


def _in_full(number: float, _: Any = None) -> str:
    return f"{number:,.0f}" if number >= 1 else f"{number:g}"


class _MinorInFull(LogFormatter):
    """Label the ticks that the library would, without powers of ten."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return _in_full(x) if super().__call__(x, pos) else ""


def _draw(axes: Axes, records: Sequence[Record], value: Callable[[Record], float], unit: str) -> None:
    systems = list(dict.fromkeys(record.system for record in records))
    lines = list(dict.fromkeys(record.series for record in records if record.series != MIXED))
    first_of_each = {(record.system, record.products, record.series): record for record in reversed(records)}
    named: set[str] = set()
    for record in reversed(first_of_each.values()):
        points = _points(records, record, value)
        label = f"{record.system}, fast products" if record.products == "fast" else record.system
        if points:
            told: dict[str, Any] = {"label": label} if label not in named else {}
            axes.plot(*zip(*points, strict=True), **told, **_style(record, systems, lines))
            named.add(label)
    axes.set(xscale="log", yscale="log", ylabel=unit, xlabel="tokens of a text (mean)")
    axes.grid(alpha=0.3, which="both")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(_in_full))
    axes.yaxis.set_minor_formatter(_MinorInFull(minor_thresholds=(1, 0.5)))
    lengths = sorted({record.real_tokens / record.rows for record in records})
    axes.xaxis.set_major_locator(FixedLocator(lengths))
    if len(lengths) == 1:
        axes.set_xlim(lengths[0] / 2, lengths[0] * 2)
    axes.xaxis.set_minor_locator(NullLocator())


PANELS: tuple[tuple[str, Callable[[Record], float]], ...] = (
    ("ms a pass, median", lambda record: record.median / MILLI),
    ("MiB beyond the loaded model", lambda record: (record.peak_bytes or 0) / MEBI),
)


def figure_of(report: Report) -> Figure:
    """Draw time of a pass, and memory where it was measured, against length; a row for each mode and dtype.

    All axes are logarithmic.
    """
    groups = _groups(report.records)
    panels = PANELS if any(record.peak_bytes for record in report.records) else PANELS[:1]
    figure = Figure(figsize=(2 + 5.5 * len(panels), 4.8 * len(groups)), layout="constrained")
    FigureCanvasAgg(figure)
    rows = figure.subplots(len(groups), len(panels), squeeze=False)
    for row, group in zip(rows, groups, strict=True):
        records = [record for record in report.records if record.group == group]
        for axes, (unit, value) in zip(row, panels, strict=True):
            _draw(axes, records, value, unit)
        left, right = row[0], row[-1]
        left.set_title(
            f"{' '.join(group)}; hollow: mixed lengths" if MIXED in {r.series for r in records} else " ".join(group)
        )
        if left.get_legend_handles_labels()[0]:
            right.legend(*left.get_legend_handles_labels(), loc="center left", bbox_to_anchor=(1, 0.5), fontsize=8)
    return figure


def write_report(report: Report, folder: Path) -> None:
    """Write `benchmark.json`, `benchmark.md` and `benchmark.png`."""
    make_folder(folder)
    write_whole(folder / "benchmark.json", report.to_json())
    write_whole(folder / "benchmark.md", markdown(report))
    write_figure(folder / "benchmark.png", figure_of(report), 110)
