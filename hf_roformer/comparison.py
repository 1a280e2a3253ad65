"""Runs side by side: what each recipe scores on average, and how much of that is the seed's luck.

Runs belong together where all that shaped them is the same but the seed.
"""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from .arguments import read_settings, split_places
from .facts import OtherRun
from .figures import drawable
from .markdown_tables import markdown_table
from .own_folders import write_figure
from .records import read_known
from .text_files import read_json

# a name or a folder shapes nothing
SHAPELESS = (
    "seed",
    "data_seed",
    "run_name",
    "hub_model_id",
    "report_to",
    "logging_dir",
    "project",
    "trackio_space_id",
)
NOT_SHOWN = ("loss",)
# what is read of a run; the plain loop leaves the scores alone
READ = {
    "seed": int | None,
    "recipe": dict[str, Any],
    "data": dict[str, Any],
    "metrics": dict[str, dict[str, float | None]],
}


@dataclass
class ComparisonArguments:
    """How runs are compared."""

    split: str = field(default="test", metadata={"help": "the split whose scores are compared"})
    figure: str | None = field(
        default=None,
        metadata={"help": "where the picture goes; unset: comparison.png beside the first of several runs"},
    )


@dataclass(frozen=True)
class Group:
    """The runs of one recipe: what sets it apart from the other recipes, and each run's seed and scores."""

    name: str
    seeds: list[Any]
    scores: dict[str, list[float]]


def read_results(run: Path) -> dict[str, Any]:
    """Read what a finished run left.

    Raises:
        ValueError: for a file that holds anything else.
        FileNotFoundError: where there is none.
    """
    path = run / "results.json" if run.is_dir() else run
    if not path.is_file():
        raise FileNotFoundError(f"{run} holds no results.json: it is no finished run of this package")
    return read_known(READ, read_json(path, "name the folder of a finished run"), str(path))


def _shape(results: Mapping[str, Any]) -> dict[str, Any]:
    """Return all that shaped a run but the seed."""
    recipe = {name: value for name, value in results.get("recipe", {}).items() if name not in SHAPELESS}
    data = results.get("data", {})
    told = {"base_model": results.get("base_model"), "data": data.get("name"), "rows": data.get("rows")}
    return {**recipe, **told, "problem": results.get("problem")}


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)


def _name(shape: dict[str, Any], others: Sequence[dict[str, Any]]) -> str:
    """Name a recipe by what is not the same in all of them."""
    names = sorted({name for other in others for name in other})
    apart = [name for name in names if any(other.get(name) != others[0].get(name) for other in others)]
    return ", ".join(f"{name} {_word(shape.get(name))}" for name in apart) or "all runs"


def _scores(results: Mapping[str, Any], split: str, run: Path) -> dict[str, float]:
    metrics = results.get("metrics", {})
    if split not in metrics:
        raise ValueError(f"{run} has no scores of {split}; it has {', '.join(metrics) or 'none'}")
    scores = metrics[split]
    return {name: value for name, value in scores.items() if name not in NOT_SHOWN and value is not None}


def _refuse_seed_again(found: dict[Any, Path], key: tuple[str, Any], run: Path) -> None:
    """Note the run of a recipe and a seed, and refuse a second one: the two would pass for a spread that is none."""
    if key in found:
        raise ValueError(f"{run} has the seed {key[1]}, and so has {found[key]}: name runs of other seeds")
    found[key] = run


def group_runs(runs: Sequence[Path], split: str = "test") -> list[Group]:
    """Gather the runs of each recipe, in the order in which the recipes come; a score that a run lacks is left out.

    Raises:
        ValueError: for a seed that comes twice in a recipe.
    """
    gathered: dict[str, list[tuple[dict, dict]]] = {}
    found: dict[Any, Path] = {}
    for run in runs:
        results = read_results(run)
        key = json.dumps(_shape(results), sort_keys=True)
        _refuse_seed_again(found, (key, results.get("seed")), run)
        gathered.setdefault(key, []).append((results, _scores(results, split, run)))
    shapes = [_shape(members[0][0]) for members in gathered.values()]
    groups = []
    for shape, members in zip(shapes, gathered.values(), strict=True):
        metrics = list(dict.fromkeys(name for _, scores in members for name in scores))
        values = {name: [scores[name] for _, scores in members if name in scores] for name in metrics}
        groups.append(Group(_name(shape, shapes), [results.get("seed") for results, _ in members], values))
    return groups


def other_seeds(run: Path, others: Sequence[Path]) -> list[OtherRun]:
    """Return seed and metrics of each of the other runs, which differ from `run` in the seed alone.

    Raises:
        ValueError: for a run of another recipe, and for a seed that comes twice.
    """
    own = read_results(run)
    wanted, found = _shape(own), {("", own.get("seed")): run}
    told: list[OtherRun] = []
    for place in others:
        results = read_results(place)
        shape, seed = _shape(results), results.get("seed")
        apart = sorted(name for name in {*shape, *wanted} if shape.get(name) != wanted.get(name))
        if apart:
            raise ValueError(f"{place} is no run of the recipe of {run}: {', '.join(apart)} differ")
        _refuse_seed_again(found, ("", seed), place)
        told.append({"seed": seed, "metrics": results.get("metrics", {})})
    return sorted(told, key=lambda entry: entry["seed"] or 0)


def _cell(values: Sequence[float]) -> str:
    """Tell mean, standard deviation over the runs, least and most; of one run its value."""
    if not values:
        return "-"
    mean = f"{statistics.fmean(values):.4f}"
    if len(values) == 1:
        return mean
    return f"{mean} ± {statistics.stdev(values):.4f} ({min(values):.4f}–{max(values):.4f})"


def _metrics_of(groups: Sequence[Group]) -> list[str]:
    return list(dict.fromkeys(name for group in groups for name in group.scores))


def comparison_table(groups: Sequence[Group]) -> str:
    """Lay the groups out in Markdown: mean ± standard deviation (least–most) over the runs."""
    metrics = _metrics_of(groups)
    head = ["recipe", "runs", "seeds", *metrics]
    rows: list[list[Any]] = [
        [group.name, len(group.seeds), ", ".join(map(str, group.seeds))]
        + [_cell(group.scores.get(name, [])) for name in metrics]
        for group in groups
    ]
    return markdown_table(head, rows)


def comparison_figure(groups: Sequence[Group], *, title: str) -> Figure:
    """Draw every run as a dot and each recipe's mean as a bar, one panel a metric."""
    metrics = _metrics_of(groups)
    figure = Figure(figsize=(9, max(2.0, (0.5 * len(groups) + 1.2) * len(metrics))), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(drawable(title), wrap=True)
    for axes, metric in zip(figure.subplots(len(metrics), squeeze=False)[:, 0], metrics, strict=True):
        for place, group in enumerate(groups):
            values = group.scores.get(metric, [])
            axes.plot(values, [place] * len(values), "o", alpha=0.6, color="C0")
            axes.plot([statistics.fmean(values)] if values else [], [place] if values else [], "|", ms=18, color="C1")
        axes.set_yticks(range(len(groups)), [drawable(group.name)[:60] for group in groups])
        axes.set_ylim(len(groups) - 0.5, -0.5)
        axes.set_xlabel(drawable(metric))
        axes.grid(axis="x", alpha=0.3)
    return figure


def compare_runs(command_line: Sequence[str]) -> str:
    """Read `RUN... [--split test] [--figure FILE]`, write the picture and return the table and where that is.

    One run alone is drawn only where a figure is named.
    """
    places, flags = split_places(command_line)
    if not places:
        raise ValueError("name the folders of the runs to compare, then the flags")
    (arguments,) = read_settings(flags, argument_types=(ComparisonArguments,))
    groups = group_runs([Path(place) for place in places], arguments.split)
    title = f"{arguments.split}: each run, and each recipe's mean"
    beside_runs = Path(places[0]).parent / "comparison.png" if len(places) > 1 else None
    picture = Path(arguments.figure) if arguments.figure else beside_runs
    if picture is None:
        return comparison_table(groups)
    write_figure(picture, comparison_figure(groups, title=title))
    return f"{comparison_table(groups)}\nEach run as a dot: {picture}\n"
