"""Figures of the turn itself: a pair, the spectrum, the decay, and what interpolation does.

Shapes: L tokens, K width of a head, P = K / 2 pairs, N distances, D draws.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from matplotlib.ticker import FuncFormatter
from torch import Tensor

from .figures import BLUE, GREEN, ORANGE
from .position_curves import decay_bound, decay_curve
from .rope_scaling import RopeFrequencies
from .rotary import rotate, rotation_frequencies, rotation_table
from .tour_drawing import GREY, Stop, draw_signed, percent, random_vectors, sheet

THETA = 10_000.0
# from this angle on the names of neighbouring arrows do not touch
ROOM_FOR_NAMES = 15
SCALINGS = ("default", "linear", "dynamic", "yarn")
SCALING_STYLES: dict[str, dict[str, Any]] = {
    "default": {"color": "black", "linestyle": "-"},
    "linear": {"color": BLUE, "linestyle": "--"},
    "dynamic": {"color": ORANGE, "linestyle": "-"},
    "yarn": {"color": GREEN, "linestyle": "-."},
}


@dataclass(frozen=True)
class Turning(Stop):
    """The same unit vector in a few pairs, at the first positions."""

    width: int = 16
    pairs: tuple[int, ...] = (0, 1, 2)
    positions: int = 7

    name: ClassVar[str] = "turning"
    title: ClassVar[str] = "A pair turns with its position"
    caption: ClassVar[str] = (
        "Each pair of a query's or a key's channels is an arrow, which every further token turns by the same angle: "
        "{fast}° in pair {first}, {slow}° in pair {last}. Its length never changes, so the position is told by "
        "directions alone."
    )

    @cached_property
    def points(self) -> Tensor:
        """Where the arrows end, [pairs, L, 2]."""
        x_11LK = torch.zeros(1, 1, self.positions, self.width, dtype=torch.float64)
        x_11LK[..., 0::2] = 1
        frequencies_P = rotation_frequencies(self.width, theta=THETA)
        turned = rotate(x_11LK, rotation_table(torch.arange(self.positions)[None], frequencies_P))
        return turned[0, 0].unflatten(-1, (-1, 2))[:, list(self.pairs)].transpose(0, 1)

    @property
    def degrees(self) -> list[float]:
        """The turn of one token, for each pair."""
        frequencies_P = rotation_frequencies(self.width, theta=THETA)
        return [math.degrees(frequencies_P[pair]) for pair in self.pairs]

    def facts(self) -> dict[str, Any]:
        """Return the angles of the first and the last pair."""
        fast, slow = self.degrees[0], self.degrees[-1]
        return {"first": self.pairs[0], "last": self.pairs[-1], "fast": f"{fast:.1f}", "slow": f"{slow:.1f}"}

    def figure(self) -> Figure:
        """Draw one circle a pair."""
        figure, panels = sheet(len(self.pairs))
        for axes, pair, degrees, ends in zip(panels, self.pairs, self.degrees, self.points, strict=True):
            axes.add_patch(Circle((0, 0), 1, fill=False, color="0.8"))
            for position, (x, y) in enumerate(ends.tolist()):
                self._draw_arrow(
                    axes, position, x, y, named=degrees > ROOM_FOR_NAMES or position in (0, self.positions - 1)
                )
            axes.set(xlim=(-1.35, 1.35), ylim=(-1.35, 1.35), aspect="equal", xticks=(-1, 0, 1), yticks=(-1, 0, 1))
            axes.set(xlabel=f"channel {2 * pair}", ylabel=f"channel {2 * pair + 1}")
            axes.set_title(f"pair {pair}: {degrees:.1f}° a token", fontsize=10)
        return figure

    def _draw_arrow(self, axes: Axes, position: int, x: float, y: float, *, named: bool) -> None:
        colour = colormaps["viridis"](0.8 * position / max(self.positions - 1, 1))
        style = {"arrowstyle": "-|>", "color": colour, "linewidth": 1.6, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", (x, y), (0, 0), arrowprops=style)
        if named:
            axes.text(1.17 * x, 1.17 * y, str(position), color=colour, ha="center", va="center", fontsize=10)


@dataclass(frozen=True)
class Spectrum(Stop):
    """How long each pair takes for a turn, and its cosine along a text."""

    width: int = 64
    trained: int = 512
    shown: int = 128

    name: ClassVar[str] = "spectrum"
    title: ClassVar[str] = "From the second hand to the hour hand"
    caption: ClassVar[str] = (
        "The fastest pair comes round every {fast} tokens, like a second hand, the slowest every {slow}, like an hour "
        "hand. Of the {pairs} pairs, {unturned} complete no turn within a trained length of {trained} tokens, and "
        "meet angles in a longer text that training never showed."
    )

    @cached_property
    def tokens_a_turn(self) -> Tensor:
        """The wavelength of each pair, [P]."""
        return 2 * math.pi / rotation_frequencies(self.width, theta=THETA)

    @cached_property
    def cosines(self) -> Tensor:
        """What the table holds, [P, L]."""
        frequencies_P = rotation_frequencies(self.width, theta=THETA)
        return rotation_table(torch.arange(self.shown), frequencies_P).cos.T

    def facts(self) -> dict[str, Any]:
        """Return the ends of the spectrum, and how many pairs complete no turn."""
        turns = self.tokens_a_turn
        return {
            "fast": f"{turns[0]:.2f}",
            "slow": f"{turns[-1]:,.0f}",
            "pairs": len(turns),
            "unturned": int((turns > self.trained).sum()),
            "trained": f"{self.trained:,}",
        }

    def figure(self) -> Figure:
        """Draw wavelengths beside cosines."""
        figure, (left, right) = sheet(2)
        pairs, slow = torch.arange(len(self.tokens_a_turn)), self.tokens_a_turn > self.trained
        for chosen, colour, label in ((~slow, BLUE, "turns within it"), (slow, ORANGE, "completes no turn")):
            left.semilogy(pairs[chosen], self.tokens_a_turn[chosen], "o", color=colour, markersize=5, label=label)
        left.axhline(self.trained, color=GREY, linestyle="--", label=f"trained length, {self.trained:,}")
        left.set(xlabel="pair", ylabel="tokens a turn")
        left.yaxis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:,.0f}"))
        left.legend(frameon=False, fontsize=9)
        left.grid(alpha=0.3)
        self._name_hands(left)
        edges = (-0.5, self.shown - 0.5, len(pairs) - 0.5, -0.5)
        image = draw_signed(right, self.cosines, largest=1, extent=edges)
        right.set(xlabel="position", ylabel="pair")
        figure.colorbar(image, ax=right, label="cosine of the angle", ticks=(-1, 0, 1))
        return figure

    def _name_hands(self, axes: Axes) -> None:
        turns, last = self.tokens_a_turn, len(self.tokens_a_turn) - 1
        for pair, hand, offset, side in (
            (0, "second hand", (10, -3), "left"),
            (last, "hour hand", (-10, -3), "right"),
        ):
            name = f"{hand}: {turns[pair]:,.0f} tokens"
            axes.annotate(name, (pair, turns[pair]), offset, textcoords="offset points", ha=side, fontsize=9)


@dataclass(frozen=True)
class Decay(Stop):
    """The published bound of a score by its distance, and what scores do below it."""

    width: int = 64
    distances: int = 256
    draws: int = 400
    seed: int = 0

    name: ClassVar[str] = "decay"
    title: ClassVar[str] = "A bound that falls with distance"
    caption: ClassVar[str] = (
        "The published curve, the mean length of the partial sums of turns, bounds every score and falls from {start} "
        "at no distance to {end} at {last}; of {draws} random queries and keys none comes nearer to its own bound "
        "than {closest} of it. The score of a key with itself falls too, to {alike} of its start, but the size of "
        "random scores does not: at {last} it is {random} of what it was."
    )

    @cached_property
    def _frequencies(self) -> Tensor:
        return rotation_frequencies(self.width, theta=THETA)

    @cached_property
    def curve(self) -> Tensor:
        """The published curve, [N]."""
        return decay_curve(torch.arange(self.distances), self._frequencies)

    @cached_property
    def vectors(self) -> Tensor:
        """Random queries and keys, [2, D, K]."""
        return random_vectors(self.seed, 2, self.draws, self.width)

    def scores(self, query_DK: Tensor, key_DK: Tensor) -> Tensor:
        """Return the scores of queries at each distance from their keys, [D, N]."""
        rotation = rotation_table(torch.arange(self.distances)[None], self._frequencies)
        turned_1DNK = rotate(query_DK[None, :, None].expand(1, -1, self.distances, -1), rotation)
        return (turned_1DNK[0] @ key_DK[..., None])[..., 0]

    @cached_property
    def filled(self) -> Tensor:
        """How much of its own bound each random score reaches, [D, N]."""
        places = torch.arange(self.distances)
        query_DK, key_DK = self.vectors
        return self.scores(query_DK, key_DK).abs() / decay_bound(query_DK, key_DK, places, self._frequencies)

    @cached_property
    def sizes(self) -> tuple[Tensor, Tensor]:
        """What is left at each distance: of random keys' mean score with themselves, of random scores' mean size."""
        query_DK, key_DK = self.vectors
        alike, random = self.scores(key_DK, key_DK).mean(dim=0), self.scores(query_DK, key_DK).abs().mean(dim=0)
        return alike / alike[0], random / random[0]

    def facts(self) -> dict[str, Any]:
        """Return the ends of the curves, and how near a score comes to its bound."""
        alike, random = self.sizes
        return {
            "start": f"{self.curve[0]:.1f}",
            "end": f"{self.curve[-1]:.1f}",
            "last": self.distances - 1,
            "draws": self.draws,
            "closest": percent(self.filled.max()),
            "alike": percent(alike[-1]),
            "random": percent(random[-1]),
        }

    def figure(self) -> Figure:
        """Draw the curve beside what is left of scores."""
        figure, (left, right) = sheet(2)
        places = torch.arange(self.distances)
        left.plot(places, self.curve, color=BLUE, linewidth=1.8)
        left.set(ylabel="mean of $|S_j|$", title="the published curve")
        labels = ("a key with itself, mean", "random pairs, mean size")
        for values, label, colour, style in zip(self.sizes, labels, (ORANGE, GREEN), ("-", "--"), strict=True):
            right.plot(places, 100 * values, style, color=colour, linewidth=1.8, label=label)
        right.set(ylabel="% of the score at no distance", title="what is left of scores")
        right.legend(frameon=False, fontsize=9, loc="upper right")
        for axes, top in ((left, None), (right, 145)):
            axes.set(xlabel="distance", xlim=(0, self.distances - 1), ylim=(0, top))
            axes.title.set_fontsize(10)
            axes.grid(alpha=0.3)
        return figure


@dataclass(frozen=True)
class Interpolation(Stop):
    """What linear interpolation, dynamic NTK and YaRN do to each pair's angle in a text beyond the trained length."""

    width: int = 64
    trained: int = 512
    length: int = 2048
    pair: int = 22

    name: ClassVar[str] = "interpolation"
    title: ClassVar[str] = "What interpolation does to the angles"
    caption: ClassVar[str] = (
        "For {length} tokens after a training on {trained}, linear slows all pairs alike, dynamic the slow ones most, "
        "and yarn leaves the {kept} fastest as they are and slows the {slowed} slowest as linear does. In training "
        "pair {pair} turned by {known} rad at most; now it would go on to {default} rad unscaled, and stops at "
        "{linear} under linear, {dynamic} under dynamic and {yarn} under yarn."
    )

    def scaling(self, kind: str) -> RopeFrequencies:
        """Read a scaling; dynamic finds out by itself how far the text goes beyond the trained length."""
        factor = 1.0 if kind == "dynamic" else self.length / self.trained
        return RopeFrequencies({"rope_type": kind, "rope_theta": THETA, "factor": factor}, self.width, self.trained)

    @cached_property
    def frequencies(self) -> dict[str, Tensor]:
        """The angle of one token by scaling, each [P]."""
        found = {kind: self.scaling(kind) for kind in SCALINGS}
        length = torch.tensor([self.length])
        return {
            kind: scaled.of_lengths(length)[0] if scaled.by_length else torch.tensor(scaled.within).double()
            for kind, scaled in found.items()
        }

    def left(self, kind: str) -> Tensor:
        """Return the share of each pair's speed that a scaling leaves, [P]."""
        return self.frequencies[kind] / self.frequencies["default"]

    @property
    def known(self) -> float:
        """The largest angle of the pair in training."""
        return float((self.trained - 1) * self.frequencies["default"][self.pair])

    def facts(self) -> dict[str, Any]:
        """Return how many pairs yarn leaves and slows, and the largest angles of one pair."""
        reached = {kind: f"{(self.length - 1) * f[self.pair]:.2f}" for kind, f in self.frequencies.items()}
        return {
            **reached,
            "known": f"{self.known:.2f}",
            "kept": int((self.left("yarn") > 1 - 1e-9).sum()),
            "slowed": int((self.left("yarn") < self.left("linear") + 1e-9).sum()),
            "length": f"{self.length:,}",
            "trained": self.trained,
            "pair": self.pair,
        }

    def figure(self) -> Figure:
        """Draw what is left of every pair's speed, and one pair's angle along the text."""
        figure, (left, right) = sheet(2)
        for kind in SCALINGS[1:]:
            left.plot(self.left(kind), label=kind, linewidth=1.8, **SCALING_STYLES[kind])
        left.set(xlabel="pair", ylabel="share of its speed that is left", ylim=(0, 1.08))
        places = torch.tensor([0, self.length - 1])
        right.axhspan(0, self.known, color="0.9", label="angles known from training")
        right.axvline(self.trained, color=GREY, linestyle=":", label="trained length")
        for kind in SCALINGS:
            # the others have the styles of the left panel
            label = "unscaled" if kind == "default" else None
            right.plot(
                places, places * self.frequencies[kind][self.pair], label=label, linewidth=1.8, **SCALING_STYLES[kind]
            )
        right.set(xlabel="position", ylabel=f"angle of pair {self.pair}, rad", xlim=(0, self.length), ylim=(0, None))
        left.legend(frameon=False, fontsize=9)
        right.legend(loc="upper left", framealpha=1, edgecolor="white", fontsize=9)
        for axes in (left, right):
            axes.grid(alpha=0.3)
        return figure


__all__ = ["Decay", "Interpolation", "Spectrum", "Turning"]
