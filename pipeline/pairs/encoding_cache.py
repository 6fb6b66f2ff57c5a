"""A cache from strings to their token ids, for many strings in one call.

Shape suffix: N strings of a call.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from pipeline.pairs.encoded import EncodedStrings, Ints, no_strings


class EncodingCache:
    """Distinct strings, numbered in the order in which they were added, and their ids.

    It must not serve several threads at the same time: `add` changes two attributes, one after the other.
    """

    def __init__(self, with_joined: bool = False):
        """Make an empty cache. `with_joined`: strings come with `joined_T`."""
        self.numbers: dict[str, int] = {}
        self.encoded = no_strings(with_joined)

    def missing(self, strings: Iterable[str]) -> list[str]:
        """Return the strings that the cache does not hold, each once, in their order."""
        return [string for string in dict.fromkeys(strings) if string not in self.numbers]

    def add(self, strings: list[str], encoded: EncodedStrings) -> None:
        """Add strings that the cache does not hold. `encoded` are these strings, in the same order."""
        first = len(self.numbers)
        self.numbers.update(zip(strings, range(first, first + len(strings)), strict=True))
        self.encoded = self.encoded.append(encoded)

    def numbers_of(self, strings: list[str]) -> Ints:
        """Return (N,) the numbers of strings that the cache holds."""
        return np.fromiter(map(self.numbers.__getitem__, strings), np.int64, len(strings))

    def look_up(self, numbers_N: Ints) -> EncodedStrings:
        """Return the ids of strings by their numbers."""
        return self.encoded.take(numbers_N)
