"""From the facts of a run to the page and the file that tell of it.

Nothing here invents: a fact that was not recorded says so on the page and stays out of the metadata.
"""

import dataclasses
import json
import math
import re
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple

import numpy as np
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from huggingface_hub.utils import HFValidationError, validate_repo_id

from .facts import RunFacts
from .own_folders import write_whole
from .records import read_facts, read_known
from .text_files import read_json

TEMPLATE = Path(__file__).with_name("model_card_template.md")
NOT_RECORDED = "not recorded"
CORRECT = "correct it, or let the run write it again"
PICTURES = {
    "curves.png": "Losses and metrics against the step",
    "confusion.png": "True against predicted labels of the last split, as counts",
    "accuracy_by_length.png": "Accuracy by the number of tokens, with 95 % intervals",
}
SHOWN_CHARACTERS = 160


# what is told in an order of its own; everything else by the alphabet
SPLITS = ("train", "validation", "test", "before distillation")
COLUMNS = ("text", "text_pair", "choices", "label")
DATA = ("name", "source", "columns", "rows", "labels")


class Task(NamedTuple):
    """How a problem is called on the Hub and loaded from there."""

    words: str
    pipeline_tag: str
    auto_class: str


class Metric(NamedTuple):
    """How a metric is called on the Hub and on the page."""

    hub_id: str
    words: str


TASKS = {
    "single_label_classification": Task(
        "classification (one label a text)", "text-classification", "AutoModelForSequenceClassification"
    ),
    "multi_label_classification": Task(
        "classification (any number of labels a text)", "text-classification", "AutoModelForSequenceClassification"
    ),
    "regression": Task("regression", "text-classification", "AutoModelForSequenceClassification"),
    "question_answering": Task("question answering", "question-answering", "AutoModelForQuestionAnswering"),
    "token_classification": Task("token classification", "token-classification", "AutoModelForTokenClassification"),
    "multiple_choice": Task("multiple choice", "multiple-choice", "AutoModelForMultipleChoice"),
    "sentence_embedding": Task("sentence embedding", "sentence-similarity", "AutoModelForTextEncoding"),
    "masked_lm": Task("guessing masked tokens", "fill-mask", "AutoModelForMaskedLM"),
    "causal_lm": Task("writing on, token by token", "text-generation", "AutoModelForCausalLM"),
    "features": Task("reading, with a vector for each token", "feature-extraction", "AutoModel"),
    # no pipeline tells replaced tokens; that for features reads its body
    "replaced_tokens": Task("telling which tokens were replaced", "feature-extraction", "AutoModelForPreTraining"),
}

# the order is that of the page
METRICS = {
    "accuracy": Metric("accuracy", "accuracy"),
    "f1": Metric("f1", "F1"),
    "exact_match": Metric("exact_match", "exact match"),
    "macro_f1": Metric("f1", "macro F1"),
    "subset_accuracy": Metric("accuracy", "subset accuracy"),
    "precision": Metric("precision", "precision"),
    "recall": Metric("recall", "recall"),
    "pearson": Metric("pearsonr", "Pearson correlation"),
    "spearman": Metric("spearmanr", "Spearman correlation"),
    "mse": Metric("mse", "mean squared error"),
    "mae": Metric("mae", "mean absolute error"),
    "average_precision": Metric("average_precision", "average precision"),
    "mean_reciprocal_rank": Metric("mrr", "mean reciprocal rank"),
    "nearest": Metric("recall", "share of pairs that are nearest"),
    "matthews_correlation": Metric("matthews_correlation", "Matthews correlation"),
    "perplexity": Metric("perplexity", "perplexity"),
}


def _plain(value: Any) -> Any:
    """Reduce a value to what results.json holds: no NaN, no array, no path, text that UTF-8 can spell, sorted keys."""
    if isinstance(value, Mapping):
        # in the file's order, so that the card written from it is the same
        return {str(key): _plain(value[key]) for key in sorted(value, key=str)}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in (sorted(value, key=str) if isinstance(value, (set, frozenset)) else value)]
    if isinstance(value, (np.ndarray, np.generic)):
        return _plain(value.tolist())
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int)):
        return value
    return str(value).encode("utf-8", "backslashreplace").decode()


# a path inside other words, as in train=/folder/file; not the slashes of an address or of owner/name
EMBEDDED_PATH = re.compile(r"""(?<![\w:/.~<-])(?:~|\.\.)?(?:/[^/\s"',;]+)*/(?=[^/\s"',;])""")


def _without_folders(value: Any) -> Any:
    """Keep of each path that leads out of the working folder only its last name."""
    if isinstance(value, dict):
        return {key: _without_folders(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_folders(item) for item in value]
    if not isinstance(value, str):
        return value
    value = value.removeprefix("file://")
    if value.startswith(("/", "~", "../")):
        return PurePosixPath(value).name or value
    if re.match(r"[A-Za-z]:[\\/]|\.\.\\|\\\\", value):
        return PureWindowsPath(value).name
    return EMBEDDED_PATH.sub("", value)


def _is_folder(name: str | None) -> bool:
    return name is not None and Path(name).is_dir()


def _publishable(facts: RunFacts) -> RunFacts:
    """Return the facts as JSON will hold them, without this machine's folders."""
    fields = _plain({field.name: getattr(facts, field.name) for field in dataclasses.fields(facts)})
    if _is_folder(facts.base_model):
        # elsewhere it would look like a name on the Hub
        fields["base_model"] = Path(fields["base_model"]).resolve().name
    for name in ("model_name", "recipe", "base_model", "conversion"):
        fields[name] = _without_folders(fields[name])
    fields["data"] |= {name: _without_folders(fields["data"].get(name)) for name in ("name", "source")}
    if isinstance(fields["language"], str):
        fields["language"] = [fields["language"]]
    return RunFacts(**fields)


def render_results(facts: RunFacts) -> str:
    """Spell `results.json`: the fields of the facts, keys sorted, a number that is not finite as null."""
    fields = dataclasses.asdict(_publishable(facts))
    return json.dumps(fields, ensure_ascii=False, allow_nan=False, indent=2, sort_keys=True) + "\n"


def write_results(folder: Path, facts: RunFacts) -> None:
    """Write `results.json`."""
    write_whole(folder / "results.json", render_results(facts))


def read_results(folder: Path) -> RunFacts:
    """Read back what `write_results` wrote, so that a card can be written from the folder alone.

    Raises:
        ValueError: for a file that holds anything else.
    """
    path = Path(folder, "results.json")
    facts = read_facts(RunFacts, read_json(path, CORRECT), str(path))
    read_known({"labels": list | None, "files": dict[str, str]}, facts.data, f"{path}: data")
    for number, item in enumerate(facts.predictions):
        read_known({"choices": list[str]}, item, f"{path}: predictions[{number}]")
    return facts


# the last two keep an address from becoming a link
ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "&#64;", "://": ":&#47;&#47;", "www.": "www&#46;"}
MARKUP = re.compile(r"([\\`*_\[\]|~$])")


def _words(value: Any) -> str:
    """Spell a fact for a reader; a list or dict by its items."""
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_words(item)}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(_words, value))
    return json.dumps(value) if isinstance(value, bool) else NOT_RECORDED if value is None else str(value)


def _cell(value: Any) -> str:
    """Spell a fact as one line of Markdown that shows it and does nothing else."""
    line = " ".join("".join(c if c.isprintable() else " " for c in _words(value)).split())
    for character, spelt in ENTITIES.items():
        line = line.replace(character, spelt)
    return MARKUP.sub(r"\\\1", line) or NOT_RECORDED


def _clipped(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…"


def _rounded(value: Any) -> Any:
    """Round a measured number, or each of a list, to what is worth reading."""
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    if not isinstance(value, float):
        return value
    return f"{value:.4f}" if value == 0 or abs(value) >= 0.001 else f"{value:.3g}"


def _in_order(names: Iterable[str], first: Iterable[str]) -> list[str]:
    """Sort names, those that have a place of their own first."""
    names = set(names)
    placed = [name for name in first if name in names]
    return placed + sorted(names - set(placed))


def _splits(facts: RunFacts) -> list[str]:
    return _in_order(facts.metrics, SPLITS)


def _measured(facts: RunFacts) -> list[str]:
    """List the metrics of any split, ours first."""
    return _in_order({name for scores in facts.metrics.values() for name in scores}, METRICS)


def _all_seeds(facts: RunFacts) -> list[Any]:
    """List the seed of this run, then those of the other runs of its recipe."""
    return [facts.seed, *(run["seed"] for run in facts.other_runs)]


def _spread(facts: RunFacts, split: str, metric: str) -> str | None:
    """Tell mean ± standard deviation (number) over all runs that have the score."""
    scores = [run.get(split, {}).get(metric) for run in (facts.metrics, *(run["metrics"] for run in facts.other_runs))]
    known = [score for score in scores if score is not None]
    if len(known) < 2:
        return None
    mean, deviation = statistics.fmean(known), statistics.stdev(known)
    # to the digit to which the mean is told
    return f"{_rounded(mean)} ± {f'{deviation:.4f}' if abs(mean) >= 0.001 else _rounded(deviation)} ({len(known)})"


def _metric_head(facts: RunFacts) -> list[str]:
    """Name a column for each split and, where there are other runs, one for the spread beside it."""
    heads = [[split, f"{split}, all seeds"] if facts.other_runs else [split] for split in _splits(facts)]
    return ["metric", *(head for pair in heads for head in pair)]


def _metric_rows(facts: RunFacts) -> list[list[Any]]:
    rows = []
    for name in _measured(facts):
        row = [METRICS[name].words if name in METRICS else name]
        for split in _splits(facts):
            row.append(_rounded(facts.metrics[split].get(name)))
            row += [_spread(facts, split, name)] if facts.other_runs else []
        rows.append(row)
    return rows


def _data_rows(facts: RunFacts) -> list[tuple[str, Any]]:
    """Tell of the data, what every run should record first."""
    told: dict[str, Any] = dict.fromkeys(DATA) | facts.data
    for name, first in (("columns", COLUMNS), ("rows", SPLITS)):
        if isinstance(told[name], dict):
            told[name] = {key: told[name][key] for key in _in_order(told[name], first)}
    if told["labels"]:
        told["labels"] = f"{len(told['labels'])}: {_clipped(_words(told['labels']))}"
    rows = [(name.replace("_", " "), told[name]) for name in _in_order(told, DATA) if name not in ("hub_id", "files")]
    return [*rows, ("language", facts.language)]


def _run_rows(facts: RunFacts) -> list[tuple[str, Any]]:
    return [
        ("parameters", None if facts.num_parameters is None else f"{facts.num_parameters:,}"),
        ("seed", facts.seed),
        ("steps", facts.trained_steps),
        ("step of the checkpoint kept", facts.best_step),
        ("seconds", None if facts.train_seconds is None else f"{facts.train_seconds:.0f}"),
    ]


def _setting_rows(facts: RunFacts) -> list[tuple[str, str]]:
    return [
        (name, value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False))
        for name, value in sorted(facts.recipe.items())
    ]


def _conversion_rows(facts: RunFacts) -> list[tuple[str, Any]]:
    return [(name.replace("_", " "), _told_answer(told)) for name, told in sorted(facts.conversion.items())]


def _texts(item: dict[str, Any]) -> list[str]:
    """List the texts of a held-out row: its own, that of the pair, its choices."""
    texts = [item[key] for key in ("text", "text_pair") if item.get(key) is not None]
    return [*map(_words, texts), *item.get("choices", ())]


def _told_answer(value: Any) -> Any:
    if value == []:
        return "none"
    return _clipped(_words(_rounded(value))) if isinstance(value, (list, str)) else _rounded(value)


def _prediction_rows(facts: RunFacts) -> list[list[Any]]:
    rows = []
    for item in facts.predictions:
        answers = [_told_answer(item.get(key)) for key in ("predicted", "score", "label")]
        rows.append([" / ".join(_clipped(text) for text in _texts(item)), *answers])
    return rows


# what the card's code reads where no held-out row is known; two choices for the tasks that want them
INVENTED = {"text": "a text of yours", "choices": ["one text", "another text"]}


def _example(facts: RunFacts) -> dict[str, Any]:
    """Choose the row whose texts, cut short, the card's code reads."""
    known = next((item for item in facts.predictions if item.get("text")), {})
    item = {**INVENTED, **known}
    texts = [item[key][:SHOWN_CHARACTERS] for key in ("text", "text_pair") if isinstance(item.get(key), str)]
    before = f"{texts[1]} " if len(texts) > 1 else ""
    choices = [before + choice[:SHOWN_CHARACTERS] for choice in item["choices"]]
    return {"known": bool(known), "texts": texts, "choices": choices}


def _repository(name: str | None) -> str | None:
    """Return what can only be an owner's repository on the Hub, and not a folder here."""
    try:
        validate_repo_id(name or "")
    except HFValidationError:
        return None
    return name if name and "/" in name else None


def _eval_results(facts: RunFacts, task: Task) -> list[EvalResult] | None:
    """List every finite score for the model index; without a name for the data the index may not exist."""
    name = facts.data.get("name")
    # a split that was cut from the training data bears its name
    names = {split: Path(file).stem for split, file in facts.data.get("files", {}).items()}
    scores = [
        EvalResult(
            task_type=task.pipeline_tag,
            dataset_type=facts.data.get("hub_id") or names.get(split, name),
            dataset_name=names.get(split, name),
            dataset_split=split,
            metric_type=METRICS[metric].hub_id,
            metric_name=METRICS[metric].words,
            metric_value=facts.metrics[split][metric],
        )
        for split in _splits(facts)
        for metric in _measured(facts)
        if name and metric in METRICS and facts.metrics[split].get(metric) is not None
    ]
    return scores or None


def _metadata(facts: RunFacts, task: Task) -> ModelCardData:
    results = _eval_results(facts, task)
    hub_id = facts.data.get("hub_id")
    return ModelCardData(
        language=facts.language,
        license=facts.license,
        library_name="transformers",
        pipeline_tag=task.pipeline_tag,
        tags=["roformer", "hf_roformer", "rotary-position-embedding"],
        base_model=_repository(facts.base_model),
        datasets=[hub_id] if hub_id else None,
        metrics=list(dict.fromkeys(METRICS[m].hub_id for m in _measured(facts) if m in METRICS)) or None,
        model_name=facts.model_name if results else None,
        eval_results=results,
    )


def _place(facts: RunFacts, place: Path | None) -> str:
    """Say where a reader finds the model: the folder as seen from here, where the name is only its last part."""
    if place is None or place.name != facts.model_name:
        return facts.model_name
    return _without_folders(place.as_posix())


def render_card(facts: RunFacts, *, folder: Path | None = None, place: Path | None = None) -> ModelCard:
    """Fill the template with facts.

    Args:
        facts: what is known of the run.
        folder: where the card is to lie, beside its pictures if there are any.
        place: the folder that the card's code loads, where it is not that one.
    """
    if facts.problem not in TASKS:
        raise ValueError(f"no card fits the problem {facts.problem!r}; use one of {sorted(TASKS)}")
    facts, task = _publishable(facts), TASKS[facts.problem]
    return ModelCard.from_template(
        _metadata(facts, task),
        template_str=TEMPLATE.read_text(encoding="utf-8"),
        facts=facts,
        task=task,
        place=_place(facts, place or folder),
        pictures=[(name, words) for name, words in PICTURES.items() if folder and (folder / name).is_file()],
        cell=_cell,
        python=repr,
        example=_example(facts),
        not_recorded=NOT_RECORDED,
        splits=_splits(facts),
        chosen_on=[split for split in facts.metrics if split.startswith("validation")],
        seeds=_all_seeds(facts),
        metric_head=_metric_head(facts),
        metric_rows=_metric_rows(facts),
        prediction_rows=_prediction_rows(facts),
        data_rows=_data_rows(facts),
        run_rows=_run_rows(facts),
        setting_rows=_setting_rows(facts),
        conversion_rows=_conversion_rows(facts),
        version_rows=sorted(facts.versions.items()),
    )


def write_card(folder: Path, facts: RunFacts, place: Path | None = None) -> None:
    """Write the model card, README.md, beside the weights; it shows the pictures that lie there."""
    write_whole(folder / "README.md", str(render_card(facts, folder=folder, place=place)))
