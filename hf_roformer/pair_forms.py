# Copyright 2026 The hf_roformer authors. Licensed under the Apache License, Version 2.0.
"""The basis in which an orthogonal matrix, or the generator of a rotation, falls apart into turns of pairs.

This is the real Schur form. Both kinds of matrix are normal, so Hermitian eigenvectors give it, and those of one
eigenvalue may be mixed without harm: the matrix acts on them as one number. All is float64 on the CPU.

Shapes: K width (even), N pairs that turn, M channels that stand still or change their sign, P = K / 2 pairs.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

# a turn by less, in radians a position, is none: rounding makes as much
SMALLEST_TURN = 1e-12


class PairForm(NamedTuple):
    """Along the columns of `basis_KK` pair i turns by `angles_P[i]`; if `reflected`, the last changes its sign."""

    basis_KK: Tensor
    angles_P: Tensor
    reflected: bool = False


def exactly(matrix: Any) -> Tensor:
    """Return a matrix, or nested lists of numbers, in float64 on the CPU."""
    return torch.as_tensor(matrix, dtype=torch.float64, device="cpu").detach()


def deviation_from_orthogonal(matrix_KK: Tensor) -> float:
    """Return the largest entry of |O^T O - I|."""
    unit_KK = torch.eye(matrix_KK.shape[-1], dtype=torch.float64, device="cpu")
    return float((matrix_KK.mT @ matrix_KK - unit_KK).abs().max())


def _nearest_orthogonal(matrix_KK: Tensor) -> Tensor:
    left_KK, _, right_KK = torch.linalg.svd(matrix_KK)
    return left_KK @ right_KK


def blocks_of(angles_P: Tensor) -> Tensor:
    """Return the generator of turns by these angles, [K, K]: blocks [[0, -a], [a, 0]] along the diagonal."""
    width = 2 * len(angles_P)
    matrix_KK = angles_P.new_zeros(width, width)
    matrix_KK[1::2, 0::2] = torch.diag(angles_P)
    return matrix_KK - matrix_KK.mT


def _pairs_of(vectors_KN: Tensor) -> Tensor:
    """Return the two real directions of each complex eigenvector side by side, [K, 2N]."""
    return math.sqrt(2) * torch.stack((vectors_KN.imag, vectors_KN.real), dim=-1).flatten(1)


def _split(skew_KK: Tensor, smallest: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return what a skew-symmetric matrix turns, its speeds [N] and vectors [K, N], and a basis of the rest [K, M]."""
    values_K, vectors_KK = torch.linalg.eigh(skew_KK * -1j)
    turning_K = values_K > smallest
    vectors_KN = vectors_KK[:, turning_K].flip(1)
    whole_KK = torch.linalg.qr(_pairs_of(vectors_KN), mode="complete")[0]
    return values_K[turning_K].flip(0), vectors_KN, whole_KK[:, 2 * vectors_KN.shape[1] :]


def form_of_generator(skew_KK: Tensor) -> PairForm:
    """Split a skew-symmetric matrix; the fastest pair comes first."""
    speeds_N, vectors_KN, still_KM = _split(skew_KK, SMALLEST_TURN * float(skew_KK.abs().max()))
    angles_P = torch.cat((speeds_N, speeds_N.new_zeros(still_KM.shape[1] // 2)))
    # what turns slowly was parted from what stands still, and from its own mirror image, up to rounding alone
    return PairForm(_nearest_orthogonal(torch.cat((_pairs_of(vectors_KN), still_KM), dim=1)), angles_P)


def _turns_of(unitary_NN: Tensor) -> tuple[Tensor, Tensor]:
    """Return the angles [N], between 0 and pi, of a unitary matrix that has no others, and its eigenvectors [N, N]."""
    # a quarter turn back, the Cayley transform keeps all angles apart and reaches no pole
    unit_NN = torch.eye(len(unitary_NN), dtype=unitary_NN.dtype, device="cpu")
    shifted_NN = unitary_NN * -1j
    tangents_N, vectors_NN = torch.linalg.eigh(torch.linalg.solve(shifted_NN + unit_NN, shifted_NN - unit_NN) * -1j)
    return math.pi / 2 + 2 * tangents_N.atan(), vectors_NN


def form_of_orthogonal(matrix_KK: Tensor) -> PairForm:
    """Split the orthogonal matrix nearest to this one; two eigenvalues -1 are a pair that turns by pi.

    A lone eigenvalue -1 is the last channel, and the channel beside it stands still.
    """
    matrix_KK = _nearest_orthogonal(matrix_KK)
    _, vectors_KN, still_KM = _split((matrix_KK - matrix_KK.mT) / 2, SMALLEST_TURN)
    angles_N, mixed_NN = _turns_of(vectors_KN.mH @ matrix_KK.to(vectors_KN.dtype) @ vectors_KN)
    signs_M, mixed_MM = torch.linalg.eigh(still_KM.mT @ matrix_KK @ still_KM)
    still_KM, negative = still_KM @ mixed_MM, int((signs_M < 0).sum())
    # the negative ones come first, and of an odd number one goes to the end
    still_KM = still_KM.roll(-1, dims=1) if negative % 2 else still_KM
    halves = torch.full((negative // 2,), math.pi, dtype=torch.float64, device="cpu")
    rest = halves.new_zeros(still_KM.shape[1] // 2 - negative // 2)
    basis_KK = _nearest_orthogonal(torch.cat((_pairs_of(vectors_KN @ mixed_NN), still_KM), dim=1))
    return PairForm(basis_KK, torch.cat((angles_N, halves, rest)), bool(negative % 2))


def generator_of(matrix_KK: Tensor) -> Tensor:
    """Return a skew-symmetric B with exp(B) the given rotation, [K, K].

    Raises:
        ValueError: for a matrix of determinant -1, which has none.
    """
    form = form_of_orthogonal(matrix_KK)
    if form.reflected:
        raise ValueError("a matrix of determinant -1 is no exp(B): negate one of its columns")
    return form.basis_KK @ blocks_of(form.angles_P) @ form.basis_KK.mT


__all__ = [
    "PairForm",
    "blocks_of",
    "deviation_from_orthogonal",
    "exactly",
    "form_of_generator",
    "form_of_orthogonal",
    "generator_of",
]
