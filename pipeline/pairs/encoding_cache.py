"""A cache from strings to their token ids, for many strings in one call.

Shape suffixes: N strings of a call, C strings of the cache, T tokens. C1 has one element more than C.
"""

from __future__ import annotations

from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.pairs.encoded import EncodedStrings, Ints

MISSING = -1


class EncodingCache:
    """Distinct strings, numbered in the order in which they were added, and their ids.

    It must not serve several threads at the same time: `add` changes several attributes, one after the other.
    """

    def __init__(self, with_joined: bool = False):
        """Make an empty cache. `with_joined`: strings come with `joined_T`."""
        self.numbers: dict[str, int] = {}
        self.bytes = 0
        self._ids = GrowingArray(np.int32)
        self._offsets = GrowingArray(np.int64)
        self._offsets.append(np.zeros(1, dtype=np.int64))
        self._joined = GrowingArray(np.bool_) if with_joined else None

    @property
    def encoded(self) -> EncodedStrings:
        """All strings of the cache, in the order of their numbers."""
        joined_T = None if self._joined is None else self._joined.values
        return EncodedStrings(self._ids.values, self._offsets.values, joined_T)

    def find(self, strings: list[str]) -> Ints:
        """Return (N,) the numbers of strings, MISSING for those that the cache does not hold."""
        return np.fromiter(map(self.numbers.get, strings, repeat(MISSING)), np.int64, len(strings))

    def add(self, strings: list[str], encoded: EncodedStrings) -> Ints:
        """Add N different strings that the cache does not hold, and return their numbers, (N,).

        `encoded` are these strings, in the same order.
        """
        first = len(self.numbers)
        end = first + len(strings)
        self.numbers.update(zip(strings, range(first, end), strict=True))
        self.bytes += sum(map(len, strings)) + encoded.ids_T.nbytes

        self._offsets.append(self._offsets.values[-1] + encoded.offsets_N1[1:])
        self._ids.append(encoded.ids_T)
        if self._joined is not None and encoded.joined_T is not None:
            self._joined.append(encoded.joined_T)
        return np.arange(first, end)

    def look_up(self, numbers_N: Ints) -> EncodedStrings:
        """Return the ids of strings by their numbers."""
        return self.encoded.take(numbers_N)


class GrowingArray:
    """An array that values are appended to. Its memory doubles when it is full."""

    def __init__(self, dtype: Any):
        self._memory: NDArray[Any] = np.zeros(1024, dtype=dtype)
        self._length = 0

    @property
    def values(self) -> NDArray[Any]:
        """The values so far. They do not change when others are appended."""
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
