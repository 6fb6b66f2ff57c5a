"""Sequences of different lengths laid end to end: sequence i of a flat array is offsets[i] : offsets[i + 1]."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def take_ranges(values: NDArray[Any], starts_N: Ints, lengths_N: Ints) -> NDArray[Any]:
    """Return ranges of an array, laid end to end. Example: `take_ranges(a, [5, 0], [2, 1])` -> `[a[5], a[6], a[0]]`."""
    return values.take(places_of_ranges(starts_N, lengths_N))


def places_of_ranges(starts_N: Ints, lengths_N: Ints) -> Ints:
    """Return the index of every element of the ranges. Example: `[5, 0], [2, 1]` -> `[5, 6, 0]`."""
    before_N = np.cumsum(lengths_N) - lengths_N
    places = np.repeat(starts_N - before_N, lengths_N)
    places += np.arange(len(places))
    return places


def group_starts(values_N: NDArray[Any]) -> Ints:
    """Return where each group of equal neighbors begins. Example: `[3, 3, 7]` -> `[0, 2]`."""
    is_start_N = np.ones(len(values_N), dtype=bool)
    is_start_N[1:] = values_N[1:] != values_N[:-1]
    return np.flatnonzero(is_start_N)


def sum_by_key(keys_N: NDArray[Any], amounts_N: Ints) -> tuple[NDArray[Any], Ints]:
    """Return (distinct keys, ascending; the exact sum of each key's amounts)."""
    order_N = np.argsort(keys_N, kind="stable")
    sorted_N = keys_N[order_N]

    starts_K = group_starts(sorted_N)
    return sorted_N[starts_K], np.add.reduceat(amounts_N[order_N], starts_K)


def offsets_of(lengths_N: NDArray[Any]) -> Ints:
    """Return (N + 1,) int64: where each sequence begins, and the end. Example: `[2, 3]` -> `[0, 2, 5]`."""
    return np.concatenate([[0], np.cumsum(lengths_N)]).astype(np.int64)
