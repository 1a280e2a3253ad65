"""Loss by step: positions of each kind in a masked LM, and linear attention with and without rotation.

Every arm is a few words of the config; all else, the first weights of what arms share and the rows of every step
included, is the seed's.
"""

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from .markdown_tables import markdown_table
from .modeling_roformer import HFRoFormerForCausalLM, HFRoFormerForMaskedLM
from .study_cells import Cell, Claim, StudySizes, apart, names_of, select, spread
from .study_figures import draw_seeds, legend_beside, panels, style
from .study_texts import BYTES, CHARACTERS, read_stream
from .study_training import SETTINGS, drawn_batches, held_out_batches, mean_loss, shape_of, start, train

KINDS: dict[str, dict[str, Any]] = {
    "rotary": {},
    "sinusoidal": {"position_kind": "sinusoidal"},
    "learned": {"position_kind": "learned"},
    "none": {"position_kind": "none"},
}
ATTENTIONS: dict[str, dict[str, Any]] = {
    "linear, rotary": {"attention_kind": "linear"},
    "linear, none": {"attention_kind": "linear", "position_kind": "none"},
    "softmax, rotary": {},
    "softmax, none": {"position_kind": "none"},
}
ROTATIONS: dict[str, dict[str, Any]] = {
    "softmax, general": {"rotation_kind": "learned"},
    "softmax, learned frequencies": {"rotation_kind": "learned_frequencies"},
    "softmax, fixed frequencies": {},
    "linear, general": {"attention_kind": "linear", "rotation_kind": "learned"},
    "linear, two matrices": {"attention_kind": "linear", "feature_matrices": True},
    "linear, fixed frequencies": {"attention_kind": "linear"},
}
NATS_OF_A_BIT = math.log(2)
DIGITS = 5


def trained(
    sizes: StudySizes, part: str, words: dict[str, Any], seed: int, *, causal: bool
) -> tuple[Any, list[tuple[int, float]]]:
    """Train an arm; return the network, and the held-out loss by steps taken."""
    stream = read_stream(sizes.data, part, sizes.vocabulary)
    model_class = HFRoFormerForCausalLM if causal else HFRoFormerForMaskedLM
    model = start(model_class, shape_of(sizes, stream.vocab_size), words, seed)
    model.logits_of_labels_only = True
    held_out = held_out_batches(stream, sizes, causal=causal)
    curve: list[tuple[int, float]] = []

    def watch(step: int) -> None:
        curve.append((step, round(mean_loss(model, held_out, causal=causal), DIGITS)))

    train(model, drawn_batches(stream, sizes, seed, causal=causal), sizes, watch)
    return model.eval(), curve


def _measure(sizes: StudySizes, part: str, words: dict[str, Any], seed: int, *, causal: bool) -> Cell:
    model, curve = trained(sizes, part, words, seed, causal=causal)
    return {"curve": curve, "loss": curve[-1][1], "parameters": model.num_parameters()}


def texts_of(sizes: StudySizes, part: str) -> dict[str, Any]:
    """Return the facts of a stream."""
    return read_stream(sizes.data, part, sizes.vocabulary).facts


# telling


def _loss(cell: Cell) -> float:
    return cell["loss"]


def _mean_of_curve(cell: Cell) -> float:
    losses = [loss for _, loss in cell["curve"]]
    return sum(losses[1:]) / max(1, len(losses) - 1)


def _reference_of(arm: str, word: str) -> str:
    """Name the arm of the same attention that is compared with."""
    return ", ".join([*arm.split(", ")[:-1], word])


def table_of(cells: Sequence[Cell], *, reference: str, unit: float, name: str) -> str:
    """Tell the last loss of each arm, its mean over the curve, and what it has more than the arm that ends in a word.

    reference: that word.
    unit: nats of what is told.
    """
    head = ["texts", "arm", name, "mean over the steps", f"more than {reference}, by seed"]
    rows = []
    for part in names_of(cells, "part"):
        for arm in names_of(cells, "arm"):
            same = select(cells, part=part, arm=arm)
            losses = [[value(cell) / unit for cell in same] for value in (_loss, _mean_of_curve)]
            more = [f"{gap / unit:+.3f}" for gap in apart(cells, part, arm, _reference_of(arm, reference), _loss)]
            told = "-" if arm == _reference_of(arm, reference) else ", ".join(more) or "not run"
            rows.append([part, arm, *map(spread, losses), told])
    return markdown_table(head, rows)


def figure_of(cells: Sequence[Cell], *, title: str, unit: float, name: str) -> Figure:
    """Draw the held-out loss by step, a panel for each text; a line is the mean, a shade reaches from seed to seed."""
    parts = names_of(cells, "part")
    # one panel is as wide as its title
    figure, axes = panels(len(parts), width=5.2 if len(parts) > 1 else 7.5)
    for one, part in zip(axes, parts, strict=True):
        for number, arm in enumerate(names_of(cells, "arm")):
            # the loss of untrained weights would flatten all that follows
            curves = [
                [(step, loss / unit) for step, loss in cell["curve"] if step]
                for cell in select(cells, part=part, arm=arm)
            ]
            draw_seeds(one, curves, label=arm, **style(number))
        one.set(title=part, xlabel="optimizer step", ylabel=name)
    figure.suptitle(title)
    if len(parts) > 1:
        legend_beside(figure, axes[0])
    else:
        # curves of a loss fall, so this corner is free
        axes[0].legend(loc="upper right", fontsize=9)
    return figure


# the claims


MASKED, BITS = "held-out masked-LM loss, nats", "held-out bits per byte"


def _claim(
    letter: str,
    name: str,
    title: str,
    arms: dict[str, dict[str, Any]],
    *,
    reference: str,
    parts: Sequence[str] = (BYTES,),
    causal: bool = True,
) -> Claim:
    """Say how a loss by step is measured and told: bits of the next symbol, or nats of a masked one."""
    told: dict[str, Any] = {"unit": NATS_OF_A_BIT if causal else 1.0, "name": BITS if causal else MASKED}
    return Claim(
        letter=letter,
        name=name,
        title=title,
        sizes={},
        arms=lambda sizes: list(arms),
        parts=lambda sizes: list(parts),
        texts=texts_of,
        measure=lambda sizes, part, arm, seed: _measure(sizes, part, arms[arm], seed, causal=causal),
        table=lambda cells, sizes: table_of(cells, reference=reference, **told),
        draw=lambda cells, sizes: figure_of(cells, title=title, **told),
        settings=SETTINGS,
    )


POSITIONS = _claim(
    "a",
    "positions",
    "A masked LM learns with positions of four kinds",
    KINDS,
    reference="rotary",
    parts=(BYTES, CHARACTERS),
    causal=False,
)
LINEAR = _claim(
    "b",
    "linear",
    "Next-byte prediction with linear attention, with and without rotation",
    ATTENTIONS,
    reference="rotary",
)
GENERAL = _claim(
    "e",
    "general",
    "Next-byte prediction with a general rotation, and with the usual one",
    ROTATIONS,
    reference="fixed frequencies",
)

__all__ = [
    "BITS",
    "GENERAL",
    "KINDS",
    "LINEAR",
    "NATS_OF_A_BIT",
    "POSITIONS",
    "figure_of",
    "table_of",
    "texts_of",
    "trained",
]
