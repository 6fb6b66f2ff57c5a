"""Encoded strings: many strings as one array of token ids. They can be selected, concatenated and merged.

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

    joined_T is true for the tokens of words that continue the word before them, according to the encoder's
    `joined_words`. It is None if there is no such function.
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


def concatenate(parts: list[EncodedStrings], with_joined: bool) -> EncodedStrings:
    """Return the strings of all parts in order. If `with_joined`, all parts must have joined_T."""
    no_id = np.zeros(0, dtype=np.int32)
    ids_T = np.concatenate([no_id, *[part.ids_T for part in parts]])
    lengths = [np.diff(part.offsets_N1) for part in parts]
    offsets_N1 = offsets_of(np.concatenate([np.zeros(0, dtype=np.int64), *lengths]))

    joined_T = None
    if with_joined:
        joined = [part.joined_T for part in parts if part.joined_T is not None]
        joined_T = np.concatenate([np.zeros(0, dtype=bool), *joined])
    return EncodedStrings(ids_T, offsets_N1, joined_T)


def merge_encoded(zeros: EncodedStrings, ones: EncodedStrings, from_ones_N: NDArray[np.bool_]) -> EncodedStrings:
    """Merge two lists of strings: take the next of `ones` where `from_ones_N` is true, else the next of `zeros`."""
    zeros_count = len(zeros.offsets_N1) - 1
    ones_count = len(ones.offsets_N1) - 1

    # The index of each string in the concatenation of both lists.
    indices_N = np.zeros(len(from_ones_N), dtype=np.int64)
    indices_N[~from_ones_N] = np.arange(zeros_count)
    indices_N[from_ones_N] = zeros_count + np.arange(ones_count)
    both = concatenate([zeros, ones], with_joined=zeros.joined_T is not None)
    return both.take(indices_N)
