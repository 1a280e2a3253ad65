"""A RoFormer in float64 on a checkpoint's own arrays, under the checkpoint's own names.

It shares nothing with the model but the formulas (arXiv 2104.09864): a conversion is checked against it where no
other program can run the source. Slow, and meant for a few short rows.

Shapes: B batch, L tokens, H heads, K width of one head, D hidden size, V vocabulary.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import erf

ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "gelu": lambda x: 0.5 * x * (1.0 + erf(x / math.sqrt(2.0))),
    "gelu_new": lambda x: 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: np.maximum(x, 0.0),
    "silu": lambda x: x / (1.0 + np.exp(-x)),
    "swish": lambda x: x / (1.0 + np.exp(-x)),
    "tanh": np.tanh,
    "linear": lambda x: x,
}


@dataclass(frozen=True)
class Meaning:
    """What the arrays alone do not tell."""

    num_layers: int
    num_heads: int
    activation: str
    eps: float
    rotary_value: bool | str = False
    pattern: str = "bidirectional"
    pooler_activation: str = "linear"
    pooling: str | None = None
    theta: float = 10_000.0
    stretch: float = 1.0
    share: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what is not written here."""
        for name in (self.activation, self.pooler_activation):
            if name not in ACTIVATIONS:
                raise ValueError(
                    f"no check is written for the activation {name!r}: use one of {', '.join(ACTIVATIONS)}"
                )


class TensorFlowArrays:
    """Arrays as Google's BERT and bert4keras name them: kernels are [inputs, outputs]."""

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.arrays = arrays

    def place(self, part: str) -> str:
        """Return the scope of a part."""
        part = part.replace("roformer.embeddings_project", "roformer.encoder.embedding_hidden_mapping_in")
        return part.replace("roformer.", "bert/").replace("layer.", "layer_").replace(".", "/")

    def find(self, part: str, leaf: str) -> np.ndarray | None:
        """Return a matrix [inputs, outputs], or a vector; None if there is none."""
        place = self.place(part)
        names = {
            "table": (place,),
            "matrix": (f"{place}/kernel",),
            "gain": (f"{place}/gamma",),
            "bias": (f"{place}/bias", f"{place}/beta", f"{place}/output_bias"),
        }
        found = [self.arrays[name] for name in names[leaf] if name in self.arrays]
        return np.asarray(found[0], dtype=np.float64) if found else None


class PublishedArrays:
    """Arrays as the published state dicts name them: weights are [outputs, inputs]."""

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        self.arrays = arrays
        self.prefix = "roformer." if any(name.startswith("roformer.") for name in arrays) else ""

    def find(self, part: str, leaf: str) -> np.ndarray | None:
        """Return a matrix [inputs, outputs], or a vector; None if there is none."""
        place = part.replace("roformer.", self.prefix)
        endings = ("bias", "beta") if leaf == "bias" else ("weight", "gamma")
        for name in (f"{place}.{ending}" for ending in endings):
            if name in self.arrays:
                array = self.arrays[name].double().numpy()
                return array.T if leaf == "matrix" else array
        return None


Arrays = TensorFlowArrays | PublishedArrays


def linear(arrays: Arrays, part: str, x: np.ndarray) -> np.ndarray:
    """Multiply by a part's matrix; add its bias if it has one."""
    matrix, bias = arrays.find(part, "matrix"), arrays.find(part, "bias")
    if matrix is None:
        raise ValueError(f"the source holds no matrix of {part}, which its config speaks of: check the config")
    return x @ matrix if bias is None else x @ matrix + bias


def normalise(arrays: Arrays, part: str, x: np.ndarray, eps: float) -> np.ndarray:
    """Apply a layer norm where the part has a gain, else divide by the root mean square."""
    gain, bias = arrays.find(part, "gain"), arrays.find(part, "bias")
    if gain is None:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps)
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps) * gain
    return scaled if bias is None else scaled + bias


def turn(x_BHLK: np.ndarray, meaning: Meaning, direction: int) -> np.ndarray:
    """Multiply each pair, read as a complex number, by the unit number of its position's angle."""
    width = int(round(x_BHLK.shape[-1] * meaning.share, 9))
    frequencies = meaning.theta ** (-np.arange(0, width, 2) / width)
    angles = np.arange(x_BHLK.shape[-2])[:, None] / meaning.stretch * frequencies
    pairs = x_BHLK[..., 0:width:2] + 1j * x_BHLK[..., 1:width:2]
    pairs = pairs * np.exp(1j * direction * angles)
    turned = x_BHLK.copy()
    turned[..., 0:width:2], turned[..., 1:width:2] = pairs.real, pairs.imag
    return turned


def visible(segments_BL: np.ndarray, pattern: str) -> np.ndarray:
    """Return which key each query sees, bool [B, 1, L, L]."""
    length = segments_BL.shape[1]
    order = {
        "bidirectional": np.zeros_like(segments_BL),
        "causal": np.broadcast_to(np.arange(length), segments_BL.shape),
        "prefix": segments_BL.cumsum(-1),
    }[pattern]
    return (order[:, None, :] <= order[:, :, None])[:, None]


def attend(arrays: Arrays, part: str, x_BLD: np.ndarray, seen: np.ndarray, meaning: Meaning) -> np.ndarray:
    """Return the attention's output before its projection, [B, L, D]."""
    batch, length, width = x_BLD.shape
    split = (batch, length, meaning.num_heads, width // meaning.num_heads)
    q, k, v = (
        linear(arrays, f"{part}.{name}", x_BLD).reshape(split).transpose(0, 2, 1, 3)
        for name in ("query", "key", "value")
    )
    q, k = turn(q, meaning, 1), turn(k, meaning, 1)
    v = turn(v, meaning, 1) if meaning.rotary_value else v
    scores = np.where(seen, q @ k.transpose(0, 1, 3, 2) / math.sqrt(split[-1]), -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    out = weights / weights.sum(-1, keepdims=True) @ v
    out = turn(out, meaning, -1) if meaning.rotary_value == "relative" else out
    return out.transpose(0, 2, 1, 3).reshape(x_BLD.shape)


def run_body(arrays: Arrays, meaning: Meaning, ids_BL: np.ndarray, segments_BL: np.ndarray) -> np.ndarray:
    """Return the last hidden states, [B, L, D]."""
    words = arrays.find("roformer.embeddings.word_embeddings", "table")
    segments = arrays.find("roformer.embeddings.token_type_embeddings", "table")
    x = words[ids_BL] + segments[segments_BL]
    x = normalise(arrays, "roformer.embeddings.LayerNorm", x, meaning.eps)
    if arrays.find("roformer.embeddings_project", "matrix") is not None:
        x = linear(arrays, "roformer.embeddings_project", x)
    seen = visible(segments_BL, meaning.pattern)
    for number in range(meaning.num_layers):
        layer = f"roformer.encoder.layer.{number}"
        mixed = attend(arrays, f"{layer}.attention.self", x, seen, meaning)
        mixed = linear(arrays, f"{layer}.attention.output.dense", mixed)
        x = normalise(arrays, f"{layer}.attention.output.LayerNorm", x + mixed, meaning.eps)
        wide = ACTIVATIONS[meaning.activation](linear(arrays, f"{layer}.intermediate.dense", x))
        x = normalise(
            arrays, f"{layer}.output.LayerNorm", x + linear(arrays, f"{layer}.output.dense", wide), meaning.eps
        )
    return x


def score_words(arrays: Arrays, meaning: Meaning, x_BLD: np.ndarray) -> np.ndarray:
    """Return the language-model head's scores, [B, L, V]."""
    head = "cls.predictions"
    if arrays.find(f"{head}.transform.dense", "matrix") is not None:
        x_BLD = ACTIVATIONS[meaning.activation](linear(arrays, f"{head}.transform.dense", x_BLD))
        x_BLD = normalise(arrays, f"{head}.transform.LayerNorm", x_BLD, meaning.eps)
    elif arrays.find(f"{head}.transform", "matrix") is not None:
        x_BLD = linear(arrays, f"{head}.transform", x_BLD)
    decoder = arrays.find(f"{head}.decoder", "table")
    words = arrays.find("roformer.embeddings.word_embeddings", "table") if decoder is None else decoder
    bias = arrays.find(f"{head}.decoder", "bias")
    bias = arrays.find(head, "bias") if bias is None else bias
    scores = x_BLD @ words.T
    return scores if bias is None else scores + bias


def pool_first(arrays: Arrays, meaning: Meaning, x_BLD: np.ndarray) -> np.ndarray:
    """Return the pooler's vector of each row, [B, D]."""
    return ACTIVATIONS[meaning.pooler_activation](linear(arrays, "roformer.pooler.dense", x_BLD[:, 0]))


def embed_rows(arrays: Arrays, meaning: Meaning, x_BLD: np.ndarray) -> np.ndarray:
    """Return each row's pooled vector at length one, [B, D]."""
    if meaning.pooling is None:
        pooled = pool_first(arrays, meaning, x_BLD)
    else:
        pooled = {"first": x_BLD[:, 0], "last": x_BLD[:, -1], "mean": x_BLD.mean(1)}[meaning.pooling]
    return pooled / np.sqrt((pooled**2).sum(-1, keepdims=True))


def score_replaced(arrays: Arrays, meaning: Meaning, x_BLD: np.ndarray) -> np.ndarray:
    """Return how far each token looks replaced, [B, L]."""
    wide = ACTIVATIONS[meaning.activation](linear(arrays, "discriminator_predictions.dense", x_BLD))
    return linear(arrays, "discriminator_predictions.dense_prediction", wide)[..., 0]
