"""Makes matrices nearly orthogonal by a Newton-Schulz iteration (https://kellerjordan.github.io/posts/muon).

With a matrix X = U S V' of norm at most 1, one iteration returns a X + b (X X') X + c (X X')^2 X, which has the same U
and V and maps each singular value s to a s + b s^3 + c s^5. Keller Jordan's coefficients raise small singular values as
fast as possible. After five iterations all those above 0.0015 of the norm lie between 0.68 and 1.21; that they are not
all 1 did not matter in his runs.

It computes in float32: products of TF32 on a GPU (trainer/engine.py sets that).

Shape suffixes: B matrices of R rows and C columns each; S the smaller of R and C, L the larger.
"""

from __future__ import annotations

import torch
from torch import Tensor

A, B, C = 3.4445, -4.7750, 2.0315
"""Coefficients of X, of its third and of its fifth power. Keller Jordan's, as are the next two."""

ITERATIONS = 5

EPSILON = 1e-7
"""Added to a norm, so that a matrix of zeros stays one."""


def orthogonalize(matrices_BRC: Tensor) -> Tensor:
    """Return nearly orthogonal matrices with the singular vectors of the given ones, (B, R, C) in their own dtype."""
    # X X' is smaller for a matrix that is wider than high.
    is_high = matrices_BRC.size(-2) > matrices_BRC.size(-1)
    x_BSL = matrices_BRC.mT if is_high else matrices_BRC

    # The norm of all elements is at least the largest singular value.
    x_BSL = x_BSL / (torch.linalg.matrix_norm(x_BSL, keepdim=True) + EPSILON)
    for _ in range(ITERATIONS):
        square_BSS = x_BSL @ x_BSL.mT
        factor_BSS = torch.baddbmm(square_BSS, square_BSS, square_BSS, beta=B, alpha=C)
        x_BSL = torch.baddbmm(x_BSL, factor_BSS, x_BSL, beta=A)

    return x_BSL.mT if is_high else x_BSL


def work_of(shape: tuple[int, ...]) -> int:
    """Return what orthogonalizing a matrix costs, in multiply-adds."""
    small, large = sorted(shape)
    return ITERATIONS * small * small * (2 * large + small)
