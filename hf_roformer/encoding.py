"""A whole dataset through a model, into Parquet files that hold a vector or a prediction for each row.

The rows are cut into parts. Within a part texts of like length share a batch, and the rows are written in the order
in which they were read; so a part depends on its own rows alone, may be made by any process, and comes out the same
whether or not the run was killed before.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from ._version import __version__
from .answers import Row
from .corpora import Corpus, read_corpus
from .encoders import Encoder, fingerprint, load_encoder
from .encoding_arguments import EncodingArguments
from .fast_matmul import ROUNDS, TRIED_SIZES, products_of, seconds_of
from .own_folders import refuse_unwritable
from .shards import (
    ANOTHER,
    COUNTED,
    Shard,
    agree_on,
    await_manifest,
    clear_unfinished,
    is_whole,
    plan_shards,
    read_counts,
    read_manifest,
    refuse_strangers,
    shares,
    write_shard,
)
from .text_files import told_again

PROGRAM = "hf_roformer encode"
# how much faster bfloat16 must be to be worth its rounding
WORTHWHILE = 1.3


# where and in which numbers


@dataclass(frozen=True)
class Team:
    """Which of how many processes this one is, as the launcher says."""

    process: int
    processes: int
    local: int

    @classmethod
    def from_environment(cls) -> "Team":
        """Read what torchrun and `accelerate launch` set."""
        names = (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0))
        return cls(*(int(os.environ.get(name, usual)) for name, usual in names))


def choose_device(asked: str | None, team: Team) -> torch.device:
    """Take the device that is asked, else this process's accelerator, else the CPU."""
    if asked:
        return torch.device(asked)
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return torch.device("cpu")
    return torch.device(accelerator.type, team.local % torch.accelerator.device_count())


@torch.no_grad()
def bfloat16_pays(device: torch.device) -> bool:
    """Time a layer's product in both dtypes, in turn."""
    tokens, inputs, outputs = TRIED_SIZES
    if device.type != "cpu":
        return device.type != "cuda" or torch.cuda.is_bf16_supported(including_emulation=False)
    x_TI, weight_OI = torch.ones(tokens, inputs), torch.ones(outputs, inputs)
    operands = [(x_TI.to(dtype), weight_OI.to(dtype)) for dtype in (torch.float32, torch.bfloat16)]
    times = [[seconds_of(partial(F.linear, *pair)) for pair in operands] for _ in range(ROUNDS + 1)]
    # the first round warms up
    wide, narrow = (statistics.median(column) for column in zip(*times[1:], strict=True))
    return wide > WORTHWHILE * narrow


def _dtype_of(begun: Mapping[str, Any], folder: Path) -> torch.dtype:
    """Return the dtype that an earlier stretch took."""
    name = begun["asked"].get("dtype")
    if name not in ("float32", "bfloat16"):
        raise ValueError(f"{folder} was begun with the dtype {name!r}, which is none of ours: {ANOTHER}")
    return getattr(torch, name)


def choose_dtype(told: EncodingArguments, device: torch.device, team: Team) -> torch.dtype:
    """Take the dtype that is asked; `auto` is measured by the first process, once in a run's life."""
    if told.dtype != "auto":
        return getattr(torch, told.dtype)
    folder = Path(str(told.output_dir))
    begun = read_manifest(folder) if team.process == 0 else await_manifest(folder)
    if begun is not None:
        return _dtype_of(begun, folder)
    return torch.bfloat16 if bfloat16_pays(device) else torch.float32


# one part


def cut_batches(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Group rows of like length, the longest first, each group within `budget` tokens with its pads.

    A row that is longer than the budget is a group of its own; a row without tokens is in none.
    """
    batches: list[list[int]] = []
    for at in sorted((at for at, length in enumerate(lengths) if length), key=lambda at: -lengths[at]):
        if batches and (len(batches[-1]) + 1) * lengths[batches[-1][0]] <= budget:
            batches[-1].append(at)
        else:
            batches.append([at])
    return batches


def _in_row_order(columns: dict[str, pa.Array], order: Sequence[int], rows: int) -> dict[str, pa.Array]:
    """Put answers back where their rows are; a row without an answer is null."""
    places: list[int | None] = [None] * rows
    for place, at in enumerate(order):
        places[at] = place
    return {name: array.take(pa.array(places, pa.int32())) for name, array in columns.items()}


def answer_rows(
    encoder: Encoder, rows: Sequence[Row], budget: int, advance: Callable[[int, int], object]
) -> dict[str, pa.Array]:
    """Answer rows of any length; `advance` is told of the rows and the tokens of each batch."""
    batches = cut_batches([len(row.ids) for row in rows], budget)
    # no row of a trial: what a column looks like, though no row had a token
    parts = [tuple(answer[:0] for answer in encoder.trial)]
    for batch in batches:
        parts.append(encoder.answer([rows[at] for at in batch]))
        advance(len(batch), sum(len(rows[at].ids) for at in batch))
    order = [at for batch in batches for at in batch]
    answers: list[Tensor] = [torch.cat(pieces).cpu() for pieces in zip(*parts, strict=True)]
    columns = encoder.reader.tabulate(answers, [rows[at] for at in order])
    return _in_row_order(columns, order, len(rows))


def count(texts: Sequence[str], rows: Sequence[Row]) -> dict[str, int]:
    """Count what a reader of the result should know."""
    empty = sum(not text.strip() for text in texts)
    numbers = (len(rows), sum(len(row.ids) for row in rows), sum(row.was_cut for row in rows), empty)
    return dict(zip(COUNTED, numbers, strict=True))


def ahead(items: Iterable[Any], work: Callable[[Any], Any], *, threaded: bool) -> Iterator[tuple[Any, Any]]:
    """Yield each item with its work done, the next item's in a thread meanwhile."""
    if not threaded:
        yield from ((item, work(item)) for item in items)
        return
    with ThreadPoolExecutor(1) as pool:
        waiting: list[tuple[Any, Any]] = []
        for item in items:
            waiting.append((item, pool.submit(work, item)))
            if len(waiting) > 1:
                done, result = waiting.pop(0)
                yield done, result.result()
        yield from ((item, result.result()) for item, result in waiting)


# the run


@dataclass(frozen=True)
class Outcome:
    """What lies in the folder, and what this process did; `counts` is None while other processes' parts lack."""

    folder: Path
    asked: dict[str, Any]
    shards: int
    skipped: int
    tokens: int
    seconds: float
    counts: dict[str, int] | None


def _settings(told: EncodingArguments, encoder: Encoder, corpus: Corpus) -> dict[str, Any]:
    """List what decides the numbers and the files."""
    return {
        "model": fingerprint(encoder.model, encoder.tokenizer),
        "dataset": corpus.fingerprint(),
        "task": encoder.task,
        "pooling": encoder.pooling,
        "normalize": told.normalize,
        "all_scores": told.all_scores,
        "max_length": encoder.max_length,
        **({} if encoder.reading is None else {"reading": encoder.reading}),
        "dtype": str(encoder.model.dtype).removeprefix("torch."),
        "columns": told.columns,
        "rows_per_shard": told.rows_per_shard,
    }


def _load(told: EncodingArguments, device: torch.device, team: Team) -> Encoder:
    encoder = load_encoder(told, choose_dtype(told, device, team))
    if encoder.task == "token_classification" and told.text_pair_column:
        raise ValueError("token_classification tells places in one text: leave text_pair_column out")
    if taken := [name for name in told.columns or () if name in ("row", *encoder.reader.columns)]:
        raise ValueError(f"the column {', '.join(taken)} would stand beside a result of that name: rename it first")
    return encoder


def _make(shards: Sequence[Shard], corpus: Corpus, encoder: Encoder, told: EncodingArguments, bar: tqdm) -> int:
    """Make the parts that are missing; return how many tokens went through the model."""
    start, tokens = time.perf_counter(), 0

    def advance(rows: int, more: int) -> None:
        nonlocal tokens
        tokens += more
        bar.set_postfix_str(f"{tokens / (time.perf_counter() - start):,.0f} tokens/s", refresh=False)
        bar.update(rows)

    def tokenise(shard: Shard) -> list[Row]:
        return encoder.tokenise(*corpus.part(shard.start, shard.rows))

    # on the CPU a thread would only take cores from the products
    for shard, rows in ahead(shards, tokenise, threaded=encoder.model.device.type != "cpu"):
        columns = answer_rows(encoder, rows, told.tokens_per_batch, advance)
        numbers = pa.array(range(shard.start, shard.stop), pa.int64())
        table = pa.table({"row": numbers, **columns})
        for name in corpus.carried.column_names:
            table = table.append_column(name, corpus.carried[name].slice(shard.start, shard.rows))
        counts = count(corpus.part(shard.start, shard.rows)[0], rows)
        try:
            write_shard(shard, table, counts)
        except OSError as error:
            raise told_again(error, shard.path, "make room, then run the same again: whole files are kept") from error
    return tokens


def encode_dataset(told: EncodingArguments) -> Outcome:
    """Encode what is not yet encoded; return what this process did."""
    team, folder = Team.from_environment(), Path(str(told.output_dir))
    refuse_unwritable(folder)
    read_manifest(folder)
    if team.process == 0:
        refuse_strangers(folder)
    corpus = read_corpus(told)
    device = choose_device(told.device, team)
    with products_of(told.cpu_matmul):
        encoder = _load(told, device, team)
        asked = _settings(told, encoder, corpus)
        encoder.move_to(device)
        names = {"model_name": _name(told.model), "dataset_name": _name(told.dataset)}
        agree_on(folder, asked, {"program": PROGRAM, "version": __version__, **names}, first=team.process == 0)
        shards = plan_shards(folder, len(corpus.texts), told.rows_per_shard)
        own = shares(shards, team.process, team.processes)
        clear_unfinished(own)
        missing = [shard for shard in own if not is_whole(shard)]
        start = time.perf_counter()
        hidden = not told.progress or team.process != 0
        with tqdm(total=sum(s.rows for s in missing), unit=" rows", desc="Encoding", disable=hidden) as bar:
            tokens = _make(missing, corpus, encoder, told, bar)
    counts = read_counts(shards) if all(map(is_whole, shards)) else None
    return Outcome(folder, asked, len(shards), len(own) - len(missing), tokens, time.perf_counter() - start, counts)


def _name(place: Any) -> str:
    return Path(place).name if Path(place).exists() else str(place)


def describe(outcome: Outcome) -> str:
    """Tell what was written; nothing where other processes are still at work."""
    if outcome.counts is None:
        return ""
    counts, asked = outcome.counts, outcome.asked
    how = asked["task"].replace("_", " ") + (f", pooling {asked['pooling']}" if asked["pooling"] else "")
    lines = [
        f"{counts['rows']:,} rows, {counts['tokens']:,} tokens: {how}, {asked['dtype']}",
        f"truncated at {asked['max_length']} tokens: {counts['truncated']:,} rows; without text: {counts['empty']:,}",
        f"this process: {outcome.tokens:,} tokens in {outcome.seconds:.1f} s"
        + (f"; {outcome.skipped} finished files were skipped" if outcome.skipped else ""),
        f"{outcome.shards} Parquet files are in {outcome.folder}. Read them by:",
        "  from datasets import load_dataset",
        f'  rows = load_dataset("{outcome.folder}", split="train")',
    ]
    return "\n".join([*lines, ""])
