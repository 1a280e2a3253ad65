"""What the papers prove about rotated and added positions, for random and edge inputs: values and gradients, float64.

The sinusoid table and the worked row stand with their modules, in test_position_kinds.py and test_rotary.py.
"""

import math

import numpy as np
import pytest
import torch
from conftest import TINY, loud
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from reference import shift_matrix, sinusoid, turning_matrix

from hf_roformer import HFRoFormerConfig, HFRoFormerModel, rotary
from hf_roformer.linear_attention import CHUNK, LinearMask, divide, elu_features, turn_features, weigh
from hf_roformer.position_curves import decay_bound, decay_curve
from hf_roformer.position_embeddings import HFRoFormerSinusoids
from hf_roformer.rotary import RotationTable, rotate, rotation_frequencies

# the same examples in every run, so that a failure is one for everybody
law = settings(max_examples=25, deadline=None, derandomize=True, database=None)
few = settings(law, max_examples=8)
numbers = st.one_of(st.just(0.0), st.floats(-8, 8, allow_subnormal=False))
edges = st.sampled_from((0, 1, -1, 0.5, 1535, 131_072))
places = st.one_of(edges, st.integers(-5000, 5000), st.floats(-100, 100, allow_subnormal=False))
widths = st.sampled_from((2, 4, 16))


@st.composite
def vectors(draw, count, width=None):
    width = draw(widths) if width is None else width
    values = draw(st.lists(numbers, min_size=count * width, max_size=count * width))
    return torch.tensor(values, dtype=torch.float64).view(count, width)


@st.composite
def drawn(draw, *shape):
    """Draw by a seed where hypothesis would take long to fill a large tensor."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 999)))
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def table(positions, width):
    angles = torch.tensor(positions, dtype=torch.float64)[:, None] * rotation_frequencies(width, theta=10000.0)
    return RotationTable(angles.cos()[None], angles.sin()[None])


def turned(x_LK, positions, turn=rotate):
    """Turn rows by the package's own turn, in float64."""
    return turn(x_LK[None, None], table(positions, x_LK.shape[-1]))[0, 0]


def score(q, k, m, n):
    return turned(q[None], [m])[0] @ turned(k[None], [n])[0]


def same(got, wanted, atol=1e-7):
    torch.testing.assert_close(got, wanted, rtol=0, atol=atol)


def agree(one, other, *inputs, atol=1e-6):
    """Compare two ways to one result: its values, and the gradients of a sum that weighs every number otherwise."""
    found = []
    for way in (one, other):
        leaves = [x.clone().requires_grad_() for x in inputs]
        out = way(*leaves)
        weights = torch.arange(1.0, out.numel() + 1, dtype=torch.float64).view_as(out).cos()
        found.append([out.detach(), *torch.autograd.grad((out * weights).sum(), leaves)])
    same(*found, atol=atol)


# the turn


@law
@given(vectors(2), places, places, places)
def test_a_score_depends_on_the_distance_alone(pair, m, n, shift):
    agree(lambda q, k: score(q, k, m, n), lambda q, k: score(q, k, m + shift, n + shift), *pair)
    matrix = turning_matrix(pair.shape[1], n - m)
    agree(lambda q, k: score(q, k, m, n), lambda q, k: q @ matrix @ k, *pair)


@law
@given(widths, places, places)
def test_the_turns_are_orthogonal_and_one_back_and_another_forth_are_the_turn_of_the_difference(width, m, n):
    def matrix(position):
        return turned(torch.eye(width, dtype=torch.float64), [position] * width).T

    same(matrix(m).T @ matrix(m), torch.eye(width, dtype=torch.float64))
    same(matrix(m).T @ matrix(n), matrix(n - m))
    # no reflection
    assert torch.linalg.det(matrix(m)).item() == pytest.approx(1, abs=1e-7)


@law
@given(vectors(1), places)
def test_a_turn_keeps_every_norm(x, position):
    agree(lambda x: turned(x, [position]).square().sum(), lambda x: x.square().sum(), x)


@law
@given(vectors(3))
def test_position_zero_turns_nothing(x):
    agree(lambda x: turned(x, [0, 0, 0]), lambda x: x, x, atol=0)


def elementwise(x, position):
    """Equation 34 of the paper: twice each cosine times x, twice each sine times x with its pairs swapped."""
    width = len(x)
    angles = [position * 10000.0 ** (-2 * (i // 2) / width) for i in range(width)]
    swapped = torch.stack([-x[i + 1] if i % 2 == 0 else x[i - 1] for i in range(width)])
    cos, sin = (torch.tensor([part(a) for a in angles], dtype=torch.float64) for part in (math.cos, math.sin))
    return x * cos + swapped * sin


def as_complex(x):
    return torch.complex(x[0::2], x[1::2])


def phases(width, position):
    angles = torch.tensor([position * 10000.0 ** (-2 * i / width) for i in range(width // 2)], dtype=torch.float64)
    return torch.polar(torch.ones_like(angles), angles)


FORMS = {
    "elementwise": elementwise,
    "matrix": lambda x, position: turning_matrix(len(x), position) @ x,
    "complex": lambda x, position: torch.view_as_real(as_complex(x) * phases(len(x), position)).flatten(),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("turn", [rotary._turn_complex, rotary._turn_pairs], ids=["on a CPU", "in a graph"])
@law
@given(x=vectors(1), position=places)
def test_the_turn_is_the_published_one_in_each_of_its_forms(turn, form, x, position):
    agree(lambda x: turned(x[None], [position], turn)[0], lambda x: FORMS[form](x, position), x[0])


@law
@given(vectors(2), places, places)
def test_a_score_is_the_real_part_of_a_fourier_sum_over_the_pairs(pair, m, n):
    def fourier(q, k):
        return (as_complex(q) * as_complex(k).conj() * phases(len(q), m - n)).sum().real

    agree(lambda q, k: score(q, k, m, n), fourier, *pair)


@law
@given(st.lists(numbers, min_size=1, max_size=12), st.integers(-20, 20))
def test_turning_a_spectrum_back_moves_its_signal_on(signal, steps):
    """The shift theorem: with the frequencies of the Fourier transform, the turn is a circular shift."""
    length = len(signal)
    spectrum = torch.view_as_real(torch.from_numpy(np.fft.fft(signal))).flatten()
    angles = -steps * 2 * math.pi * torch.arange(length, dtype=torch.float64) / length
    moved = rotate(spectrum[None, None, None], RotationTable(angles.cos()[None, None], angles.sin()[None, None]))
    pairs = moved[0, 0, 0].view(length, 2).numpy()
    assert np.fft.ifft(pairs[:, 0] + 1j * pairs[:, 1]) == pytest.approx(np.roll(signal, steps), abs=1e-9)


# the decay


@law
@given(vectors(2), places)
def test_a_score_stays_below_the_bound_of_its_distance(pair, distance):
    q, k = pair
    thetas = [10000.0 ** (-2 * i / len(q)) for i in range(len(q) // 2)]
    products = as_complex(q) * as_complex(k).conj()
    steps = [abs(after - before) for before, after in zip(products, [*products[1:], 0], strict=True)]
    partial = [abs(sum(np.exp(1j * distance * theta) for theta in thetas[: j + 1])) for j in range(len(thetas))]
    bound = max(steps) * sum(partial)
    assert abs(score(q, k, distance, 0)) <= bound * (1 + 1e-9) + 1e-9
    at = torch.tensor([distance], dtype=torch.float64)
    found = decay_bound(q, k, at, rotation_frequencies(len(q), theta=10000.0))
    same(found, torch.tensor([bound], dtype=torch.float64), atol=1e-5)


@pytest.mark.parametrize("width", [2, 16, 128])
def test_the_curve_of_the_decay_is_the_published_one(width):
    thetas = [10000.0 ** (-2 * i / width) for i in range(width // 2)]
    distances = [0, 1, 2, 10, 250, 5000, -7]
    curve = decay_curve(torch.tensor(distances), rotation_frequencies(width, theta=10000.0))
    for found, distance in zip(curve.tolist(), distances, strict=True):
        sums = [abs(sum(np.exp(1j * distance * t) for t in thetas[: j + 1])) for j in range(len(thetas))]
        assert found == pytest.approx(2 / width * sum(sums), rel=1e-9)
    # every partial sum counts its terms
    assert curve[0].item() == pytest.approx((width // 2 + 1) / 2)


def test_the_curve_decays_over_the_published_range_and_not_where_all_pairs_turn_alike():
    distances = torch.arange(250)
    curve = decay_curve(distances, rotation_frequencies(128, theta=10000.0))
    parts = curve.view(5, 50).mean(dim=1).tolist()
    assert parts == sorted(parts, reverse=True)
    assert parts[-1] < 0.5 * parts[0]
    alike = decay_curve(distances, torch.ones(64, dtype=torch.float64))
    same(alike, torch.full_like(alike, 32.5))


# added positions


def sines(positions, width):
    return HFRoFormerSinusoids(width)(torch.tensor([positions], dtype=torch.float64), None)[0].double()


def four_terms(q, k, m, n):
    """Word by word, word by place, place by word, place by place."""
    at_m, at_n = sines([m, n], len(q))
    return torch.stack((q @ k, q @ at_n, at_m @ k, at_m @ at_n))


@law
@given(vectors(2), places, places, places)
def test_of_the_four_terms_of_an_added_score_one_depends_on_distance_alone(pair, m, n, shift):
    width = pair.shape[1]
    at_m, at_n = (torch.tensor(sinusoid(at, width), dtype=torch.float64) for at in (m, n))
    agree(lambda q, k: four_terms(q, k, m, n).sum(), lambda q, k: (q + at_m) @ (k + at_n), *pair, atol=1e-4)
    here, moved = four_terms(*pair, m, n), four_terms(*pair, m + shift, n + shift)
    same(here[3], moved[3], atol=1e-5)
    # the others depend on the words, or on the words and one of the two places
    assert here[0] == moved[0]
    assert here[1] == four_terms(*pair, m + shift, n)[1]
    assert here[2] == four_terms(*pair, m, n + shift)[2]
    # and are not there without words
    assert not four_terms(*torch.zeros_like(pair), m, n)[:3].any()


@law
@given(drawn(2, 16), places, st.integers(1, 600))
def test_the_cross_terms_change_where_both_tokens_move(pair, m, shift):
    here, moved = four_terms(*pair, m, m + 7), four_terms(*pair, m + shift, m + 7 + shift)
    assert (here[1:3] - moved[1:3]).abs().min() > 1e-4


@law
@given(widths, places, places)
def test_two_rows_of_sines_share_the_cosines_of_their_distance(width, m, n):
    shared = sum(math.cos((m - n) * 10000.0 ** (-2 * i / width)) for i in range(width // 2))
    rows = sines([m, n], width)
    assert (rows[0] @ rows[1]).item() == pytest.approx(shared, abs=1e-5)


@law
@given(widths, places, places)
def test_one_matrix_moves_every_row_of_sines(width, position, steps):
    here, there = sines([position, position + steps], width)
    same(shift_matrix(width, steps) @ here, there, atol=1e-6)


# whole networks


@pytest.mark.parametrize("kind", ["softmax", "linear"])
@few
@given(x=drawn(1, 7, TINY["embedding_size"]), order=st.permutations(range(7)))
def test_without_positions_the_encoder_commutes_with_permutation(kind, x, order):
    torch.manual_seed(0)
    config = {**TINY, "num_hidden_layers": 1, "position_kind": "none", "attention_kind": kind}
    model = loud(HFRoFormerModel(HFRoFormerConfig(**config))).double()

    def after(x):
        return model(inputs_embeds=x[:, order]).last_hidden_state

    agree(after, lambda x: model(inputs_embeds=x).last_hidden_state[:, order], x, atol=1e-9)


@few
@given(x=drawn(1, 7, TINY["embedding_size"]), order=st.permutations(range(7)))
def test_with_rotation_the_encoder_does_not(x, order):
    assume(order != list(range(7)))
    torch.manual_seed(0)
    model = loud(HFRoFormerModel(HFRoFormerConfig(**TINY))).double()
    with torch.no_grad():
        shuffled = model(inputs_embeds=x[:, order]).last_hidden_state
        straight = model(inputs_embeds=x).last_hidden_state[:, order]
    assert (shuffled - straight).abs().max() > 1e-6


lengths = st.one_of(st.sampled_from((1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK)), st.integers(1, 150))


@few
@given(st.data(), lengths)
def test_causal_linear_attention_is_the_masked_sum_over_its_divisor(data, length):
    """Equation 19, turned above the line and unturned below it."""
    query, key, value = data.draw(drawn(3, 1, 2, length, 4))
    rotation, seen = table(list(range(length)), 4), torch.ones(length, length, dtype=torch.float64).tril()

    def in_chunks(query, key, value):
        plain = elu_features(query), elu_features(key)
        above = weigh(*(turn_features(x, rotation, 4) for x in plain), value, LinearMask(None), causal=True)
        below = weigh(*plain, torch.ones_like(value[..., :1]), LinearMask(None), causal=True)
        return divide(above, below)

    def masked(query, key, value):
        f, g = (torch.where(x > 0, x + 1, x.exp()) for x in (query, key))
        turns = [turning_matrix(4, place) for place in range(length)]
        turned_f, turned_g = (torch.stack([x[:, :, m] @ turns[m].T for m in range(length)], dim=2) for x in (f, g))
        weights = (turned_f @ turned_g.mT) * seen / ((f @ g.mT) * seen).sum(dim=-1, keepdim=True)
        return weights @ value

    agree(in_chunks, masked, query, key, value, atol=1e-9)
