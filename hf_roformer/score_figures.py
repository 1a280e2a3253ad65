"""Figures of scores and weights: rotated or added positions, a trained model's heads, linear attention.

Shapes: L tokens, K width of a head, N texts.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from torch import Tensor

from .figures import BLUE, GREEN, ORANGE, SKY, YELLOW
from .linear_attention import divide, elu_features, turn_features
from .modeling_roformer import HFRoFormerForMaskedLM
from .position_curves import over_distances
from .position_embeddings import HFRoFormerSinusoids
from .publishing import read_results
from .rotary import RotationTable, rotate, rotation_frequencies, rotation_table
from .tokenization_roformer import HFRoFormerTokenizer
from .tour_drawing import LINES, Stop, draw_signed, percent, random_vectors, sheet, tick_places


def _turns(length: int, width: int) -> RotationTable:
    """Return the published rotation of the first positions, [1, L, P]."""
    return rotation_table(torch.arange(length)[None], rotation_frequencies(width, theta=10_000.0))


def _sines(length: int, width: int) -> Tensor:
    """Return the published sinusoids, [L, K]."""
    return HFRoFormerSinusoids(width)(torch.arange(length)[None], None)[0].double()


@dataclass(frozen=True)
class Scores(Stop):
    """One query and one key at every pair of places: rotated, and with sinusoids added."""

    width: int = 64
    length: int = 128
    seed: int = 0

    name: ClassVar[str] = "scores"
    title: ClassVar[str] = "Scores against distance"
    caption: ClassVar[str] = (
        "Rotated, one query and one key score the same wherever they stand at a distance: the largest spread is "
        "{rotated}, which is rounding. With sinusoids added to the same two vectors, made as long as a sinusoid, the "
        "place counts too: at one distance the score moves by up to {added}, out of {whole} in all."
    )

    @cached_property
    def vectors(self) -> Tensor:
        """A query and a key as long as a row of sinusoids, [2, K]."""
        x_2K = random_vectors(self.seed, 2, self.width)
        return x_2K * math.sqrt(self.width / 2) / x_2K.norm(dim=-1, keepdim=True)

    @cached_property
    def rotated(self) -> Tensor:
        """Scores of the query at each row's place and the key at each column's, [L, L]."""
        rotation = _turns(self.length, self.width)
        q_LK, k_LK = rotate(self.vectors[None, :, None].expand(1, 2, self.length, -1), rotation)[0]
        return q_LK @ k_LK.T / math.sqrt(self.width)

    @cached_property
    def added(self) -> Tensor:
        """The same with sinusoids added, [L, L]."""
        q_LK, k_LK = self.vectors[:, None] + _sines(self.length, self.width)
        return q_LK @ k_LK.T / math.sqrt(self.width)

    def facts(self) -> dict[str, Any]:
        """Return the largest spread at one distance under each, and the additive score's whole range."""
        (_, *rotated), (_, *added) = over_distances(self.rotated), over_distances(self.added)
        spread = (rotated[1] - rotated[0]).max()
        return {
            "rotated": f"{spread:.0e}",
            "added": f"{(added[1] - added[0]).max():.2f}",
            "whole": f"{self.added.max() - self.added.min():.2f}",
        }

    def figure(self) -> Figure:
        """Draw the range of scores at each distance, and the rows of three queries."""
        figure, panels = sheet(2, sharey=True)
        drawn = {"rotated": self.rotated, "sinusoids added": self.added}
        for axes, (title, scores) in zip(panels, drawn.items(), strict=True):
            self._draw(axes, scores)
            axes.set_title(title, fontsize=10)
        panels[0].set_ylabel("score")
        panels[1].legend(frameon=False, fontsize=9)
        return figure

    def _draw(self, axes: Axes, scores: Tensor) -> None:
        places = torch.arange(self.length)
        distances, low, high = over_distances(scores)
        axes.fill_between(distances, low, high, color="0.85", label="all places", linewidth=0)
        queries = (0, self.length // 2, self.length - 1)
        for query, colour, style in zip(queries, (BLUE, ORANGE, GREEN), LINES, strict=True):
            axes.plot(places - query, scores[query], style, color=colour, linewidth=1.6, label=f"query at {query}")
        axes.set(xlabel="place of the key minus place of the query")
        axes.grid(alpha=0.3)


@dataclass(frozen=True)
class Shares(Stop):
    """What part of an additive score's variance each of its terms takes, by the length of the words' vectors."""

    width: int = 64
    length: int = 128
    texts: int = 32
    seed: int = 0

    name: ClassVar[str] = "shares"
    title: ClassVar[str] = "What the cross terms take"
    caption: ClassVar[str] = (
        "An additive score is four terms, of which place by place alone depends on distance alone; word by place and "
        "place by word mix the two. Where a word's vector is as long as its place's, they take {cross} of the score's "
        "variance over random words, the words {words}, and the distance {places}."
    )

    @cached_property
    def variances(self) -> Tensor:
        """Those of word by word, both cross terms, and place by place, for words as long as a row of sinusoids."""
        q_NLK, k_NLK = random_vectors(self.seed, 2, self.texts, self.length, self.width) * math.sqrt(0.5)
        places_LK = _sines(self.length, self.width)
        cross_NLL = q_NLK @ places_LK.T + places_LK @ k_NLK.mT
        return torch.stack([part.var() for part in (q_NLK @ k_NLK.mT, cross_NLL, places_LK @ places_LK.T)])

    def shares(self, ratios: Tensor) -> Tensor:
        """Return the three shares where a word's vector is so many times as long as its place's, [3, N]."""
        parts = self.variances[:, None] * torch.stack((ratios**4, ratios**2, torch.ones_like(ratios)))
        return parts / parts.sum(dim=0)

    def facts(self) -> dict[str, Any]:
        """Return the shares where both are as long."""
        words, cross, places = self.shares(torch.ones(1, dtype=torch.float64))[:, 0]
        return {"words": percent(words), "cross": percent(cross), "places": percent(places)}

    def figure(self) -> Figure:
        """Stack the shares over the ratio of lengths."""
        figure, (axes,) = sheet(1)
        ratios = torch.logspace(-3, 3, 121, base=2, dtype=torch.float64)
        words, cross, places = 100 * self.shares(ratios)
        labels = ("place by place: the distance", "cross terms: word by place", "word by word")
        style: dict[str, Any] = {"colors": (SKY, YELLOW, "0.8"), "edgecolor": "white"}
        axes.stackplot(ratios, places, cross, words, labels=labels, **style)
        axes.axvline(1, color="black", linestyle="--", linewidth=1)
        axes.set(xscale="log", xlim=(1 / 8, 8), ylim=(0, 100))
        axes.set(xlabel="length of a word's vector over that of its place", ylabel="share of the variance, %")
        axes.set_xticks([1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8], ["1/8", "1/4", "1/2", "1", "2", "4", "8"])
        axes.minorticks_off()
        handles, names = axes.get_legend_handles_labels()
        axes.legend(handles[::-1], names[::-1], loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
        return figure


@dataclass(frozen=True)
class Heads(Stop):
    """The attention of a trained model's heads over one sentence; `model` is a folder."""

    model: str
    sentence: str

    name: ClassVar[str] = "heads"
    title: ClassVar[str] = "What a trained model's heads look at"
    caption: ClassVar[str] = (
        "All {heads} heads of {layers} layers, {trained}, over “{sentence}”: a row is a query, a column the key that "
        "it weighs. Head {near} (layer.head) gives {near_share} of its weight to a token and its two neighbours, "
        "head {wide} no more than {wide_share}."
    )

    @cached_property
    def _read(self) -> tuple[list[str], Tensor]:
        tokenizer = HFRoFormerTokenizer.from_pretrained(self.model)
        model = HFRoFormerForMaskedLM.from_pretrained(self.model, attn_implementation="eager").eval()
        batch = tokenizer(self.sentence, return_tensors="pt")
        with torch.no_grad():
            weights = model(**batch, output_attentions=True).attentions
        return tokenizer.convert_ids_to_tokens(batch.input_ids[0]), torch.cat(weights).double()

    @property
    def tokens(self) -> list[str]:
        """What stands at each place."""
        return self._read[0]

    @property
    def weights(self) -> Tensor:
        """The weights [layers, heads, L, L]."""
        return self._read[1]

    @cached_property
    def nearness(self) -> Tensor:
        """The share of each head's weight that lies within one token, [layers, heads]."""
        places = torch.arange(self.weights.shape[-1])
        near = (places[:, None] - places).abs() <= 1
        return (self.weights * near).sum(dim=-1).mean(dim=-1)

    def _name(self, number: Tensor) -> str:
        layer, head = divmod(int(number), self.weights.shape[1])
        return f"{layer + 1}.{head + 1}"

    def facts(self) -> dict[str, Any]:
        """Return which heads look nearest and widest, and how the model was trained, if its folder says so."""
        layers, heads = self.weights.shape[:2]
        trained = "as the folder holds them"
        if Path(self.model, "results.json").is_file():
            run = read_results(Path(self.model))
            steps = "some" if run.trained_steps is None else f"{run.trained_steps:,}"
            trained = f"trained for {steps} steps on {run.data.get('name') or 'texts that are not named'}"
        return {
            "heads": layers * heads,
            "layers": layers,
            "trained": trained,
            "sentence": self.sentence,
            "near": self._name(self.nearness.argmax()),
            "near_share": percent(self.nearness.max()),
            "wide": self._name(self.nearness.argmin()),
            "wide_share": percent(self.nearness.min()),
        }

    def notes(self) -> list[str]:
        """Say what stands at each place, which no usual font could draw."""
        named = ", ".join(f"{place} `{token}`" for place, token in enumerate(self.tokens))
        return [f"The places: {named}."]

    def figure(self) -> Figure:
        """Draw a map a head, layers below each other."""
        layers, heads = self.weights.shape[:2]
        figure, panels = sheet(heads, rows=layers, height=0.6 + 2.2 * layers, sharex=True, sharey=True)
        for number, (axes, weights) in enumerate(zip(panels, self.weights.flatten(0, 1), strict=True)):
            image = axes.imshow(weights.numpy(), cmap="Blues", norm=PowerNorm(0.5, 0, 1))
            layer, head = divmod(number, heads)
            axes.set_title(f"head {layer + 1}.{head + 1}: {percent(self.nearness[layer, head])} near", fontsize=9)
            tick_places(axes)
        figure.supxlabel("place of the key", fontsize=10)
        figure.supylabel("place of the query", fontsize=10)
        figure.colorbar(image, ax=panels, label="weight (square-root scale)", shrink=0.8)
        return figure


@dataclass(frozen=True)
class Weights(Stop):
    """Softmax beside linear attention over the same rotated vectors of a text whose words come again."""

    width: int = 8
    length: int = 24
    words: int = 6
    seed: int = 0

    name: ClassVar[str] = "weights"
    title: ClassVar[str] = "Linear against softmax weights"
    caption: ClassVar[str] = (
        "Over a text in which every word comes again after {words} tokens, softmax gives a query's favourite key "
        "{softmax} of its weight on average, linear attention {linear}. A rotated numerator over an unrotated divisor "
        "makes {negative} of the linear weights negative, and a query's weights sum to anything from {low} to {high}."
    )

    @cached_property
    def vectors(self) -> Tensor:
        """What serves as queries and keys, [L, K]."""
        return 2 * random_vectors(self.seed, self.words, self.width)[torch.arange(self.length) % self.words]

    @cached_property
    def weights(self) -> tuple[Tensor, Tensor]:
        """Those of softmax and of linear attention, both [L, L]."""
        x_11LK = self.vectors[None, None]
        rotation = _turns(self.length, self.width)
        turned, features = rotate(x_11LK, rotation), elu_features(x_11LK)
        softmax = (turned @ turned.mT / math.sqrt(self.width)).softmax(dim=-1)
        turned_features = turn_features(features, rotation, self.width)
        divisor = (features @ features.mT).sum(dim=-1, keepdim=True)
        return softmax[0, 0], divide(turned_features @ turned_features.mT, divisor)[0, 0]

    def facts(self) -> dict[str, Any]:
        """Return the mean of the largest weights, and how many are negative and what they sum to."""
        softmax, linear = self.weights
        sums = linear.sum(dim=-1)
        return {
            "words": self.words,
            "softmax": percent(softmax.amax(dim=-1).mean()),
            "linear": percent(linear.amax(dim=-1).mean()),
            "negative": percent((linear < 0).double().mean()),
            "low": f"{sums.min():.2f}",
            "high": f"{sums.max():.2f}",
        }

    def figure(self) -> Figure:
        """Draw both maps, each on its own scale, and the row of the query in the middle."""
        figure, (*maps, row) = sheet(3, height=3.3)
        middle = self.length // 2
        kinds = {"softmax": (BLUE, "-o"), "linear": (ORANGE, "--s")}
        for axes, weights, (kind, (colour, style)) in zip(maps, self.weights, kinds.items(), strict=True):
            image = draw_signed(axes, weights, largest=float(weights.abs().max()))
            axes.set(xlabel="place of the key", ylabel="place of the query")
            axes.set_title(kind, fontsize=10)
            tick_places(axes)
            bar = figure.colorbar(image, ax=axes, shrink=0.8)
            bar.ax.set_ylim(bottom=min(0.0, float(weights.min())))
            row.plot(torch.arange(self.length), weights[middle], style, color=colour, markersize=3, label=kind)
        row.axhline(0, color="black", linewidth=0.8)
        row.set(xlabel="place of the key", ylabel=f"weight for the query at {middle}")
        row.legend(frameon=False, fontsize=9)
        return figure


__all__ = ["Heads", "Scores", "Shares", "Weights"]
