"""What the papers prove about rotated and added positions, on random vectors in float64."""

import cmath
import math

import pytest
import torch
from reference import sinusoid, turning_matrix

from hf_roformer.position_embeddings import HFRoFormerSinusoids
from hf_roformer.rotary import RotationTable, rotate, rotation_frequencies

WIDTH = 16


def turned(x_LK, positions):
    """Turn rows by the package's own turn, in float64."""
    angles = torch.tensor(positions, dtype=torch.float64)[:, None] * rotation_frequencies(
        x_LK.shape[-1], theta=10000.0
    )
    return rotate(x_LK[None, None], RotationTable(angles.cos()[None], angles.sin()[None]))[0, 0]


def drawn(rows, width=WIDTH):
    return torch.randn(rows, width, dtype=torch.float64)


@pytest.mark.parametrize(("m", "n"), [(0, 0), (3, 11), (11, 3), (-4, 9), (100_000, 99_990), (2.5, 0.25)])
def test_one_turn_back_and_another_forth_are_the_turn_of_the_difference(m, n):
    first, second = turning_matrix(WIDTH, m), turning_matrix(WIDTH, n)
    torch.testing.assert_close(first.T @ second, turning_matrix(WIDTH, n - m), rtol=0, atol=1e-9)
    q, k = drawn(1), drawn(1)
    score = turned(q, [m]) @ turned(k, [n]).T
    torch.testing.assert_close(score, q @ turning_matrix(WIDTH, n - m) @ k.T, rtol=0, atol=1e-9)


@pytest.mark.parametrize("distance", [0, 1, 17, -300, 4096])
def test_a_score_is_the_real_part_of_a_fourier_sum_over_the_pairs(distance):
    q, k = drawn(1)[0], drawn(1)[0]
    total = 0
    for i in range(WIDTH // 2):
        product = complex(q[2 * i], q[2 * i + 1]) * complex(k[2 * i], k[2 * i + 1]).conjugate()
        total += product * cmath.exp(1j * distance * 10000.0 ** (-2 * i / WIDTH))
    score = turned(q[None], [distance + 5])[0] @ turned(k[None], [5])[0]
    assert score.item() == pytest.approx(total.real, abs=1e-9)


@pytest.mark.parametrize("width", [2, 16, 128])
def test_a_score_stays_below_the_bound_of_its_distance(width):
    pairs = width // 2
    thetas = [10000.0 ** (-2 * i / width) for i in range(pairs)]
    for distance in (0, 1, 2, 10, 100, 5000):
        partial = [abs(sum(cmath.exp(1j * distance * t) for t in thetas[:j])) for j in range(1, pairs + 1)]
        for _ in range(20):
            q, k = drawn(1, width), drawn(1, width)
            h = [
                complex(*q[0, 2 * i : 2 * i + 2]) * complex(*k[0, 2 * i : 2 * i + 2]).conjugate() for i in range(pairs)
            ]
            steps = [abs(after - before) for before, after in zip(h, [*h[1:], 0], strict=True)]
            score = (turned(q, [distance]) @ turned(k, [0]).T).item()
            assert abs(score) <= max(steps) * sum(partial) * (1 + 1e-9) + 1e-9


def test_of_the_four_terms_of_an_added_score_one_depends_on_distance_alone():
    words, rows = drawn(2), HFRoFormerSinusoids(WIDTH)
    terms = []
    for m, n in ((3, 10), (503, 510)):
        place = rows(torch.tensor([[m, n]]), None)[0].double()
        torch.testing.assert_close(place[0], torch.tensor(sinusoid(m, WIDTH)).double(), rtol=0, atol=1e-6)
        q, k = words[0], words[1]
        four = torch.stack((q @ k, q @ place[1], place[0] @ k, place[0] @ place[1]))
        torch.testing.assert_close(four.sum(), (q + place[0]) @ (k + place[1]), rtol=0, atol=1e-9)
        terms.append(four)
    gap = (terms[0] - terms[1]).abs()
    # the first holds no position at all
    assert gap[0] == 0
    assert gap[3] < 1e-5
    assert min(gap[1], gap[2]) > 1e-2


def test_a_cosine_sum_over_the_pairs_is_what_two_rows_of_sines_share():
    rows = HFRoFormerSinusoids(WIDTH)(torch.arange(40)[None], None)[0].double()
    for distance in (0, 1, 5, 39):
        shared = sum(math.cos(distance * 10000.0 ** (-2 * i / WIDTH)) for i in range(WIDTH // 2))
        assert (rows[0] @ rows[distance]).item() == pytest.approx(shared, abs=1e-5)
