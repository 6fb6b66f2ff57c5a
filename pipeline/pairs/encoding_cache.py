"""A cache from strings to their token ids that looks up many strings in one call.

Shape suffixes: N strings of a call, C strings of the cache, T tokens. C1 has one element more than C.
"""

from __future__ import annotations

from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.pairs.encoded import EncodedStrings, Ints
from pipeline.pairs.key_table import MISSING, KeyTable, keys_of
from pipeline.pairs.pieces import bytes_of


class EncodingCache:
    """Distinct strings and their ids, numbered in the order in which they were added.

    Not thread-safe: `add` changes several attributes, one after the other.
    """

    def __init__(self, with_joined: bool = False):
        """Make an empty cache. `with_joined`: whether strings come with `joined_T`."""
        self.bytes = 0  # of strings and ids
        self._numbers_of_keys = KeyTable()
        self._numbers_of_others: dict[str, int] = {}  # strings without a key; see keys_of
        self._ids = GrowingArray(np.int32)
        self._offsets = GrowingArray(np.int64)
        self._offsets.append(np.zeros(1, dtype=np.int64))
        self._joined = GrowingArray(np.bool_) if with_joined else None

    def __len__(self) -> int:
        """Return the number of strings."""
        return len(self._offsets.values) - 1

    @property
    def encoded(self) -> EncodedStrings:
        """All strings of the cache, in the order of their numbers."""
        joined_T = None if self._joined is None else self._joined.values
        return EncodedStrings(self._ids.values, self._offsets.values, joined_T)

    def find(self, strings: pa.Array) -> Ints:
        """Return (N,) int64: the numbers of strings, MISSING for those that the cache does not contain."""
        keys, has_key_N = keys_of(strings)
        numbers_N = np.full(len(strings), MISSING)
        numbers_N[has_key_N] = self._numbers_of_keys.find(keys[has_key_N])

        others = strings.filter(pa.array(~has_key_N)).to_pylist()
        found = map(self._numbers_of_others.get, others, repeat(MISSING))
        numbers_N[~has_key_N] = np.fromiter(found, np.int64, len(others))
        return numbers_N

    def add(self, strings: pa.Array, encoded: EncodedStrings) -> Ints:
        """Add N distinct strings that the cache does not contain, and return their numbers, (N,) int64.

        `encoded` has the ids of these strings, in the same order.
        """
        first = len(self)
        numbers_N = np.arange(first, first + len(strings))
        keys, has_key_N = keys_of(strings)
        self._numbers_of_keys.add(keys[has_key_N], numbers_N[has_key_N])
        others = strings.filter(pa.array(~has_key_N)).to_pylist()
        self._numbers_of_others.update(zip(others, numbers_N[~has_key_N].tolist(), strict=True))

        self.bytes += len(bytes_of(strings)[0]) + encoded.ids_T.nbytes
        self._offsets.append(self._offsets.values[-1] + encoded.offsets_N1[1:])
        self._ids.append(encoded.ids_T)
        if self._joined is not None and encoded.joined_T is not None:
            self._joined.append(encoded.joined_T)
        return numbers_N

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
