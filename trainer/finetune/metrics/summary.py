"""Summarizes the values of several seeds: the mean with an interval, and quartiles.

The interval is Student's t for the mean of independent values of about normal distribution ("Student", 1908, The
probable error of a mean), without resampling. With three seeds it is 4.3 standard errors wide to each side, with five
2.8: so few seeds say no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95
"""The probability with which such intervals contain the mean."""


@dataclass(frozen=True)
class MeanWithInterval:
    """The mean of `count` values, and the 95% confidence interval of the mean.

    low and high are None for one value, which says nothing about the next. The interval is not cut off at a metric's
    limits, so it may end above 1.
    """

    mean: float
    low: float | None
    high: float | None
    count: int


@dataclass(frozen=True)
class Quartiles:
    """A quarter of the values is below `lower`, half of them below `median`, three quarters below `upper`."""

    lower: float
    median: float
    upper: float


def mean_with_interval(values: Sequence[float]) -> MeanWithInterval:
    """Return the mean and its interval of 95%. Raises ValueError for no values, or for one that is not finite."""
    checked = finite(values)
    mean = float(np.mean(checked))
    count = len(checked)
    if count == 1:
        return MeanWithInterval(mean, None, None, count)

    # Of scipy.stats this is t.ppf, which takes a second longer to import.
    from scipy.special import stdtrit

    standard_error = float(np.std(checked, ddof=1)) / count**0.5
    margin = float(stdtrit(count - 1, (1 + CONFIDENCE) / 2)) * standard_error
    return MeanWithInterval(mean, mean - margin, mean + margin, count)


def quartiles(values: Sequence[float]) -> Quartiles:
    """Return the quartiles, interpolated between values. Raises ValueError for none, or for one that is not finite."""
    lower, median, upper = np.quantile(finite(values), [0.25, 0.5, 0.75])
    return Quartiles(float(lower), float(median), float(upper))


def finite(values: Sequence[float]) -> np.ndarray:
    """Return the values, float64. Raises ValueError for none, or for one that is not finite."""
    checked = np.asarray(values, dtype=np.float64)
    if checked.ndim != 1 or len(checked) == 0 or not np.isfinite(checked).all():
        raise ValueError(f"cannot summarize {list(values)}: expected at least one value, all of them finite")
    return checked
