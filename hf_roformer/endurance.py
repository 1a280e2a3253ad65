"""An hour of calls of every kind: nothing drifts, nothing grows.

The calls of a round are drawn from the seed, so that every round repeats them: each answer must have the bits that it
had in the first one. After each round stands what memory the process holds; its slope is a line through the rounds of
the second half, when the allocator has seen every shape. Before the rounds come thousands of lengths, each for the
first time: what a model keeps for them may not exceed what the longest alone makes it keep.
"""

import gc
import hashlib
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psutil
import torch
from torch import Tensor, nn
from transformers import AutoTokenizer

from .configuration_roformer import HFRoFormerConfig
from .modeling_roformer import HFRoFormerForMaskedLM, HFRoFormerForSentenceEmbedding, HFRoFormerModel
from .tokenization_roformer import HFRoFormerTokenizer, build_char_vocabulary

CHARACTERS = "天地玄黄宇宙洪荒日月盈昃辰宿列张寒来暑往秋收冬藏"
VOCABULARY = 64
LONGEST_TEXT = 400
MEBIBYTE = 2**20
# one of each kind that keeps something of its own, or takes another road through a batch
KINDS: list[tuple[Any, dict[str, Any]]] = [
    (HFRoFormerModel, {}),
    (HFRoFormerForSentenceEmbedding, {"attention_kind": "linear"}),
    (
        HFRoFormerModel,
        {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0}, "max_position_embeddings": 64},
    ),
    (HFRoFormerForMaskedLM, {"norm_type": "rms_norm", "use_bias": False, "attention_window": 16}),
]


@dataclass
class EnduranceArguments:
    """How long, and with what."""

    minutes: float = field(default=60.0, metadata={"help": "how long the rounds go on; at least two are run"})
    model: str | None = field(default=None, metadata={"help": "folder or Hub id of a model; null: small ones"})
    calls: int = field(default=64, metadata={"help": "calls of a round, all different"})
    lengths: int = field(default=10_000, metadata={"help": "how many lengths are seen for the first time"})
    trial_seed: int = field(default=0, metadata={"help": "which calls are drawn"})
    hidden_size: int = field(default=128, metadata={"help": "width of the small models"})

    def __post_init__(self) -> None:
        """Refuse what tries nothing."""
        for name in ("minutes", "calls", "lengths", "hidden_size"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be more than 0")


@dataclass
class Endured:
    """What was found: memory in bytes after each round, seconds since the start, what was kept for lengths."""

    kept_for_longest: int
    kept_for_all: int
    calls: int = 0
    changed: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)

    @property
    def slope(self) -> float:
        """Return how many bytes the process gains in an hour, by the rounds of the second half."""
        half = len(self.memory) // 2
        times, memory = np.array(self.seconds[half:]), np.array(self.memory[half:], dtype=np.float64)
        return float(np.polyfit(times, memory, 1)[0] * 3600) if len(times) > 1 else 0.0

    @property
    def flawed(self) -> bool:
        """Say whether an answer changed, or lengths were kept."""
        return bool(self.changed) or self.kept_for_all > self.kept_for_longest


# what is called


def _small(hidden_size: int, **facts: Any) -> HFRoFormerConfig:
    shape: dict[str, Any] = {"num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 2 * hidden_size}
    return HFRoFormerConfig(vocab_size=VOCABULARY, hidden_size=hidden_size, **shape, **facts)


def load_models(told: EnduranceArguments) -> tuple[list[Any], Any]:
    """Load the model that is asked for, or build small ones of several kinds; and a tokenizer."""
    if told.model is not None:
        return [HFRoFormerModel.from_pretrained(told.model).eval()], AutoTokenizer.from_pretrained(told.model)
    torch.manual_seed(told.trial_seed)
    models = [kind(_small(told.hidden_size, **facts)).eval() for kind, facts in KINDS]
    return models, HFRoFormerTokenizer(build_char_vocabulary([CHARACTERS], size=VOCABULARY))


def draw_batch(tokenizer: Any, chance: random.Random) -> dict[str, Any]:
    """Tokenize invented texts: padded to one side, cut, or laid end to end in one row."""
    texts = [
        "".join(chance.choices(CHARACTERS, k=chance.randint(1, LONGEST_TEXT))) for _ in range(chance.randint(1, 6))
    ]
    how = chance.choice(["left", "right", "cut", "packed"])
    if how == "packed":
        rows = tokenizer(texts)["input_ids"]
        numbers = [at for at, row in enumerate(rows) for _ in row]
        ids = [number for row in rows for number in row]
        return {"input_ids": torch.tensor([ids]), "sequence_ids": torch.tensor([numbers])}
    limit: dict[str, Any] = {"truncation": True, "max_length": chance.randint(3, 64)} if how == "cut" else {}
    side = "left" if how == "left" else "right"
    return dict(tokenizer(texts, padding=True, padding_side=side, return_tensors="pt", **limit))


def answers_of_round(told: EnduranceArguments, models: list[Any], tokenizer: Any) -> Iterator[Any]:
    """Make the calls of a round, each of another batch, backend and road; they are the same in every round."""
    for number in range(told.calls):
        chance = random.Random(f"{told.trial_seed} {number}")
        model = models[number % len(models)]
        model.set_attn_implementation(chance.choice(["sdpa", "sdpa", "eager"]))
        model.padding_free = chance.random() < 0.7
        yield model(**draw_batch(tokenizer, chance), output_hidden_states=chance.random() < 0.2)


def digest(answer: Any) -> str:
    """Return a hash of every bit of an answer."""
    found = hashlib.sha256()
    for name, value in sorted(answer.items()):
        for tensor in value if isinstance(value, tuple) else (value,):
            if isinstance(tensor, Tensor):
                found.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
                found.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


# what is kept


def _tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors_in(tuple(value.values()))
    elif isinstance(value, (list, tuple, set)):
        for item in value:
            yield from _tensors_in(item)


def kept_bytes(model: nn.Module) -> int:
    """Count the bytes of the tensors that a model holds beside its parameters and buffers, each once."""
    kept: dict[int, int] = {}
    for module in model.modules():
        own = {name: value for name, value in vars(module).items() if name not in ("_parameters", "_buffers")}
        kept |= {tensor.data_ptr(): tensor.nbytes for tensor in _tensors_in(own)}
    return sum(kept.values())


@torch.inference_mode()
def keep_lengths(told: EnduranceArguments) -> tuple[int, int]:
    """Show one model the longest row alone and another rows of all lengths; return what each keeps."""
    # few numbers, and a cost that grows as the length does
    config = _small(16, attention_kind="linear")
    ids = torch.arange(told.lengths)[None] % VOCABULARY
    lengths = list(range(1, told.lengths + 1))
    random.Random(told.trial_seed).shuffle(lengths)
    kept = []
    for shown in ([told.lengths], lengths):
        model = HFRoFormerModel(config).eval()
        for length in shown:
            model(ids[:, :length])
        kept.append(kept_bytes(model))
    return kept[0], kept[1]


# the run


@torch.inference_mode()
def endure(told: EnduranceArguments) -> Endured:
    """Run rounds until the time is over; compare each with the first."""
    found, process = Endured(*keep_lengths(told)), psutil.Process()
    models, tokenizer = load_models(told)
    first: list[str] = []
    start = time.monotonic()
    while len(found.memory) < 2 or time.monotonic() - start < 60 * told.minutes:
        digests = [digest(answer) for answer in answers_of_round(told, models, tokenizer)]
        first = first or digests
        found.changed += [at for at, (one, other) in enumerate(zip(first, digests, strict=True)) if one != other]
        found.calls += len(digests)
        gc.collect()
        found.seconds.append(time.monotonic() - start)
        found.memory.append(process.memory_info().rss)
    return found


def describe(found: Endured) -> str:
    """Tell what was found."""
    repeated = "to the bit" if not found.changed else f"but for the calls {sorted(set(found.changed))}"
    begun, half_way, ended = (found.memory[at] / MEBIBYTE for at in (0, len(found.memory) // 2, -1))
    return (
        f"{len(found.memory)} rounds, {found.calls:,} calls in {found.seconds[-1] / 60:.1f} minutes: every round "
        f"repeated the first {repeated}\n"
        f"memory: {begun:,.1f} MiB after the first round, {half_way:,.1f} half-way, {ended:,.1f} at the end; slope of "
        f"the second half {found.slope / MEBIBYTE:+,.2f} MiB an hour\n"
        f"kept beside the weights: {found.kept_for_longest:,} bytes for the longest row alone, "
        f"{found.kept_for_all:,} for rows of all lengths\n"
    )


__all__ = ["EnduranceArguments", "Endured", "describe", "endure"]
