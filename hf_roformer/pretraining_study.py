"""What pretraining buys: one network, one budget, several starts, several seeds, with many labels and with few.

Every start has the same shape and the same tokenizer, so that nothing differs but the weights that the fine-tuning
begins with. What is finished is kept: a study that was stopped goes on where it stood, and several processes may share
one, each told its starts.
"""

import json
import logging
import random
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from transformers import set_seed

from .arguments import read_settings
from .base_models import num_ids
from .configuration_roformer import HFRoFormerConfig
from .data import load_splits
from .modeling_roformer import HFRoFormerForMaskedLM
from .own_folders import make_folder, write_figure, write_whole
from .pretraining import pretrain
from .pretraining_arguments import PretrainingArguments, PretrainingRunArguments
from .pretraining_texts import load_documents
from .publishing import read_results, write_results
from .records import check_fields, read_value
from .text_files import read_json, read_text
from .tokenization_roformer import HFRoFormerTokenizer, build_char_vocabulary
from .training import finetune

logger = logging.getLogger(__name__)

NOTHING = "nothing"
MEASURE_AGAIN = "take it away, and the study makes it again"
# what is read of a fine-tuning
CELL: dict[str, Any] = {"start": str, "rows": int | None, "test": float}


@dataclass
class StudyArguments:
    """Which texts are pretrained on, and how often the fine-tuning is repeated."""

    output_dir: str = field(default="runs/pretraining_study", metadata={"help": "where the study lies"})
    starts: list[str] | None = field(default=None, metadata={"help": "which starts to run; null: all"})
    corpora: dict[str, Any] = field(default_factory=dict, metadata={"help": "name: recipe of a pretraining"})
    files: dict[str, Any] = field(default_factory=dict, metadata={"help": "name of a corpus: its train_files"})
    continued: dict[str, Any] = field(
        default_factory=dict, metadata={"help": "name: the corpus to go on from, over the unlabelled training texts"}
    )
    continued_recipe: str | None = field(default=None, metadata={"help": "recipe of that going on"})
    finetuning: str = field(default="", metadata={"help": "recipe of the fine-tuning"})
    budgets: list[dict[str, Any]] = field(
        default_factory=list, metadata={"help": "{rows: , epochs: } each; rows null: all of the training texts"}
    )
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2], metadata={"help": "of the fine-tuning"})
    vocabulary_size: int = field(default=6000, metadata={"help": "most entries of the tokenizer of all starts"})

    def __post_init__(self) -> None:
        """Refuse what names no start."""
        known = [NOTHING, *self.corpora, *self.continued]
        if unknown := sorted(set(self.starts or []) - set(known)):
            raise ValueError(f"starts has {', '.join(unknown)}; there are {', '.join(known)}")
        if lost := [str(name) for name in self.continued.values() if name not in list(self.corpora)]:
            raise ValueError(f"continued goes on from {', '.join(lost)}, which is no corpus")
        for number, budget in enumerate(self.budgets):
            check_fields({"rows": int | None, "epochs": float}, budget, f"budgets[{number}]")

    @property
    def chosen(self) -> list[str]:
        """The starts to run."""
        return self.starts or [NOTHING, *self.corpora, *self.continued]

    def place(self, *parts: str) -> Path:
        """Return a place in the study's folder."""
        return Path(self.output_dir, *parts)


def _write_once(path: Path, text: str) -> None:
    if not path.exists():
        make_folder(path.parent)
        write_whole(path, text)


# the texts and the tokenizer of all starts


def _recipe_of(study: StudyArguments, name: str) -> list[str]:
    """Return the command line of a corpus' pretraining, bar its tokenizer."""
    flags = [str(study.corpora[name]), "--output_dir", str(study.place(name)), "--overwrite"]
    files = study.files.get(name)
    return [*flags, "--train_files", *([files] if isinstance(files, str) else files)] if files else flags


def _read_pretraining(command_line: Sequence[str]) -> tuple[PretrainingArguments, PretrainingRunArguments]:
    told, training = read_settings(command_line, argument_types=(PretrainingArguments, PretrainingRunArguments))
    return told, training


def write_splits(study: StudyArguments) -> None:
    """Write the reviews' splits as files, the training ones also without their labels."""
    task, _ = read_settings([study.finetuning])
    splits = load_splits(task)
    for name, rows in splits.named.items():
        lines = (json.dumps({"text": row["text"], "label": row["label"]}, ensure_ascii=False) for row in rows)
        _write_once(study.place(f"{name}.jsonl"), "\n".join(lines) + "\n")
    _write_once(
        study.place("unlabelled.txt"), "\n".join(" ".join(text.split()) for text in splits.train["text"]) + "\n"
    )


def build_tokenizer(study: StudyArguments) -> Path:
    """Build the tokenizer of all starts from everything that any of them may read in training."""
    folder = study.place("tokenizer")
    if not (folder / "tokenizer.json").exists():
        texts = read_text(study.place("unlabelled.txt"), MEASURE_AGAIN, most=None).splitlines()
        for name in study.corpora:
            texts += load_documents(_read_pretraining(_recipe_of(study, name))[0]).train()
        HFRoFormerTokenizer(
            vocab=build_char_vocabulary(texts, size=study.vocabulary_size, min_count=2)
        ).save_pretrained(folder)
    return folder


# the starts


def _pretrain_once(command_line: list[str]) -> None:
    told, training = _read_pretraining(command_line)
    folder = Path(str(training.output_dir))
    if not (folder / "results.json").exists():
        run = pretrain(told, training)
        write_results(run.folder, run.facts)


def make_start(study: StudyArguments, name: str, tokenizer: Path) -> None:
    """Pretrain a start, unless that is done."""
    if name in study.corpora:
        _pretrain_once([*_recipe_of(study, name), "--tokenizer", str(tokenizer)])
    elif name in study.continued:
        base = study.continued[name]
        make_start(study, base, tokenizer)
        command_line = [str(study.continued_recipe), "--base_model", str(study.place(base)), "--overwrite"]
        command_line += ["--train_files", str(study.place("unlabelled.txt")), "--output_dir", str(study.place(name))]
        _pretrain_once(command_line)


def _untrained(study: StudyArguments, seed: int, tokenizer: Path) -> Path:
    """Write a network of the corpora's shape that has learnt nothing."""
    folder = study.place(f"{NOTHING}_{seed}")
    if not (folder / "config.json").exists():
        told, _ = _read_pretraining(_recipe_of(study, next(iter(study.corpora))))
        read = HFRoFormerTokenizer.from_pretrained(tokenizer)
        sizes = {"vocab_size": num_ids(read), "pad_token_id": read.pad_token_id}
        set_seed(seed)
        config = HFRoFormerConfig(**{**sizes, "max_position_embeddings": told.longest, **(told.model_config or {})})
        HFRoFormerForMaskedLM(config).save_pretrained(folder)
        read.save_pretrained(folder)
    return folder


# the cells


def _sample(study: StudyArguments, rows: int | None, seed: int) -> Path:
    """Return the file of so many training rows; which ones depends on the seed alone."""
    whole = study.place("train.jsonl")
    if rows is None:
        return whole
    path = study.place(f"train_{rows}_{seed}.jsonl")
    lines = read_text(whole, MEASURE_AGAIN, most=None).splitlines()
    _write_once(path, "\n".join(random.Random(seed).sample(lines, rows)) + "\n")
    return path


def _cell_name(start: str, rows: int | None, seed: int) -> str:
    return f"{start}-{rows or 'all'}-{seed}"


def _settings(study: StudyArguments, start: str, budget: dict[str, Any], seed: int) -> Any:
    base = _untrained(study, seed, study.place("tokenizer")) if start == NOTHING else study.place(start)
    name = _cell_name(start, budget["rows"], seed)
    flags = {
        "package": "null",
        "deduplicate": "false",
        "train_file": _sample(study, budget["rows"], seed),
        "validation_file": study.place("validation.jsonl"),
        "test_file": study.place("test.jsonl"),
        "base_model": base,
        "num_train_epochs": budget["epochs"],
        "seed": seed,
        "output_dir": study.place("runs", name),
    }
    words = [word for key, value in flags.items() for word in (f"--{key}", str(value))]
    return read_settings([study.finetuning, *words, "--overwrite"])


def run_cell(study: StudyArguments, start: str, budget: dict[str, Any], seed: int) -> None:
    """Fine-tune once and keep what it scored, unless that is done."""
    path = study.place("cells", f"{_cell_name(start, budget['rows'], seed)}.json")
    if path.exists():
        return
    task, training = _settings(study, start, budget, seed)
    facts = finetune(task, training).facts
    cell = {"start": start, "rows": budget["rows"], "epochs": budget["epochs"], "seed": seed}
    cell |= {"validation": facts.metrics["validation"]["accuracy"], "test": facts.metrics["test"]["accuracy"]}
    cell |= {"steps": facts.trained_steps, "seconds": round(facts.train_seconds or 0, 1)}
    _write_once(path, json.dumps(cell, indent=2) + "\n")


def run_study(study: StudyArguments) -> None:
    """Do what is not done of the starts that are chosen, the budgets in their order."""
    write_splits(study)
    tokenizer = build_tokenizer(study)
    for start in study.chosen:
        make_start(study, start, tokenizer)
    for budget in study.budgets:
        for seed in study.seeds:
            for start in study.chosen:
                run_cell(study, start, budget, seed)


# what comes out


def read_cells(study: StudyArguments) -> list[dict[str, Any]]:
    """Read what is finished.

    Raises:
        ValueError: for a cell that is damaged.
    """
    paths = sorted(study.place("cells").glob("*.json"))
    cells = [read_json(path, MEASURE_AGAIN) for path in paths]
    for path, cell in zip(paths, cells, strict=True):
        check_fields(CELL, cell, str(path))
    return cells


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "not run"
    deviation = f" ± {100 * statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{100 * statistics.mean(values):.2f}{deviation} ({len(values)})"


def _of(cells: Iterable[dict[str, Any]], start: str, rows: int | None, part: str) -> list[float]:
    return [cell[part] for cell in cells if cell["start"] == start and cell["rows"] == rows]


def _all_starts(study: StudyArguments) -> list[str]:
    return [NOTHING, *study.corpora, *study.continued]


def _pretrained_rows(study: StudyArguments) -> list[str]:
    lines = [
        "| pretraining | steps | tokens seen | seconds | held-out loss | accuracy | perplexity |",
        "|" + " --- |" * 7,
    ]
    for name in [*study.corpora, *study.continued]:
        if not study.place(name, "results.json").exists():
            continue
        facts = read_results(study.place(name))
        stages = read_value(list[dict[str, Any]], facts.recipe.get("schedule"), f"schedule of {name}")
        length, *_ = stages
        tokens = sum(s["max_length"] * s["batch_size"] * s["steps"] for s in stages)
        scores = facts.metrics[f"validation at {length['max_length']}"]
        lines.append(
            f"| {name} | {facts.trained_steps} | {tokens:,} | {facts.train_seconds:.0f} | {scores['loss']:.3f} | "
            f"{scores['accuracy']:.3f} | {scores['perplexity']:.1f} |"
        )
    return lines


def table(study: StudyArguments) -> str:
    """Tell the study in two Markdown tables: the pretrainings, and test accuracy by start and budget."""
    cells = read_cells(study)
    heads = [f"{b['rows'] or 'all'} rows, epochs: {b['epochs']}" for b in study.budgets]
    lines = [*_pretrained_rows(study), "", f"| start | {' | '.join(heads)} |", "|" + " --- |" * (len(heads) + 1)]
    for start in _all_starts(study):
        values = [_spread(_of(cells, start, budget["rows"], "test")) for budget in study.budgets]
        lines.append(f"| {start} | {' | '.join(values)} |")
    return "\n".join(lines) + "\n"


def draw(study: StudyArguments) -> Figure:
    """Draw each start's test accuracy: a dash for the mean, a point for each seed."""
    cells, starts = read_cells(study), _all_starts(study)
    figure = Figure(figsize=(8, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    width = 0.8 / len(starts)
    for number, start in enumerate(starts):
        for at, budget in enumerate(study.budgets):
            values = [100 * value for value in _of(cells, start, budget["rows"], "test")]
            if not values:
                continue
            place = at + (number - (len(starts) - 1) / 2) * width
            label = start.replace("_", " ") if at == 0 else None
            axes.plot([place] * len(values), values, "o", color=f"C{number}", markersize=6, label=label)
            axes.plot([place], [statistics.mean(values)], "_", color=f"C{number}", markersize=34, markeredgewidth=3)
    points = [100 * cell["test"] for cell in cells]
    axes.set_ylim(min(points, default=50) - 3, max(points, default=100) + 3)
    axes.set_xticks(range(len(study.budgets)), [f"{b['rows'] or 'all'} labelled reviews" for b in study.budgets])
    axes.set_ylabel("test accuracy, %")
    axes.set_title("Fine-tuning from different starts (dash: mean, point: one seed)")
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.1), ncols=len(starts), frameon=False, title="pretrained on")
    axes.grid(axis="y", alpha=0.3)
    return figure


def write_study(study: StudyArguments) -> str:
    """Write table, figure and cells into the study's folder; return the table."""
    told = table(study)
    write_whole(study.place("table.md"), told)
    write_whole(study.place("cells.json"), json.dumps(read_cells(study), indent=2) + "\n")
    write_figure(study.place("study.png"), draw(study))
    return told


__all__ = ["StudyArguments", "draw", "run_study", "table", "write_study"]
