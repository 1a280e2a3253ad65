"""Beyond the trained length: networks trained on short rows guess the same symbols with ever more text before them.

A scaling changes no weight, so one trained network serves all of them. Each has the factor that the length asks for.

Shapes: B rows, L symbols that are read, T symbols that are guessed.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure

from .markdown_tables import markdown_table
from .study_cells import Cell, Claim, StudySizes, select, spread
from .study_figures import draw_seeds, name_doublings, panels, style
from .study_language import BITS, NATS_OF_A_BIT, texts_of, trained
from .study_texts import BYTES, Stream, read_stream, windows
from .study_training import SETTINGS, rebuilt, shape_of

# what is trained
ARMS: dict[str, Callable[[StudySizes], dict[str, Any]]] = {
    "rotary": lambda sizes: {},
    "sinusoidal": lambda sizes: {"position_kind": "sinusoidal"},
    "none": lambda sizes: {"position_kind": "none"},
    "half of each head turns": lambda sizes: {"rope_parameters": rope("default", partial_rotary_factor=0.5)},
    "randomised positions": lambda sizes: {"randomized_positions": max(sizes.lengths[-1], sizes.length)},
}
THETA = 10_000.0
# the first and last frequency that llama3 keeps and stretches, in turns over the trained length
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
PLAIN = "as trained"
# it turns all keys anew for each query: beyond this the study would wait for it alone
LONGEST_DYNAMIC = 1024
DIGITS = 5


def rope(rope_type: str, **numbers: Any) -> dict[str, Any]:
    """Return rope_parameters."""
    return {"rope_type": rope_type, "rope_theta": THETA, **numbers}


def _stretches(factor: float, pairs: int) -> list[float]:
    """Return what each pair's wave grows by where the slowest grows by the whole factor, the fastest by nothing."""
    return [factor ** (pair / max(1, pairs - 1)) for pair in range(pairs)]


def scalings(sizes: StudySizes, length: int) -> dict[str, dict[str, Any]]:
    """Return the config words of each scaling for rows of a length."""
    factor = max(1.0, length / sizes.length)
    trained_length = {"original_max_position_embeddings": sizes.length}
    pairs = sizes.hidden_size // sizes.heads // 2
    turned = {
        "linear": rope("linear", factor=factor),
        # it grows with the length by itself
        "dynamic": rope("dynamic", factor=1.0),
        "yarn": rope("yarn", factor=factor, **trained_length),
        "longrope": rope(
            "longrope",
            factor=factor,
            short_factor=[1.0] * pairs,
            long_factor=_stretches(factor, pairs),
            **trained_length,
        ),
        "llama3": rope("llama3", factor=factor, **LLAMA3, **trained_length),
    }
    words: dict[str, dict[str, Any]] = {name: {"rope_parameters": numbers} for name, numbers in turned.items()}
    return {**words, "log n": {"score_scaling": "log_n"}, "window": {"attention_window": sizes.length}}


def variants_of(sizes: StudySizes, arm: str, length: int) -> dict[str, dict[str, Any]]:
    """Return under which config words an arm is measured at a length."""
    variants = {PLAIN: ARMS[arm](sizes)} | (scalings(sizes, length) if arm == "rotary" else {})
    if length > LONGEST_DYNAMIC:
        variants.pop("dynamic", None)
    return variants


@torch.no_grad()
def bits_at_the_end(model: Any, ids_BL: np.ndarray, targets: int) -> float:
    """Return the bits that each of a row's last symbols costs, given all before it."""
    rows_BL = torch.from_numpy(ids_BL)
    logits_BTV = model(rows_BL[:, :-1], logits_to_keep=targets).logits
    loss = F.cross_entropy(logits_BTV.flatten(0, 1).float(), rows_BL[:, -targets:].flatten())
    return loss.item() / NATS_OF_A_BIT


def rows_to_judge(stream: Stream, sizes: StudySizes, length: int) -> np.ndarray:
    """Return rows that end at the same places whatever their length, and hold one symbol more than is read."""
    longest = max(*sizes.lengths, sizes.length)
    if len(stream.held_out_T) <= longest:
        raise ValueError(
            f"{len(stream.held_out_T)} held-out symbols hold no row of {longest} and its next symbol: give more text "
            "or shorter lengths"
        )
    ends = np.linspace(longest + 1, len(stream.held_out_T), sizes.eval_rows).astype(np.int64)
    return windows(stream.held_out_T, ends - length - 1, length + 1)


def _measure(sizes: StudySizes, part: str, arm: str, seed: int) -> Cell:
    if sizes.targets > min(sizes.lengths):
        raise ValueError(f"targets {sizes.targets} pass the shortest of lengths {sizes.lengths}: give fewer")
    stream = read_stream(sizes.data, part, sizes.vocabulary)
    model, curve = trained(sizes, part, ARMS[arm](sizes), seed, causal=True)
    shape = shape_of(sizes, stream.vocab_size)
    found: dict[str, list[tuple[int, float]]] = {}
    for length in sizes.lengths:
        ids_BL = rows_to_judge(stream, sizes, length)
        for name, words in variants_of(sizes, arm, length).items():
            bits = bits_at_the_end(rebuilt(model, shape, words), ids_BL, sizes.targets)
            found.setdefault(name, []).append((length, round(bits, DIGITS)))
    return {"variants": found, "trained to": curve[-1][1] / NATS_OF_A_BIT}


# telling


def _lines(cells: Sequence[Cell]) -> list[tuple[str, str]]:
    """List what is compared: arms, each with its scalings."""
    return list(dict.fromkeys((cell["arm"], name) for cell in cells for name in cell["variants"]))


def _name(arm: str, variant: str) -> str:
    return arm if variant == PLAIN else f"{arm}, {variant}"


def _curves(cells: Sequence[Cell], arm: str, variant: str) -> list[list[tuple[int, float]]]:
    return [[tuple(point) for point in cell["variants"][variant]] for cell in select(cells, arm=arm)]


def _table(cells: Sequence[Cell], sizes: StudySizes) -> str:
    rows = []
    for arm, variant in _lines(cells):
        curves = [dict(curve) for curve in _curves(cells, arm, variant)]
        told = [spread([curve[n] for curve in curves if n in curve], ".2f") for n in sizes.lengths]
        rows.append([_name(arm, variant), *told])
    return markdown_table([f"{BITS} after", *(f"{length:,}" for length in sizes.lengths)], rows)


def _draw(cells: Sequence[Cell], sizes: StudySizes) -> Figure:
    figure, axes = panels(2)
    kinds = [(line, line[0]) for line in _lines(cells) if line[1] == PLAIN]
    scaled = [(line, line[1]) for line in _lines(cells) if line[0] == "rotary"]
    titles = "positions of several kinds", "rotary, the scaling chosen after training"
    for one, title, chosen in zip(axes, titles, (kinds, scaled), strict=True):
        for number, (line, label) in enumerate(chosen):
            draw_seeds(one, _curves(cells, *line), label=label, **style(number))
        name_doublings(one, sizes.lengths)
        one.axvline(sizes.length, color="0.5", linewidth=1)
        one.set(title=title, xlabel="symbols before the end (line: the trained length)", ylabel=BITS)
        one.legend(loc="upper left", fontsize=8)
    figure.suptitle(LENGTH.title)
    return figure


LENGTH = Claim(
    letter="c",
    name="length",
    title="Trained on short rows, measured on long ones",
    sizes={"eval_rows": 6},
    arms=lambda sizes: list(ARMS),
    parts=lambda sizes: [BYTES],
    texts=texts_of,
    measure=_measure,
    table=_table,
    draw=_draw,
    settings=SETTINGS,
)

__all__ = ["ARMS", "LENGTH", "bits_at_the_end", "rows_to_judge", "scalings", "variants_of"]
