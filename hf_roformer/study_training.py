"""Small networks for the studies: the same weights to begin with, the same rows in the same order, whatever the arm.

Words, and learned vectors of positions, begin with deviation 1, as large as the sinusoids that another arm adds: at
the usual 0.02 the sinusoids would drown the words. The other weights keep the size of what they multiply.

Shapes: B rows, L symbols of a row, V vocabulary.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import get_scheduler

from .arguments import nearest
from .configuration_roformer import HFRoFormerConfig
from .losses import IGNORED
from .masking import Masking, mask_row
from .study_cells import StudySizes
from .study_texts import MASK, PAD, SPECIALS, Judged, Stream, draw_windows, spaced_windows

WIDENING = 4
WEIGHT_DECAY, LARGEST_GRADIENT, WARM_UP_SHARE = 0.01, 1.0, 0.1
SCHEDULE = "cosine"
# what every study does alike, for the reader of its numbers
SETTINGS = {
    "optimizer": f"AdamW, weight decay {WEIGHT_DECAY}, gradients up to {LARGEST_GRADIENT}, {SCHEDULE} schedule",
    "dropout": 0,
}

Inputs = dict[str, Tensor]


# networks


def shape_of(sizes: StudySizes, vocab_size: int) -> dict[str, Any]:
    """Return the config words that all arms share."""
    return {
        "vocab_size": vocab_size,
        "hidden_size": sizes.hidden_size,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "intermediate_size": WIDENING * sizes.hidden_size,
        "max_position_embeddings": sizes.length,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "initializer_range": sizes.hidden_size**-0.5,
        # a word's vector begins larger than what scores it
        "tie_word_embeddings": False,
        "pad_token_id": PAD,
        "use_cache": False,
    }


def _even(model: Any) -> None:
    """Let what is added up begin at one size."""
    embeddings = model.base_model.embeddings
    with torch.no_grad():
        torch.nn.init.normal_(embeddings.word_embeddings.weight)
        if isinstance(embeddings.position_embeddings, torch.nn.Embedding):
            torch.nn.init.normal_(embeddings.position_embeddings.weight)


def _refuse_unknown_words(words: dict[str, Any]) -> None:
    # a config keeps a name that it does not know, and the arm would be another one's twin
    known = {item.name for item in dataclasses.fields(HFRoFormerConfig)}
    if unknown := sorted(words.keys() - known):
        raise ValueError(f"the config has no {', '.join(unknown)}; the nearest is {nearest(unknown[0], known)}")


def start(model_class: Any, shape: dict[str, Any], words: dict[str, Any], seed: int) -> Any:
    """Build the network of an arm; what it shares with a plain rotary one it begins with alike.

    words: the config words that are the arm.
    """
    _refuse_unknown_words(words)
    torch.manual_seed(seed)
    plain = model_class(HFRoFormerConfig(**shape))
    _even(plain)
    model = model_class(HFRoFormerConfig(**{**shape, **words}))
    _even(model)
    model.load_state_dict(plain.state_dict(), strict=False)
    return model


def rebuilt(model: Any, shape: dict[str, Any], words: dict[str, Any]) -> Any:
    """Return a trained network under other config words, which change no weight."""
    other = type(model)(HFRoFormerConfig(**{**shape, **words}))
    other.load_state_dict(model.state_dict())
    return other.eval()


# what it sees


def masked_inputs(ids_BL: np.ndarray, share: float, vocab_size: int, generator: np.random.Generator) -> Inputs:
    """Hide a share of the symbols as BERT does."""
    choices = Masking(share, MASK, fixed=np.arange(SPECIALS), drawn=np.arange(SPECIALS, vocab_size))
    units_L, pieces_L = np.ones(ids_BL.shape[1], bool), np.ones(ids_BL.shape[1], np.int64)
    rows = [mask_row(choices, ids_L, units_L, pieces_L, generator) for ids_L in ids_BL]
    seen, labels = (np.stack(part) for part in zip(*rows, strict=True))
    return {"input_ids": torch.from_numpy(seen), "labels": torch.from_numpy(labels)}


def language_inputs(
    ids_BL: np.ndarray, sizes: StudySizes, vocab_size: int, generator: np.random.Generator, *, causal: bool
) -> Inputs:
    """Return what a language model sees of rows, and what it must guess."""
    if causal:
        return {"input_ids": torch.from_numpy(ids_BL), "labels": torch.from_numpy(ids_BL)}
    return masked_inputs(ids_BL, sizes.mask_share, vocab_size, generator)


def drawn_batches(stream: Stream, sizes: StudySizes, seed: int, *, causal: bool) -> Callable[[], Inputs]:
    """Return what gives one batch after the other; the seed alone says which."""
    generator = np.random.default_rng(seed)

    def batch() -> Inputs:
        ids_BL = draw_windows(stream.train_T, sizes.batch_size, sizes.length, generator)
        return language_inputs(ids_BL, sizes, stream.vocab_size, generator, causal=causal)

    return batch


def held_out_batches(stream: Stream, sizes: StudySizes, *, causal: bool) -> list[Inputs]:
    """Return the rows that every network is measured on, whatever its seed."""
    generator = np.random.default_rng(0)
    ids_BL = spaced_windows(stream.held_out_T, sizes.eval_rows, sizes.length)
    parts = np.array_split(ids_BL, -(-len(ids_BL) // sizes.batch_size))
    return [language_inputs(part, sizes, stream.vocab_size, generator, causal=causal) for part in parts]


def padded(rows: Sequence[tuple[list[int], list[int], int]], length: int) -> Inputs:
    """Cut rows at a length and pad them to their longest."""
    width = min(length, max(len(ids) for ids, _, _ in rows))

    def filled(parts: Sequence[list[int]]) -> Tensor:
        return torch.tensor([(part + [PAD] * width)[:width] for part in parts])

    sizes = torch.tensor([min(width, len(ids)) for ids, _, _ in rows])
    inputs = {
        "input_ids": filled([ids for ids, _, _ in rows]),
        "token_type_ids": filled([segments for _, segments, _ in rows]),
    }
    mask = (torch.arange(width) < sizes[:, None]).long()
    return {**inputs, "attention_mask": mask, "labels": torch.tensor([label for *_, label in rows])}


def judged_batches(judged: Judged, sizes: StudySizes, seed: int) -> Callable[[], Inputs]:
    """Return what gives one batch after the other, each row once before any comes again."""
    generator = np.random.default_rng(seed)
    left: list[int] = []

    def batch() -> Inputs:
        while len(left) < sizes.batch_size:
            left.extend(generator.permutation(len(judged.train)).tolist())
        rows = [judged.train[left.pop(0)] for _ in range(sizes.batch_size)]
        return padded(rows, sizes.length)

    return batch


# training and measuring


def train(model: Any, batch: Callable[[], Inputs], sizes: StudySizes, watch: Callable[[int], None]) -> None:
    """Take the steps; `watch` is called with the number of steps taken, at equal distances from 0 to all."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=sizes.learning_rate, weight_decay=WEIGHT_DECAY)
    schedule = get_scheduler(SCHEDULE, optimizer, round(WARM_UP_SHARE * sizes.steps), sizes.steps)
    seen_at = {round(sizes.steps * part / sizes.evaluations) for part in range(sizes.evaluations + 1)}
    for step in range(sizes.steps + 1):
        if step in seen_at:
            model.eval()
            watch(step)
        if step == sizes.steps:
            return
        model.train()
        loss = model(**batch()).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), LARGEST_GRADIENT)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()


@torch.no_grad()
def mean_loss(model: Any, batches: Sequence[Inputs], *, causal: bool) -> float:
    """Return the mean loss of a guessed symbol, in nats."""
    total, count = 0.0, 0
    for inputs in batches:
        labels = inputs["labels"][:, 1:] if causal else inputs["labels"]
        number = int((labels != IGNORED).sum())
        total += model(**inputs).loss.item() * number
        count += number
    return total / count


__all__ = [
    "SETTINGS",
    "Inputs",
    "drawn_batches",
    "held_out_batches",
    "judged_batches",
    "mean_loss",
    "padded",
    "rebuilt",
    "shape_of",
    "start",
    "train",
]
