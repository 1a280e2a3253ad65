"""The slow, obvious maths in float64. It shares no code with the package.

One row at a time, one head at a time, one pair at a time; shapes are those of the formulas. Where the weights are
leaves in float64, what is computed of them has gradients.
"""

import cmath
import math
from collections.abc import Callable
from typing import NamedTuple

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


def turning_matrix(width: int, position: float, theta: float = 10000.0) -> Tensor:
    """Return R of one position, [K, K]: blocks of two along the diagonal (equation 15 of the paper)."""
    matrix = [[0.0] * width for _ in range(width)]
    for i in range(width // 2):
        angle = position * theta ** (-2 * i / width)
        matrix[2 * i][2 * i], matrix[2 * i][2 * i + 1] = math.cos(angle), -math.sin(angle)
        matrix[2 * i + 1][2 * i], matrix[2 * i + 1][2 * i + 1] = math.sin(angle), math.cos(angle)
    return torch.tensor(matrix, dtype=torch.float64)


def turn_rows(x: Tensor, positions: list[float], theta: float = 10000.0) -> Tensor:
    """Turn each row of [L, K] by its own position."""
    pairs = zip(x, positions, strict=True)
    return torch.stack([turning_matrix(len(row), position, theta) @ row.double() for row, position in pairs])


def turn_rows_back(x: Tensor, positions: list[float], theta: float = 10000.0) -> Tensor:
    """Undo `turn_rows`."""
    pairs = zip(x, positions, strict=True)
    return torch.stack([turning_matrix(len(row), position, theta).T @ row.double() for row, position in pairs])


def decay(width: int, distance: float) -> float:
    """Return the mean over j of |S_j|, S_j = sum_(l < j) e^(i distance theta_l): the decay of section 3.4.3."""
    pairs = width // 2
    sizes = []
    for j in range(1, pairs + 1):
        s_j = sum(cmath.exp(1j * distance * 10000.0 ** (-2 * i / width)) for i in range(j))
        sizes.append(abs(s_j))
    return sum(sizes) / pairs


def attend(query: Tensor, key: Tensor, value: Tensor, allowed: list[list[bool]]) -> Tensor:
    """Softmax attention of one head, [L, K]; a query that may see nothing gives zeros."""
    rows = []
    for m in range(len(query)):
        row = torch.zeros(value.shape[1], dtype=torch.float64)
        seen = [n for n in range(len(key)) if allowed[m][n]]
        scores = [query[m] @ key[n] / math.sqrt(query.shape[1]) for n in seen]
        largest = max((score.item() for score in scores), default=0.0)
        weights = [torch.exp(score - largest) for score in scores]
        for n, weight in zip(seen, weights, strict=True):
            row = row + weight / sum(weights) * value[n]
        rows.append(row)
    return torch.stack(rows)


def elu_feature(x: Tensor) -> Tensor:
    """Return elu(x) + 1."""
    return torch.stack([number + 1 if number > 0 else torch.exp(number) for number in x])


def relu_feature(x: Tensor) -> Tensor:
    """Return relu(x) with a thousandth added."""
    return torch.stack([number * (number > 0) + 0.001 for number in x])


def random_feature(x: Tensor, directions: Tensor) -> Tensor:
    """Return the positive random features of the softmax kernel (lemma 1 of the Performer), [F]."""
    x = x / len(x) ** 0.25
    return torch.stack([torch.exp(w @ x - x @ x / 2) for w in directions.double()]) / math.sqrt(len(directions))


def turn_blocks(x: Tensor, position: float, width: int, theta: float = 10000.0) -> Tensor:
    """Turn each `width` of the features by one and the same matrix."""
    matrix = turning_matrix(width, position, theta)
    return torch.cat([matrix @ block for block in x.split(width)])


def attend_linearly(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    allowed: list[list[bool]],
    feature,
    positions: list[float] | None,
    theta: float = 10000.0,
) -> Tensor:
    """Linear attention of one head, [L, K] (equation 19 of the paper); without positions nothing is turned.

    A query that may see nothing gives zeros.
    """
    width, rows = query.shape[1], []
    f, g = [feature(row) for row in query.double()], [feature(row) for row in key.double()]
    spots = [0.0] * len(f) if positions is None else positions
    turned_f = [turn_blocks(row, spot, width, theta) for row, spot in zip(f, spots, strict=True)]
    turned_g = [turn_blocks(row, spot, width, theta) for row, spot in zip(g, spots, strict=True)]
    for m in range(len(f)):
        seen = [n for n in range(len(g)) if allowed[m][n]]
        above = sum((turned_f[m] @ turned_g[n] * value[n] for n in seen), torch.zeros_like(value[0]).double())
        below = sum(f[m] @ g[n] for n in seen)
        rows.append(above / below if seen else above)
    return torch.stack(rows)


class Turning(NamedTuple):
    """How scores are made where turns depend on more than the position.

    `spectrum` gives the frequencies for a text of some length, `lengths` the length that each query goes by,
    `grown` what a turned query and a turned key are each multiplied by, `sharpened` what each query is.
    A position may be a pair: then the first half of the turning pairs goes by its x, the second by its y.
    """

    spectrum: Callable[[float], list[float]]
    lengths: list[float]
    grown: float = 1.0
    sharpened: list[float] | None = None


def angles_at(position, frequencies: list[float]) -> list[float]:
    if isinstance(position, tuple):
        return [number * frequency for number in position for frequency in frequencies]
    return [position * frequency for frequency in frequencies]


def turn_by(vector: Tensor, angles: list[float], grown: float = 1.0) -> Tensor:
    """Turn the first pairs, one by each angle; the channels beyond them stay."""
    turned = []
    for i, angle in enumerate(angles):
        x, y = vector[2 * i], vector[2 * i + 1]
        turned.append(grown * (x * math.cos(angle) - y * math.sin(angle)))
        turned.append(grown * (x * math.sin(angle) + y * math.cos(angle)))
    return torch.stack([*turned, *vector[2 * len(angles) :]])


def attend_turning(
    query: Tensor, key: Tensor, value: Tensor, allowed: list[list[bool]], positions: list, turning: Turning
) -> Tensor:
    """Softmax attention of one head, [L, K]; each query turns all keys anew, by its own length."""
    rows = []
    for m in range(len(query)):
        frequencies = turning.spectrum(turning.lengths[m])
        q = turn_by(query[m], angles_at(positions[m], frequencies), turning.grown)
        q = q * (turning.sharpened[m] if turning.sharpened else 1.0)
        turned = [turn_by(k, angles_at(at, frequencies), turning.grown) for k, at in zip(key, positions, strict=True)]
        rows.append(attend(q[None], torch.stack(turned), value, [allowed[m]])[0])
    return torch.stack(rows)


def sinusoid(position: float, width: int) -> list[float]:
    """Return the row of sines and cosines that is added to an embedding."""
    row = []
    for i in range(width // 2):
        angle = position / 10000.0 ** (2 * i / width)
        row += [math.sin(angle), math.cos(angle)]
    return row


def shift_matrix(width: int, steps: float) -> Tensor:
    """Return T_k, which moves a row of sines and cosines `steps` on, [D, D]."""
    matrix = torch.zeros(width, width, dtype=torch.float64)
    for i in range(width // 2):
        angle = steps / 10000.0 ** (2 * i / width)
        block = [[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]]
        matrix[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = torch.tensor(block)
    return matrix


def repeated(matrix: Tensor, times: int) -> Tensor:
    """Multiply an orthogonal matrix by itself, one by one; backwards by its transpose."""
    product = torch.eye(len(matrix), dtype=torch.float64)
    for _ in range(abs(times)):
        product = product @ matrix.double()
    return product if times >= 0 else product.T


def exponential(generator: Tensor, position: float) -> Tensor:
    """Return exp(n B) by the sum of its series, halved until it is small and squared again."""
    return torch.matrix_exp(position * generator.double())


def in_blocks(matrix: Tensor, x: Tensor) -> Tensor:
    """Multiply each part of a vector that is as wide as the matrix."""
    return torch.cat([matrix @ block for block in x.split(len(matrix))])


def attend_by_powers(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    allowed: list[list[bool]],
    powers: list[Tensor],
    feature=None,
    mixes: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Attention of one head whose query m and key m are turned by powers[m]; with a feature map, linearly.

    `mixes` are two matrices that the features of queries and of keys go through before they turn, above the line.
    """
    if not feature:
        turned = [torch.stack([power @ row for power, row in zip(powers, x, strict=True)]) for x in (query, key)]
        return attend(*turned, value, allowed)
    f, g = [feature(row) for row in query], [feature(row) for row in key]
    unit = torch.eye(query.shape[1], dtype=torch.float64)
    for_query, for_key = mixes or (unit, unit)
    rows = []
    for m in range(len(f)):
        seen = [n for n in range(len(g)) if allowed[m][n]]
        turned_f = in_blocks(powers[m] @ for_query, f[m])
        above = sum(turned_f @ in_blocks(powers[n] @ for_key, g[n]) * value[n] for n in seen)
        rows.append(above / sum(f[m] @ g[n] for n in seen))
    return torch.stack(rows)


def mixes_of(weights: dict, at: str, head: int) -> tuple[Tensor, Tensor] | None:
    names = [f"{at}.attention.self.feature_matrices.{part}" for part in ("query", "key")]
    return tuple(weights[name][head] for name in names) if names[0] in weights else None


def nearby(allowed: list[list[bool]], window: int) -> list[list[bool]]:
    """Leave what is fewer than `window` columns away."""
    return [[seen and abs(m - n) < window for n, seen in enumerate(row)] for m, row in enumerate(allowed)]


def feature_of(directions: Tensor | None, otherwise):
    """Return the feature map of a layer: that of its directions, if it has any."""
    return otherwise if directions is None else lambda x: random_feature(x, directions)


def attend_turned(query, key, value, allowed, positions, theta, rotary_value, feature) -> Tensor:
    """Turn one head's rows by their positions and attend, [L, K]; with a feature map, linearly."""
    value = turn_rows(value, positions, theta) if rotary_value else value
    if feature:
        seen = attend_linearly(query, key, value, allowed, feature, positions, theta)
    else:
        seen = attend(turn_rows(query, positions, theta), turn_rows(key, positions, theta), value, allowed)
    return turn_rows_back(seen, positions, theta) if rotary_value == "relative" else seen


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
    rotary_value: bool | str = False,
    added: list[list[float]] | None = None,
    turning: Turning | None = None,
    attention_kinds: list[str] | None = None,
    feature=elu_feature,
    powers: Callable[[int, int, float], Tensor] | None = None,
) -> Tensor:
    """Run one row through a RoFormer body, [L, D]. `weights` are a body's state dict (no prefix).

    `rotary_value` True turns the values; "relative" also turns what each head attended to back. `added` are vectors
    of positions, one for each token. `attention_kinds` names one for each layer; without it all are softmax. Linear
    layers with random features in the weights use those. `powers` give R_n of a layer, a head and a position.
    """
    weights = {name: value.double() for name, value in weights.items()}
    words = weights["embeddings.word_embeddings.weight"][ids]
    kinds = weights["embeddings.token_type_embeddings.weight"][segments or [0] * len(ids)]
    places = 0 if added is None else torch.as_tensor(added, dtype=torch.float64)
    x = normalise(words + kinds + places, weights, "embeddings.LayerNorm", eps)
    if "embeddings_project.weight" in weights:
        x = linear(x, weights, "embeddings_project")
    layers = 1 + max(int(name.split(".")[2]) for name in weights if name.startswith("encoder.layer."))
    for layer in range(layers):
        at = f"encoder.layer.{layer}"
        parts = {n: linear(x, weights, f"{at}.attention.self.{n}") for n in ("query", "key", "value")}
        attended = []
        is_linear = attention_kinds is not None and attention_kinds[layer] == "linear"
        map_of = feature_of(weights.get(f"{at}.attention.self.random_features.directions"), feature)
        for number, head in enumerate(zip(*(parts[n].chunk(heads, dim=1) for n in parts), strict=True)):
            if powers is not None:
                matrices, mixes = [powers(layer, number, n) for n in positions], mixes_of(weights, at, number)
                attended.append(attend_by_powers(*head, allowed, matrices, is_linear and map_of, mixes))
            elif turning is not None:
                attended.append(attend_turning(*head, allowed, positions, turning))
            else:
                attended.append(attend_turned(*head, allowed, positions, theta, rotary_value, is_linear and map_of))
        out = linear(torch.cat(attended, dim=1), weights, f"{at}.attention.output.dense")
        x = normalise(out + x, weights, f"{at}.attention.output.LayerNorm", eps)
        wide = act(linear(x, weights, f"{at}.intermediate.dense"))
        x = normalise(linear(wide, weights, f"{at}.output.dense") + x, weights, f"{at}.output.LayerNorm", eps)
    return x


def language_scores(weights: dict, hidden: Tensor, *, eps: float = 1e-12, act=gelu) -> Tensor:
    """Score the vocabulary from a body's output, [L, V]. `weights` are a whole head's state dict.

    With a transform as in v1; without one as in V2, where narrower embeddings are reached by a plain linear map.
    """
    weights = {name: value.double() for name, value in weights.items()}
    at = "cls.predictions"
    if f"{at}.transform.dense.weight" in weights:
        hidden = act(linear(hidden, weights, f"{at}.transform.dense"))
        hidden = normalise(hidden, weights, f"{at}.transform.LayerNorm", eps)
    elif f"{at}.transform.weight" in weights:
        hidden = linear(hidden, weights, f"{at}.transform")
    scores = hidden @ weights["roformer.embeddings.word_embeddings.weight"].T
    return scores + weights.get(f"{at}.bias", 0)


def surprise(scores: Tensor, label: int) -> Tensor:
    """Return -log softmax(scores)[label]."""
    largest = max(scores.tolist())
    return largest + torch.log(sum(torch.exp(score - largest) for score in scores)) - scores[label]


def next_token_loss(scores: Tensor, labels: list[int], counted: list[bool]) -> Tensor:
    """Return the mean surprise at each counted label, which the column before it predicts; the first is given."""
    terms = [surprise(scores[at - 1], labels[at]) for at in range(1, len(labels)) if counted[at]]
    return sum(terms) / len(terms)


def sentence_vector(weights: dict, hidden: Tensor, pooling: str | None = None) -> Tensor:
    """Return the row's vector of length one, [D]. No pooling named is the published sim: linear on the first token."""
    weights = {name: value.double() for name, value in weights.items()}
    if pooling is None:
        vector = linear(hidden[0], weights, "roformer.pooler.dense")
    else:
        vector = {"first": hidden[0], "last": hidden[-1], "mean": sum(hidden) / len(hidden)}[pooling]
    return vector / sum(number * number for number in vector).sqrt()


def cosine(one: Tensor, other: Tensor) -> Tensor:
    """Return the cosine of each row of [A, D] with each row of [B, D], [A, B]."""
    rows = []
    for a in one.double():
        lengths = [(a @ a).sqrt() * (b @ b).sqrt() for b in other.double()]
        rows.append(torch.stack([a @ b / length for b, length in zip(other.double(), lengths, strict=True)]))
    return torch.stack(rows)


def contrastive_loss(vectors: Tensor, labels: list[int], scale: float = 20.0, ignored: int = -100) -> Tensor:
    """Return the mean over anchors of the mean surprise at their positives, among all rows but the anchor."""
    costs = []
    for anchor, label in enumerate(labels):
        others = [row for row in range(len(labels)) if row != anchor]
        positives = [row for row in others if labels[row] == label]
        if label == ignored or not positives:
            continue
        scores = {row: scale * (vectors[anchor] @ vectors[row]) for row in others}
        largest = max(score.item() for score in scores.values())
        total = largest + torch.log(sum(torch.exp(score - largest) for score in scores.values()))
        costs.append(sum(total - scores[row] for row in positives) / len(positives))
    return sum(costs) / len(costs) if costs else vectors.sum() * 0


def replaced_scores(weights: dict, hidden: Tensor, act=gelu) -> Tensor:
    """Score each token as replaced, [L] (the discriminator of ELECTRA)."""
    weights = {name: value.double() for name, value in weights.items()}
    at = "discriminator_predictions"
    return linear(act(linear(hidden, weights, f"{at}.dense")), weights, f"{at}.dense_prediction")[:, 0]


def replaced_loss(scores: Tensor, labels: list[int], ignored: int = -100) -> Tensor:
    """Return the mean over counted tokens of -log of the probability given to what is so."""
    terms = []
    for score, label in zip(scores, labels, strict=True):
        if label != ignored:
            terms.append(torch.log(1 + torch.exp(-score if label else score)))
    return sum(terms) / len(terms)


def cut_normal_deviation(deviation: float, cut: float = 2.0) -> float:
    """Return the true deviation of a normal whose tails beyond `cut` deviations are drawn again, in closed form."""
    density = math.exp(-cut * cut / 2) / math.sqrt(2 * math.pi)
    inside = math.erf(cut / math.sqrt(2))
    return deviation * math.sqrt(1 - 2 * cut * density / inside)


def second_version_deviation(fan: int, layers: int) -> float:
    """Return the deviation, before the cut, from which V2 starts a matrix whose input is `fan` wide."""
    return 1.13684723 / math.sqrt(fan) / math.sqrt(layers)


def everywhere(length: int) -> list[list[bool]]:
    return [[True] * length for _ in range(length)]


def causally(length: int) -> list[list[bool]]:
    return [[n <= m for n in range(length)] for m in range(length)]


def prefixed(segments: list[int], seen: list[bool] | None = None, sequences: list[int] | None = None):
    """Return who sees whom under the rule of UniLM, [L, L].

    Count, at each column, the targets (segment 1) so far in its sequence; a column sees those that count no more.
    """
    length = len(segments)
    seen, sequences = seen or [True] * length, sequences or [0] * length
    count = []
    for at in range(length):
        before = [n for n in range(at + 1) if seen[n] and sequences[n] == sequences[at]]
        count.append(sum(segments[n] for n in before))
    return [
        [seen[m] and seen[n] and sequences[m] == sequences[n] and count[n] <= count[m] for n in range(length)]
        for m in range(length)
    ]
