"""Encoded strings, and a cache of them that looks up many strings in one call.

Shape suffixes: N strings of a call, T tokens of all strings. N1 has one element more than N.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.words.arrow import Ints, bytes_of
from schemas.ragged import offsets_of, take_ranges

MISSING = -1

MarkWords = Callable[[list[str], list[list[str]]], NDArray[np.int8]]
"""A function from texts and the words of each to marks of all characters of all words (word_segmentation.py)."""


class EncodedStrings(NamedTuple):
    """N strings end to end: string i is ids_T[offsets_N1[i] : offsets_N1[i + 1]].

    marks_T has the mark of each token's first character, according to the encoder's `mark_words`. It is None if there
    is no such function.
    """

    ids_T: NDArray[np.int32]
    offsets_N1: Ints
    marks_T: NDArray[np.int8] | None

    def take(self, indices: Ints) -> EncodedStrings:
        """Return the strings with these indices, in this order."""
        starts = self.offsets_N1[indices]
        lengths = self.offsets_N1[indices + 1] - starts

        ids_T = take_ranges(self.ids_T, starts, lengths)
        marks_T = None
        if self.marks_T is not None:
            marks_T = take_ranges(self.marks_T, starts, lengths)
        return EncodedStrings(ids_T, offsets_of(lengths), marks_T)


def concatenate(parts: list[EncodedStrings], with_marks: bool) -> EncodedStrings:
    """Return the strings of all parts in order. If `with_marks`, all parts must have marks_T."""
    no_id = np.zeros(0, dtype=np.int32)
    ids_T = np.concatenate([no_id, *[part.ids_T for part in parts]])
    lengths = [np.diff(part.offsets_N1) for part in parts]
    offsets_N1 = offsets_of(np.concatenate([np.zeros(0, dtype=np.int64), *lengths]))

    marks_T = None
    if with_marks:
        marks = [part.marks_T for part in parts if part.marks_T is not None]
        marks_T = np.concatenate([np.zeros(0, dtype=np.int8), *marks])
    return EncodedStrings(ids_T, offsets_N1, marks_T)


def merge_encoded(zeros: EncodedStrings, ones: EncodedStrings, from_ones_N: NDArray[np.bool_]) -> EncodedStrings:
    """Merge two lists of strings: take the next of `ones` where `from_ones_N` is true, else the next of `zeros`."""
    both = concatenate([zeros, ones], with_marks=zeros.marks_T is not None)
    ones_before_N = offsets_of(from_ones_N)[:-1]
    zeros_before_N = np.arange(len(from_ones_N)) - ones_before_N
    zeros_count = len(zeros.offsets_N1) - 1
    return both.take(np.where(from_ones_N, zeros_count + ones_before_N, zeros_before_N))


class EncodingCache:
    """Distinct strings and their ids, numbered in the order in which they were added.

    Not thread-safe: `add` changes several attributes, one after the other.
    """

    def __init__(self, with_marks: bool = False):
        """Make an empty cache. `with_marks`: whether strings come with `marks_T`."""
        self.bytes = 0  # of strings and ids
        self._numbers: dict[str, int] = {}
        self._ids = GrowingArray(np.int32)
        self._offsets = GrowingArray(np.int64)
        self._offsets.append(np.zeros(1, dtype=np.int64))
        self._marks = GrowingArray(np.int8) if with_marks else None

    def __len__(self) -> int:
        """Return the number of strings."""
        return len(self._offsets.values) - 1

    @property
    def encoded(self) -> EncodedStrings:
        """All strings of the cache, in the order of their numbers."""
        marks_T = None if self._marks is None else self._marks.values
        return EncodedStrings(self._ids.values, self._offsets.values, marks_T)

    def find(self, strings: pa.Array) -> Ints:
        """Return (N,) int64: the numbers of strings, MISSING for those that the cache does not contain."""
        found = map(self._numbers.get, strings.to_pylist(), repeat(MISSING))
        return np.fromiter(found, np.int64, len(strings))

    def add(self, strings: pa.Array, encoded: EncodedStrings) -> Ints:
        """Add N distinct strings that the cache does not contain, and return their numbers, (N,) int64.

        `encoded` has the ids of these strings, in the same order.
        """
        first = len(self)
        numbers_N = np.arange(first, first + len(strings))
        self._numbers.update(zip(strings.to_pylist(), numbers_N.tolist(), strict=True))

        self.bytes += len(bytes_of(strings)[0]) + encoded.ids_T.nbytes
        self._offsets.append(self._offsets.values[-1] + encoded.offsets_N1[1:])
        self._ids.append(encoded.ids_T)
        if self._marks is not None and encoded.marks_T is not None:
            self._marks.append(encoded.marks_T)
        return numbers_N


class GrowingArray:
    """An array that values are appended to. Its memory doubles when it is full."""

    def __init__(self, dtype: Any):
        self._memory: NDArray[Any] = np.zeros(1024, dtype=dtype)
        self._length = 0

    @property
    def values(self) -> NDArray[Any]:
        """The values so far. A view: it stays valid and unchanged when more values are appended."""
        return self._memory[: self._length]

    def append(self, values: NDArray[Any]) -> None:
        """Append values."""
        end = self._length + len(values)
        if end > len(self._memory):
            larger = np.zeros(max(end, 2 * len(self._memory)), dtype=self._memory.dtype)
            larger[: self._length] = self.values
            self._memory = larger

        self._memory[self._length : end] = values
        self._length = end
