"""What an export costs in answers: labelled rows through the model and through each file, scored by the same metrics.

Times are taken only when asked for, each batch by all systems in turn, since a ratio means something only between
neighbours.
"""

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from transformers import EvalPrediction, PreTrainedTokenizerBase

from .arguments import TaskArguments, read_settings
from .benchmark_machine import describe_machine
from .data import encode, load_splits, prepare_table
from .exported_files import Run, run_of
from .exported_graphs import Exportable, Rows
from .markdown_tables import markdown_table
from .sources import read_source
from .task_table import task_of
from .tasks import Held, Task

RECIPES = (".yaml", ".yml")
MODEL = "torch"
SCORED_HEAD = "sequence_classification"


@dataclass(frozen=True)
class Labelled:
    """Rows with their labels, as prepared and as the network reads them, and whence they came."""

    task: Task
    held: Held
    labels: list[str]
    source: str


def _settings_for(file: Path, source: str, exportable: Exportable) -> TaskArguments:
    config = exportable.config
    labels = list(config.id2label.values()) if config.problem_type != "regression" else None
    return TaskArguments(
        base_model=source,
        train_file=str(file),
        labels=labels,
        problem_type=config.problem_type or "single_label_classification",
    )


def _rows_of(file: Path, source: str, exportable: Exportable) -> tuple[TaskArguments, Dataset, list[str], str]:
    """Read a recipe's test rows, or all rows of a table with the columns text and label."""
    if file.suffix in RECIPES:
        settings, _ = read_settings([str(file)])
        splits = load_splits(settings)
        split, rows = ("test", splits.test) if splits.test is not None else ("validation", splits.validation)
        return settings, rows, splits.labels, f"{split} rows of {file.name} ({splits.facts['source']})"
    settings = _settings_for(file, source, exportable)
    table = prepare_table(settings, read_source(settings).tables["train"], "test")
    return settings, Dataset.from_dict(table), list(exportable.config.id2label.values()), f"rows of {file.name}"


def read_labelled(file: Path, source: str, exportable: Exportable, tokenizer: PreTrainedTokenizerBase) -> Labelled:
    """Read labelled rows for a model that classifies texts.

    Raises:
        ValueError: for another head, and for labels that are not the model's.
    """
    if exportable.head != SCORED_HEAD:
        raise ValueError(f"--evaluate scores labels of texts, and the head is {exportable.head}: leave it out")
    settings, rows, labels, told = _rows_of(file, source, exportable)
    known = list(exportable.config.id2label.values())
    if labels != known:
        raise ValueError(f"the rows of {file.name} have the labels {labels}, and the model {known}: name its own data")
    return Labelled(task_of(settings), Held(rows, encode(rows, tokenizer, settings, labels)), labels, told)


# answers


def _batches(labelled: Labelled, exportable: Exportable, tokenizer: Any, size: int) -> tuple[list[Rows], list[int]]:
    """Lay rows of like length out together; return the batches, and the number of each row in them."""
    features = labelled.held.features
    lengths = [len(ids) for ids in features["input_ids"]]
    order = sorted(range(len(lengths)), key=lambda at: (lengths[at], at))
    collate = labelled.task.collator(tokenizer)
    batches = []
    for start in range(0, len(order), size):
        batch = collate([features[at] for at in order[start : start + size]])
        batches.append({name: batch[name] for name in exportable.axes})
    return batches, order


def answer(run: Run, batches: Sequence[Rows], order: Sequence[int]) -> np.ndarray:
    """Return the logits of all rows, each in its row's place."""
    logits: Tensor = torch.cat([run(batch)["logits"] for batch in batches])
    placed = torch.empty_like(logits)
    placed[torch.tensor(order)] = logits
    return placed.numpy()


def _agreement(problem: str, logits: np.ndarray, wanted: np.ndarray) -> dict[str, float]:
    if problem == "regression":
        return {}
    several = problem == "multi_label_classification"
    chosen, right = (logits > 0, wanted > 0) if several else (logits.argmax(-1), wanted.argmax(-1))
    return {"answers_as_the_model": float((chosen == right).mean())}


def _scores(labelled: Labelled, logits: np.ndarray, wanted: np.ndarray) -> dict[str, float]:
    score = labelled.task.scorer(labelled.held, labelled.labels, {})
    labels = np.asarray(labelled.held.features["labels"])
    return {
        **score(EvalPrediction(predictions=logits, label_ids=labels)),
        **_agreement(labelled.task.problem, logits, wanted),
        "largest_difference": float(np.abs(logits - wanted).max()),
    }


# times


def _seconds(run: Run, batch: Rows) -> float:
    start = time.perf_counter()
    run(batch)
    return time.perf_counter() - start


def time_in_turn(systems: Mapping[str, Run], batches: Sequence[Rows], rounds: int) -> dict[str, list[float]]:
    """Return each system's time over all batches as a share of the model's, round by round; a first one warms up."""
    shares: dict[str, list[float]] = {name: [] for name in systems}
    for number in range(rounds + 1):
        seconds = dict.fromkeys(systems, 0.0)
        for batch in batches:
            for name, run in systems.items():
                seconds[name] += _seconds(run, batch)
        if number:
            for name in systems:
                shares[name].append(seconds[name] / seconds[MODEL])
    return shares


def _bytes_of(exportable: Exportable) -> int:
    return sum(parameter.nbytes for parameter in exportable.parameters())


def evaluate(
    labelled: Labelled,
    exportable: Exportable,
    files: Mapping[str, tuple[Run, int]],
    tokenizer: PreTrainedTokenizerBase,
    *,
    batch_size: int,
    rounds: int,
) -> dict[str, Any]:
    """Score the model and each file, given with its size in bytes; with `rounds`, time them too."""
    batches, order = _batches(labelled, exportable, tokenizer, batch_size)
    systems = {MODEL: run_of(exportable), **{name: run for name, (run, _) in files.items()}}
    sizes = {MODEL: _bytes_of(exportable), **{name: size for name, (_, size) in files.items()}}
    wanted = answer(systems[MODEL], batches, order)
    scores = {name: _scores(labelled, answer(run, batches, order), wanted) for name, run in systems.items()}
    shares = time_in_turn(systems, batches, rounds) if rounds else {}
    return {
        "rows": len(order),
        "source": labelled.source,
        "batch_size": batch_size,
        "threads": torch.get_num_threads(),
        "machine": describe_machine("cpu"),
        "scores": scores,
        "bytes": sizes,
        "time_over_torch": shares,
    }


# telling


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}" if abs(value) < 1e-3 else f"{value:.4f}"


def _time_cell(shares: Sequence[float]) -> str:
    return f"{statistics.median(shares):.2f} ({min(shares):.2f}–{max(shares):.2f})" if shares else "not timed"


def markdown(evaluation: dict[str, Any]) -> str:
    """Return a table with a row for each system."""
    names = list(evaluation["scores"][MODEL])
    head = ["system", "MB", *(name.replace("_", " ") for name in names), "time / torch, median (range)"]
    rows = []
    for system, scores in evaluation["scores"].items():
        size = f"{evaluation['bytes'][system] / 1e6:.2f}"
        timed = _time_cell(evaluation["time_over_torch"].get(system, ()))
        rows.append([system, size, *(_cell(scores[name]) for name in names), timed])
    told = f"{evaluation['rows']:,} {evaluation['source']}, batches of {evaluation['batch_size']}"
    return f"{told}\n\n{markdown_table(head, rows)}"


__all__ = ["evaluate", "markdown", "read_labelled", "time_in_turn"]
