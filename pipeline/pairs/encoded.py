"""Encoded strings: many strings as one array of token ids, which can be selected, appended and merged.

Shape suffixes: N strings, T tokens of all strings. N1 has one element more than N.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from schemas.ragged import offsets_of, take_ranges

Ints = NDArray[np.int64]

JoinedWords = Callable[[str, list[str]], list[bool]]
"""A function from a text and its words to whether each word continues the word before it."""


class EncodedStrings(NamedTuple):
    """N strings end to end: string i is ids_T[offsets_N1[i] : offsets_N1[i + 1]].

    joined_T is true for tokens of words that continue the word before them, by the encoder's `joined_words`. It is None
    without such a function.
    """

    ids_T: NDArray[np.int32]
    offsets_N1: Ints
    joined_T: NDArray[np.bool_] | None

    def take(self, indices: Ints) -> EncodedStrings:
        """Return the strings with these indices, in this order."""
        starts = self.offsets_N1[indices]
        lengths = self.offsets_N1[indices + 1] - starts

        ids_T = take_ranges(self.ids_T, starts, lengths)
        joined_T = None
        if self.joined_T is not None:
            joined_T = take_ranges(self.joined_T, starts, lengths)
        return EncodedStrings(ids_T, offsets_of(lengths), joined_T)

    def append(self, others: EncodedStrings) -> EncodedStrings:
        """Return these strings and then the others."""
        ids_T = np.concatenate([self.ids_T, others.ids_T])
        offsets_N1 = np.concatenate([self.offsets_N1, self.offsets_N1[-1] + others.offsets_N1[1:]])
        joined_T = None
        if self.joined_T is not None and others.joined_T is not None:
            joined_T = np.concatenate([self.joined_T, others.joined_T])
        return EncodedStrings(ids_T, offsets_N1, joined_T)


def no_strings(with_joined: bool) -> EncodedStrings:
    """Return zero strings, to which others can be appended."""
    joined_T = np.zeros(0, dtype=bool) if with_joined else None
    return EncodedStrings(np.zeros(0, dtype=np.int32), np.zeros(1, dtype=np.int64), joined_T)


def merge_encoded(zeros: EncodedStrings, ones: EncodedStrings, from_ones_N: NDArray[np.bool_]) -> EncodedStrings:
    """Merge two lists of strings into one: the next of `ones` where `from_ones_N` is true, else the next of `zeros`."""
    zeros_count = len(zeros.offsets_N1) - 1
    ones_count = len(ones.offsets_N1) - 1

    # The index of each string after both lists were put end to end.
    indices_N = np.zeros(len(from_ones_N), dtype=np.int64)
    indices_N[~from_ones_N] = np.arange(zeros_count)
    indices_N[from_ones_N] = zeros_count + np.arange(ones_count)
    return zeros.append(ones).take(indices_N)
