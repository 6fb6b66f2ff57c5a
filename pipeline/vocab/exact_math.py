"""Logarithm and digamma from additions, multiplications and divisions alone, which IEEE 754 rounds the same everywhere.

numpy's own `exp` and `log` use the processor's widest instructions, and their last bits differ between processors. A
vocabulary must not: a step that is repeated on another machine must write the same bytes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_LN2 = 0.6931471805599453
_SQRT_HALF = 0.7071067811865476
_LOG_TERMS = 12  # of the series below: its argument is at most 0.0295, so the remainder is below 1e-17
_EXP_TERMS = 10
_HALVINGS = 6
_SHIFT = 6


def natural_log(x: Floats) -> Floats:
    """Return ln(x) for positive, finite x, with a relative error below 1e-15."""
    mantissa, exponent = np.frexp(x)
    is_low = mantissa < _SQRT_HALF
    mantissa = np.where(is_low, 2 * mantissa, mantissa)
    exponent = exponent - is_low

    # ln(m) = 2 artanh(z) with z = (m - 1) / (m + 1), as a power series in z squared.
    z = (mantissa - 1) / (mantissa + 1)
    squared = z * z
    series = np.zeros_like(z)
    for k in range(_LOG_TERMS, -1, -1):
        series = series * squared + 1 / (2 * k + 1)
    return exponent * _LN2 + 2 * z * series


def exp_digamma(x: Floats) -> Floats:
    """Return exp(digamma(x)) for positive x: about x - 1/2, and much less than x below 1.

    digamma(x) = digamma(x + 6) - sum of 1 / (x + k) for k < 6, and exp(digamma(t + 1/2)) has a short asymptotic series
    in 1 / t (DLMF 5.11).
    """
    t = x + (_SHIFT - 0.5)
    cubed = t * t * t
    shifted = t + 1 / (24 * t) - 37 / (5760 * cubed) + 10313 / (2903040 * cubed * t * t)

    correction = np.zeros_like(x)
    for k in range(_SHIFT):
        correction = correction + 1 / (x + k)
    return shifted * _exp_of_negative(correction)


def _exp_of_negative(y: Floats) -> Floats:
    """Return exp(-y) for y from 0 to a few hundred: a Taylor series of y / 2**halvings, squared that many times."""
    halvings = _HALVINGS + np.maximum(np.frexp(y)[1], 0).max(initial=0)
    part = -y / (1 << int(halvings))

    result = np.ones_like(y)
    for k in range(_EXP_TERMS, 0, -1):
        result = 1 + result * part / k
    for _ in range(int(halvings)):
        result = result * result
    return result
