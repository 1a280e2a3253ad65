"""What one run leaves behind, in words and numbers: training fills it in, publishing writes it down."""

import importlib.metadata
import platform
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypedDict

from ._version import __version__


def versions_of(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of what took part: the language, this package, and those named."""
    named = {name: importlib.metadata.version(name) for name in packages}
    return {"python": platform.python_version(), "hf_roformer": __version__, **named}


class OtherRun(TypedDict):
    """A further run of the same recipe: its seed, and its metrics as those of the run itself."""

    seed: int | None
    metrics: dict[str, dict[str, float | None]]


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """Hold everything a reader may ask about one run; None or empty means that it was not recorded.

    recipe: every setting of the run, by name.
    data: name, source (a Hub id, file names or a package), hub_id (only when the data lies on the Hub),
        files (split to the name of its own file, for those that have one), columns (role to column),
        rows (split to count), labels (in the order of their ids).
    problem: what was learnt, by the name that publishing.py knows it by.
    metrics: split (validation, test) to metric to value.
    predictions: held-out items, each with text, text_pair (if any), predicted, score, label.
    base_model: where the first weights came from; None says that they were random.
    conversion: where the weights were converted and not trained, what was done to them.
    other_runs: seed and metrics of each further run of the same recipe.
    """

    model_name: str
    problem: str
    base_model: str | None
    recipe: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    num_parameters: int | None = None
    seed: int | None = None
    versions: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, dict[str, float | None]] = field(default_factory=dict)
    best_step: int | None = None
    trained_steps: int | None = None
    train_seconds: float | None = None
    predictions: list[dict[str, Any]] = field(default_factory=list)
    language: list[str] | None = None
    license: str | None = None
    conversion: dict[str, Any] = field(default_factory=dict)
    other_runs: list[OtherRun] = field(default_factory=list)
