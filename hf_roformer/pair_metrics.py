"""How well the cosine of two vectors says what was known of a pair: its score, its yes or no, or that it is one.

Shapes: N pairs, D width.
"""

from typing import NamedTuple

import numpy as np
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import average_precision_score

from .metrics import correlation

ROWS_AT_ONCE = 1024


class Threshold(NamedTuple):
    """Where to part scores into no and yes, and the share that is parted right."""

    value: float
    accuracy: float


def graded_scores(cosines_N: np.ndarray, scores_N: np.ndarray) -> dict[str, float]:
    """Correlate cosines with known scores."""
    return {
        "spearman": correlation(spearmanr, cosines_N, scores_N),
        "pearson": correlation(pearsonr, cosines_N, scores_N),
    }


def best_threshold(scores_N: np.ndarray, positive_N: np.ndarray) -> Threshold:
    """Find the threshold that parts most scores right; of several the highest."""
    order = np.argsort(-scores_N, kind="stable")
    scores, positive = scores_N[order], positive_N[order].astype(bool)
    # by how many of the highest scores are taken for a yes, from none to all
    right = np.concatenate(([0], np.cumsum(positive))) + np.concatenate((np.cumsum(~positive[::-1])[::-1], [0]))
    edges = np.concatenate(([scores[0] + 1], (scores[1:] + scores[:-1]) / 2, [scores[-1] - 1]))
    # equal scores cannot be parted
    right[1:-1][scores[1:] == scores[:-1]] = -1
    best = int(right.argmax())
    return Threshold(float(edges[best]), float(right[best] / len(scores)))


def binary_scores(cosines_N: np.ndarray, labels_N: np.ndarray, threshold: float | None = None) -> dict[str, float]:
    """Rank pairs of yes and no, and part them: by the threshold given, or else by the best one for these pairs."""
    positive_N = labels_N == 1
    if threshold is None:
        threshold = best_threshold(cosines_N, positive_N).value
    precision = average_precision_score(positive_N, cosines_N) if positive_N.any() else np.nan
    return {
        "average_precision": float(precision),
        "accuracy": float(((cosines_N > threshold) == positive_N).mean()),
        "cosine_threshold": threshold,
    }


def retrieval_scores(first_ND: np.ndarray, second_ND: np.ndarray) -> dict[str, float]:
    """Look for each first text's own partner among all second texts; a partner that ties with others comes first."""
    ranks = []
    for start in range(0, len(first_ND), ROWS_AT_ONCE):
        stop = start + ROWS_AT_ONCE
        scores_RN = first_ND[start:stop] @ second_ND.T
        own_R = (first_ND[start:stop] * second_ND[start:stop]).sum(axis=1)
        # products of one row differ by rounding between the two ways of computing them
        ranks.append(1 + (scores_RN > own_R[:, None] + 1e-6).sum(axis=1))
    ranks_N = np.concatenate(ranks)
    return {"mean_reciprocal_rank": float((1 / ranks_N).mean()), "nearest": float((ranks_N == 1).mean())}
