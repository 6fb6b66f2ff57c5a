"""Summarizes the values of several seeds: the mean with a confidence interval, and quartiles.

The interval is Student's t interval for the mean of independent, roughly normal values ("Student", 1908, The probable
error of a mean). Its half-width is 4.3 standard errors with three seeds, and 2.8 with five.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95
"""The probability that such an interval contains the true mean."""


@dataclass(frozen=True)
class MeanWithInterval:
    """The mean of `count` values, and its 95% confidence interval from `low` to `high`.

    low and high are None for a single value, which has no spread. The interval is not clipped to a metric's range, so
    it may end above 1.
    """

    mean: float
    low: float | None
    high: float | None
    count: int


@dataclass(frozen=True)
class Quartiles:
    """The 25%, 50% and 75% quantiles of some values."""

    lower: float
    median: float
    upper: float


def mean_with_interval(values: Sequence[float]) -> MeanWithInterval:
    """Return the mean of at least one value, and its 95% interval."""
    mean = float(np.mean(values))
    count = len(values)
    if count == 1:
        return MeanWithInterval(mean, None, None, count)

    # The same as scipy.stats.t.ppf, but scipy.stats takes a second longer to import.
    from scipy.special import stdtrit

    standard_error = float(np.std(values, ddof=1)) / count**0.5
    margin = float(stdtrit(count - 1, (1 + CONFIDENCE) / 2)) * standard_error
    return MeanWithInterval(mean, mean - margin, mean + margin, count)


def quartiles(values: Sequence[float]) -> Quartiles:
    """Return the quartiles of at least one value, linearly interpolated."""
    return Quartiles(*np.quantile(values, [0.25, 0.5, 0.75]).tolist())
