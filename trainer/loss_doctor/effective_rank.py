"""Computes in how many directions vectors point: 1 if all are multiples of one vector, up to their width if isotropic.

The effective rank is the participation ratio of the eigenvalues of the vectors' second moments,

    (sum of eigenvalues)^2 / sum of squared eigenvalues

The eigenvalues are the squares of the singular values of the matrix of vectors. Any model has many small ones, which
have almost no weight here next to a large one. In contrast, the exponential of the entropy of the singular values
themselves (Roy and Vetterli, 2007) is 20 or more for vectors of width 128 that differ by only a hundredth of their
length. The mean is not subtracted, because vectors that are all equal are exactly what has to be detected.

Shape suffixes: N vectors, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor

MAX_WIDTH = 1024
"""Only this many coordinates of each vector are used. A collapse shows in all of them, and their second moments take
about 8 MB at most."""


def second_moments(vectors_ND: Tensor) -> Tensor:
    """Return the sum of the vectors' outer products, (D, D) float64, over their first MAX_WIDTH coordinates."""
    vectors_ND = vectors_ND[:, :MAX_WIDTH].double()
    return vectors_ND.T @ vectors_ND


def effective_rank(moments_DD: Tensor) -> float:
    """Return the effective rank of vectors, given their second moments; 0 if all are 0 or any is not finite."""
    # The sum of the eigenvalues is the trace, and the sum of their squares is the sum of the squared entries.
    total = moments_DD.diagonal().sum()
    squares = moments_DD.square().sum()
    ratio = torch.where(squares > 0, total.square() / squares, 0)
    return float(ratio) if bool(ratio.isfinite()) else 0.0
