"""Makes matrices nearly orthogonal by a Newton-Schulz iteration (https://kellerjordan.github.io/posts/muon).

With a matrix X = U S V' of norm at most 1, one iteration returns a X + b (X X') X + c (X X')^2 X, which has the same U
and V and maps each singular value s to a s + b s^3 + c s^5. Keller Jordan's coefficients raise small singular values as
fast as possible. After five iterations all those above 0.0015 of the norm lie between 0.68 and 1.21; that they are not
all 1 did not matter in his runs.

It computes in float32, with TF32 products on a GPU (trainer/engine.py sets that).

Shape suffixes: B matrices of R rows and C columns each; S the smaller of R and C, L the larger.
"""

from __future__ import annotations

import torch
from torch import Tensor

A, B, C = 3.4445, -4.7750, 2.0315
"""Keller Jordan's coefficients of X, of its third and of its fifth power. The next two constants are his as well."""

ITERATIONS = 5

EPSILON = 1e-7
"""Added to a norm before dividing by it, so that a matrix of zeros stays zero."""


def orthogonalize(matrices_BRC: Tensor) -> Tensor:
    """Return nearly orthogonal matrices with the singular vectors of the given ones, (B, R, C) in their own dtype."""
    # Transpose a tall matrix, because X X' is smaller if X is wider than tall.
    is_high = matrices_BRC.size(-2) > matrices_BRC.size(-1)
    x_BSL = matrices_BRC.mT if is_high else matrices_BRC

    # Divide by the Frobenius norm, which is at least the largest singular value.
    x_BSL = x_BSL / (torch.linalg.matrix_norm(x_BSL, keepdim=True) + EPSILON)
    for _ in range(ITERATIONS):
        square_BSS = x_BSL @ x_BSL.mT
        factor_BSS = torch.baddbmm(square_BSS, square_BSS, square_BSS, beta=B, alpha=C)
        x_BSL = torch.baddbmm(x_BSL, factor_BSS, x_BSL, beta=A)

    return x_BSL.mT if is_high else x_BSL


def work_of(shape: tuple[int, ...]) -> int:
    """Return the cost of orthogonalizing a matrix, in multiply-adds."""
    small, large = sorted(shape)
    return ITERATIONS * small * small * (2 * large + small)
