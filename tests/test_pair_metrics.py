"""What cosines score is what can be worked out by hand."""

import math

import numpy as np
import pytest

from hf_roformer.pair_metrics import best_threshold, binary_scores, graded_scores, retrieval_scores


def test_average_precision_is_the_mean_precision_at_each_positive():
    # ranks of the positives: 1, 3, 4, with precisions 1/1, 2/3, 3/4
    scores = binary_scores(np.array([0.9, 0.8, 0.7, 0.6, 0.5]), np.array([1, 0, 1, 1, 0]), 0.75)
    assert scores["average_precision"] == pytest.approx((1 + 2 / 3 + 3 / 4) / 3)
    # above 0.75 one of two is right, below it one of three
    assert scores["accuracy"] == pytest.approx(2 / 5)
    assert scores["cosine_threshold"] == 0.75


@pytest.mark.parametrize(
    ("scores", "positive", "value", "accuracy"),
    [
        ([0.9, 0.1, 0.5, 0.3], [1, 0, 1, 0], 0.4, 1.0),
        ([0.9, 0.8, 0.7, 0.6, 0.5], [1, 0, 1, 1, 0], 0.55, 4 / 5),
        # the higher of two that are as good
        ([0.9, 0.8, 0.7], [1, 0, 1], 0.85, 2 / 3),
        # equal scores fall on one side
        ([0.5, 0.5, 0.5, 0.1], [1, 1, 0, 0], 0.3, 3 / 4),
        ([0.2, 0.1], [0, 0], 1.2, 1.0),
        ([0.2, 0.1], [1, 1], -0.9, 1.0),
    ],
)
def test_the_best_threshold_parts_most_pairs_right(scores, positive, value, accuracy):
    found = best_threshold(np.array(scores), np.array(positive))
    assert found.value == pytest.approx(value)
    assert found.accuracy == pytest.approx(accuracy)


def test_no_other_threshold_does_better_than_the_one_found():
    generator = np.random.default_rng(0)
    for _ in range(50):
        scores, positive = generator.integers(0, 6, 8) / 5, generator.integers(0, 2, 8)
        found = best_threshold(scores, positive)
        tried = [((scores > edge) == positive).mean() for edge in (-1, *np.linspace(-0.1, 1.1, 13))]
        assert found.accuracy == pytest.approx(max(tried))
        assert ((scores > found.value) == positive).mean() == pytest.approx(found.accuracy)


def test_without_a_positive_there_is_no_average_precision():
    assert math.isnan(binary_scores(np.array([0.5, 0.4]), np.array([0, 0]))["average_precision"])


def test_grades_are_correlated():
    # ranks 1, 3, 2, 4 against 1, 2, 3, 4: 1 - 6 * 2 / (4 * 15); deviations as in the regression's own test
    scores = graded_scores(np.array([1.0, 3.0, 2.0, 10.0]), np.array([1.0, 2.0, 3.0, 4.0]))
    assert scores == pytest.approx({"spearman": 0.8, "pearson": 13 / math.sqrt(5 * 50)})


def test_a_partner_is_looked_for_among_all_second_texts(monkeypatch):
    first = np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
    second = np.array([[0.8, 0.6], [1.0, 0.0], [0.0, 1.0]])
    # products 0.8 1 0 / 0.6 0 1 / 0.96 0.6 0.8: the partners on the diagonal are second, third and second
    expected = {"mean_reciprocal_rank": (1 / 2 + 1 / 3 + 1 / 2) / 3, "nearest": 0.0}
    assert retrieval_scores(first, second) == pytest.approx(expected)
    monkeypatch.setattr("hf_roformer.pair_metrics.ROWS_AT_ONCE", 2)
    assert retrieval_scores(first, second) == pytest.approx(expected)
    assert retrieval_scores(first, first)["nearest"] == 1.0
