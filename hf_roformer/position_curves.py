"""What positions do to scores, in numbers.

Shapes: L tokens, N distances, P pairs, K = 2P width of a head.
"""

import torch
from torch import Tensor


def as_complex(x: Tensor) -> Tensor:
    """Read each pair as a complex number, [..., P]."""
    return torch.view_as_complex(x.double().unflatten(-1, (-1, 2)).contiguous())


def decay_curve(distances_N: Tensor, frequencies_P: Tensor) -> Tensor:
    """Return the published curve of long-distance decay, float64 [N] (RoFormer, arXiv 2104.09864, section 3.4.3).

    It is the mean over j of the length of S_j, the sum of the turns of the first j pairs.
    """
    angles_NP = distances_N.double()[:, None] * frequencies_P.double()
    return torch.polar(torch.ones_like(angles_NP), angles_NP).cumsum(dim=-1).abs().mean(dim=-1)


def decay_bound(query_K: Tensor, key_K: Tensor, distances_N: Tensor, frequencies_P: Tensor) -> Tensor:
    """Return what no score of these two vectors exceeds at each distance, float64 [..., N].

    By Abel's summation: the largest step between neighbouring products of pairs times the sum of all |S_j|.
    """
    products = as_complex(query_K) * as_complex(key_K).conj()
    steps = torch.nn.functional.pad(torch.view_as_real(products), (0, 0, 0, 1)).diff(dim=-2).norm(dim=-1)
    return steps.amax(dim=-1, keepdim=True) * len(frequencies_P) * decay_curve(distances_N, frequencies_P)


def over_distances(scores_LL: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return each distance of key from query, and the lowest and the highest score there, all [2L - 1]."""
    length = len(scores_LL)
    distances = torch.arange(1 - length, length)
    found = [scores_LL.diagonal(int(distance)) for distance in distances]
    return distances, torch.stack([row.min() for row in found]), torch.stack([row.max() for row in found])


__all__ = ["as_complex", "decay_bound", "decay_curve", "over_distances"]
