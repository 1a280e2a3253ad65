"""The slow, obvious maths in float64. It shares no code with the package.

One row at a time, one head at a time, one pair at a time; shapes are those of the formulas.
"""

import cmath
import math

import torch
from torch import Tensor


def turn(vector: list[float], position: float, theta: float = 10000.0) -> list[float]:
    """Multiply each neighbouring pair, read as a complex number, by e^(i position theta_i)."""
    width = len(vector)
    turned = []
    for i in range(width // 2):
        angle = position * theta ** (-2 * i / width)
        z = complex(vector[2 * i], vector[2 * i + 1]) * cmath.exp(1j * angle)
        turned += [z.real, z.imag]
    return turned


def turn_rows(x: Tensor, positions: list[float], theta: float = 10000.0) -> Tensor:
    """Turn each row of [L, K] by its own position."""
    rows = [turn(row, position, theta) for row, position in zip(x.tolist(), positions, strict=True)]
    return torch.tensor(rows, dtype=torch.float64)


def attend(query: Tensor, key: Tensor, value: Tensor, allowed: list[list[bool]]) -> Tensor:
    """Softmax attention of one head, [L, K]; a query that may see nothing gives zeros."""
    out = torch.zeros(len(query), value.shape[1], dtype=torch.float64)
    for m in range(len(query)):
        seen = [n for n in range(len(key)) if allowed[m][n]]
        if not seen:
            continue
        scores = [float(query[m] @ key[n]) / math.sqrt(query.shape[1]) for n in seen]
        largest = max(scores)
        weights = [math.exp(score - largest) for score in scores]
        for n, weight in zip(seen, weights, strict=True):
            out[m] += weight / sum(weights) * value[n]
    return out


def normalise(x: Tensor, weights: dict, name: str, eps: float) -> Tensor:
    """Layer norm, or without weights the root-mean-square norm of V2."""
    if f"{name}.weight" not in weights:
        return x / (x.square().mean(-1, keepdim=True) + eps).sqrt()
    centred = x - x.mean(-1, keepdim=True)
    normed = centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt()
    return normed * weights[f"{name}.weight"] + weights.get(f"{name}.bias", 0)


def linear(x: Tensor, weights: dict, name: str) -> Tensor:
    return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0)


def gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def relu(x: Tensor) -> Tensor:
    return x.clamp(min=0)


def encode(
    weights: dict,
    ids: list[int],
    *,
    heads: int,
    allowed: list[list[bool]],
    positions: list[float],
    segments: list[int] | None = None,
    eps: float = 1e-12,
    act=gelu,
    theta: float = 10000.0,
    rotary_value: bool = False,
) -> Tensor:
    """Run one row through a RoFormer body, [L, D]. `weights` are a body's state dict (no prefix)."""
    weights = {name: value.detach().double() for name, value in weights.items()}
    words = weights["embeddings.word_embeddings.weight"][ids]
    kinds = weights["embeddings.token_type_embeddings.weight"][segments or [0] * len(ids)]
    x = normalise(words + kinds, weights, "embeddings.LayerNorm", eps)
    if "embeddings_project.weight" in weights:
        x = linear(x, weights, "embeddings_project")
    layers = 1 + max(int(name.split(".")[2]) for name in weights if name.startswith("encoder.layer."))
    for layer in range(layers):
        at = f"encoder.layer.{layer}"
        parts = {n: linear(x, weights, f"{at}.attention.self.{n}") for n in ("query", "key", "value")}
        attended = []
        for q, k, v in zip(*(parts[n].chunk(heads, dim=1) for n in ("query", "key", "value")), strict=True):
            q, k = turn_rows(q, positions, theta), turn_rows(k, positions, theta)
            v = turn_rows(v, positions, theta) if rotary_value else v
            attended.append(attend(q, k, v, allowed))
        out = linear(torch.cat(attended, dim=1), weights, f"{at}.attention.output.dense")
        x = normalise(out + x, weights, f"{at}.attention.output.LayerNorm", eps)
        wide = act(linear(x, weights, f"{at}.intermediate.dense"))
        x = normalise(linear(wide, weights, f"{at}.output.dense") + x, weights, f"{at}.output.LayerNorm", eps)
    return x


def language_scores(weights: dict, hidden: Tensor, *, eps: float = 1e-12, act=gelu) -> Tensor:
    """Score the vocabulary from a body's output, [L, V]. `weights` are a whole head's state dict."""
    weights = {name: value.detach().double() for name, value in weights.items()}
    at = "cls.predictions"
    hidden = act(linear(hidden, weights, f"{at}.transform.dense"))
    hidden = normalise(hidden, weights, f"{at}.transform.LayerNorm", eps)
    return hidden @ weights["roformer.embeddings.word_embeddings.weight"].T + weights[f"{at}.bias"]


def everywhere(length: int) -> list[list[bool]]:
    return [[True] * length for _ in range(length)]


def causally(length: int) -> list[list[bool]]:
    return [[n <= m for n in range(length)] for m in range(length)]
