"""Pearson's and Spearman's correlation of predicted numbers with labeled ones.

Both equal scipy.stats.pearsonr and spearmanr, except that they return 0.0 where scipy returns nan or raises an error:
if all predictions or all references are equal (which includes a single example), and if any number is nan. A model
that always predicts the same number has found no relation, and 0.0 can be averaged over seeds and compared with other
epochs. Both raise ValueError if there are no examples, or if predictions and references differ in length.

Source of the choice of metrics: STS-B in table 1 of GLUE (Wang et al., 2018, arXiv:1804.07461).

Shape suffixes: N examples.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Numbers = Sequence[float] | Floats

UNDEFINED = 0.0
"""The value returned where a correlation is undefined."""


def pearson(predictions: Numbers, references: Numbers) -> float:
    """Return Pearson's correlation, between -1 and 1; 0.0 if it is undefined or any number is not finite."""
    predicted_N, labeled_N = checked(predictions, references)
    if not (np.isfinite(predicted_N).all() and np.isfinite(labeled_N).all()):
        return UNDEFINED
    if is_constant(predicted_N) or is_constant(labeled_N):
        return UNDEFINED

    correlation = float(unit_deviations(predicted_N) @ unit_deviations(labeled_N))

    # Rounding can give a value slightly beyond 1.
    return min(1.0, max(-1.0, correlation))


def spearman(predictions: Numbers, references: Numbers) -> float:
    """Return Spearman's correlation, which is Pearson's of the ranks; 0.0 if it is undefined or any number is nan."""
    predicted_N, labeled_N = checked(predictions, references)
    if np.isnan(predicted_N).any() or np.isnan(labeled_N).any():
        return UNDEFINED
    return pearson(ranks(predicted_N), ranks(labeled_N))


def pearson_and_spearman(predictions: Numbers, references: Numbers) -> float:
    """Return the mean of the two correlations, GLUE's score for STS-B."""
    return (pearson(predictions, references) + spearman(predictions, references)) / 2


def ranks(values_N: Floats) -> Floats:
    """Return each value's rank, from 1, float64 (N,). Equal values get the mean of their ranks."""
    _, groups_N, sizes = np.unique(values_N, return_inverse=True, return_counts=True)
    last_ranks = np.cumsum(sizes)
    return (last_ranks - (sizes - 1) / 2)[groups_N]


def unit_deviations(values_N: Floats) -> Floats:
    """Return the deviations from the mean, scaled to a Euclidean norm of 1. The values must not all be equal."""
    # Sums and squares of numbers near the float64 maximum would overflow. Scaling by a power of two does not round.
    _, exponent = np.frexp(np.abs(values_N).max())
    scaled_N = np.ldexp(values_N, -exponent)

    deviations_N = scaled_N - scaled_N.mean()
    deviations_N = deviations_N / np.abs(deviations_N).max()
    return deviations_N / np.linalg.norm(deviations_N)


def is_constant(values_N: Floats) -> bool:
    return bool((values_N == values_N[0]).all())


def checked(predictions: Numbers, references: Numbers) -> tuple[Floats, Floats]:
    """Return both as float64 (N,). Raises ValueError if they differ in length or are empty."""
    predicted_N = np.asarray(predictions, dtype=np.float64)
    labeled_N = np.asarray(references, dtype=np.float64)

    if predicted_N.shape != labeled_N.shape or labeled_N.ndim != 1 or len(labeled_N) == 0:
        raise ValueError(
            f"predictions of shape {predicted_N.shape} and references of shape {labeled_N.shape} cannot be compared: "
            "both must have one number for each example, of at least one example"
        )
    return predicted_N, labeled_N
