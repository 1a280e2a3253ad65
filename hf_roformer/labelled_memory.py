"""What scoring labelled tokens alone saves: peak memory and time of one training step, each in its own process."""

import multiprocessing
import re
import resource
import sys
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from .configuration_roformer import HFRoFormerConfig
from .losses import IGNORED
from .modeling_roformer import HFRoFormerForMaskedLM

WARM_UP_COLUMNS = 8
STATUS = Path("/proc/self/status")


@dataclass
class MemoryArguments:
    """The step that is measured."""

    rows: int = field(default=8, metadata={"help": "rows of a batch"})
    length: int = field(default=512, metadata={"help": "tokens of a row"})
    vocabulary: int = field(default=50000, metadata={"help": "entries of the vocabulary"})
    hidden_size: int = field(default=768, metadata={"help": "width of the network"})
    layers: int = field(default=2, metadata={"help": "layers of the network"})
    mask_share: float = field(default=0.15, metadata={"help": "share of the tokens with a label"})


def peak_bytes() -> int:
    """Return the most memory that this process ever held."""
    if STATUS.exists():
        # the resource usage would count what the process had held that started this one
        return 1024 * int(re.search(r"VmHWM:\s+(\d+)", STATUS.read_text())[1])
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return held if sys.platform == "darwin" else 1024 * held


def _batch(told: MemoryArguments, length: int) -> dict[str, Any]:
    ids = torch.randint(5, told.vocabulary, (told.rows, length))
    hidden = torch.rand(ids.shape) >= told.mask_share
    return {"input_ids": ids, "labels": ids.masked_fill(hidden, IGNORED)}


def _measure_here(told: MemoryArguments, alone: bool, answer: Connection) -> None:
    torch.manual_seed(0)
    config = HFRoFormerConfig(
        vocab_size=told.vocabulary,
        hidden_size=told.hidden_size,
        num_attention_heads=told.hidden_size // 64,
        num_hidden_layers=told.layers,
        intermediate_size=4 * told.hidden_size,
        hidden_dropout_prob=0,
        attention_probs_dropout_prob=0,
    )
    model: Any = HFRoFormerForMaskedLM(config)
    model.logits_of_labels_only = alone
    batch = _batch(told, told.length)
    # gradients are there before the step that counts
    model(**_batch(told, WARM_UP_COLUMNS)).loss.backward()
    before, start = peak_bytes(), time.perf_counter()
    loss = model(**batch).loss
    loss.backward()
    answer.send((peak_bytes() - before, time.perf_counter() - start, loss.item()))


def measure(told: MemoryArguments, *, alone: bool) -> tuple[int, float, float]:
    """Return how many bytes a step adds to the peak, its seconds and its loss."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_measure_here, args=(told, alone, there))
    process.start()
    there.close()
    try:
        return here.recv()
    finally:
        process.join()


def compare(told: MemoryArguments) -> str:
    """Measure both ways; tell them in a Markdown table."""
    lines = ["| scored | peak of a step, MiB | seconds | loss |", "| --- | --- | --- | --- |"]
    for words, alone in (("every token", False), ("labelled tokens alone", True)):
        grown, seconds, loss = measure(told, alone=alone)
        lines.append(f"| {words} | {grown / 2**20:,.0f} | {seconds:.1f} | {loss:.6f} |")
    return "\n".join(lines) + "\n"


__all__ = ["MemoryArguments", "compare", "measure"]
