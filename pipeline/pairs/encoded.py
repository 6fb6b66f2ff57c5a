"""Encoded sentences: what an encoder returns.

Letters: N sentences, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from schemas.ragged import offsets_of, take_ranges

Ints = NDArray[np.int64]
JoinedWords = Callable[[str, list[str]], list[bool]]
"""A function from a text and its words to whether each word continues the one before."""


class EncodedStrings(NamedTuple):
    """N sentences end to end: sentence i is ids_T[offsets_N1[i] : offsets_N1[i + 1]].

    joined_T is true where a token continues the word before it by the encoder's `joined_words`, None without such.
    """

    ids_T: NDArray[np.int32]
    offsets_N1: Ints
    joined_T: NDArray[np.bool_] | None


def interleave(zeros: EncodedStrings, ones: EncodedStrings, from_ones_N: NDArray[np.bool_]) -> EncodedStrings:
    """Merge two lists of sentences into one: the next of `ones` where `from_ones_N` is true, else of `zeros`."""
    # Both lists end to end; then each sentence's range in them, in the order that is asked for.
    zeros_starts = zeros.offsets_N1[:-1]
    ones_starts = ones.offsets_N1[:-1] + len(zeros.ids_T)
    starts_N = np.zeros(len(from_ones_N), dtype=np.int64)
    starts_N[~from_ones_N] = zeros_starts
    starts_N[from_ones_N] = ones_starts
    lengths_N = np.zeros(len(from_ones_N), dtype=np.int64)
    lengths_N[~from_ones_N] = np.diff(zeros.offsets_N1)
    lengths_N[from_ones_N] = np.diff(ones.offsets_N1)

    ids_T = take_ranges(np.concatenate([zeros.ids_T, ones.ids_T]), starts_N, lengths_N)
    if zeros.joined_T is None or ones.joined_T is None:
        return EncodedStrings(ids_T, offsets_of(lengths_N), None)
    joined_T = take_ranges(np.concatenate([zeros.joined_T, ones.joined_T]), starts_N, lengths_N)
    return EncodedStrings(ids_T, offsets_of(lengths_N), joined_T)
