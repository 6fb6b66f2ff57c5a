"""All frequent substrings of words, counted exactly: the starting point for learning a Unigram vocabulary.

Substrings of length L + 1 are those of length L with one more character, so each length takes one pass of a hash table
over the positions where the shorter substring is frequent. That finds what a suffix array finds (sentencepiece, Kudo
2018) without sorting. It also uses the counts of the words: a suffix array over distinct words counts each word only
once.

Shape suffixes: N words, T characters of all words, P positions of one length, D distinct substrings of that length, S
substrings of all lengths.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.vocab.words import Words
from schemas.ragged import offsets_of

MAX_PIECE = 16  # characters, as in sentencepiece

Ints = NDArray[np.int64]
Ids = NDArray[np.int32]


@dataclass(frozen=True)
class Occurrences:
    """Where the substrings of one length are: substring `piece_P[p]` begins at character `positions_P[p]`, sorted."""

    positions_P: Ids
    piece_P: Ids


@dataclass(frozen=True)
class Substrings:
    """S substrings: `counts_S` in the corpus, and `starts_S`, each one's first occurrence in the words' characters.

    occurrences: by length, from 1 up; `piece_P` are indices into the S substrings.
    """

    starts_S: Ints
    lengths_S: Ints
    counts_S: Ints
    occurrences: list[Occurrences]


def frequent_substrings(words: Words, limit: int) -> Substrings:
    """Return all characters, and the `limit` longer substrings that occur twice and cover the most characters.

    A substring that is always followed by the same character in its word is left out, because the longer one says as
    much. The order is by length, then by first occurrence.
    """
    layers = _count_by_length(words)
    _drop_uninformative(layers, limit)

    first = 0
    occurrences = []
    for layer in layers:
        numbers_D = np.where(layer.is_kept_D, first + np.cumsum(layer.is_kept_D) - 1, -1).astype(np.int32)
        first += int(layer.is_kept_D.sum())
        piece_P = numbers_D[layer.names_P]
        is_kept_P = piece_P >= 0
        occurrences.append(Occurrences(layer.positions_P[is_kept_P], piece_P[is_kept_P]))
        layer.forget_positions()

    return Substrings(
        starts_S=np.concatenate([layer.starts_D[layer.is_kept_D] for layer in layers]),
        lengths_S=np.repeat(np.arange(1, len(layers) + 1), [int(layer.is_kept_D.sum()) for layer in layers]),
        counts_S=np.concatenate([layer.counts_D[layer.is_kept_D] for layer in layers]),
        occurrences=occurrences,
    )


class _Layer:
    """The substrings of one length. `names_P` are numbers of distinct substrings, in order of first occurrence."""

    def __init__(self, positions_P: Ids, keys_P: Ints, count_T: Ints):
        encoded = pa.array(keys_P).dictionary_encode()
        self.positions_P = positions_P
        self.names_P: Ids = encoded.indices.to_numpy()
        distinct = len(encoded.dictionary)

        self.counts_D = np.zeros(distinct, dtype=np.int64)
        np.add.at(self.counts_D, self.names_P, count_T[positions_P])

        # The last of several assignments wins, which is the first occurrence because the order is reversed.
        self.starts_D = np.zeros(distinct, dtype=np.int64)
        self.starts_D[self.names_P[::-1]] = positions_P[::-1]
        self.is_kept_D = np.ones(distinct, dtype=bool)

    def forget_dropped(self) -> None:
        """Free the positions of dropped substrings, which take most of the memory."""
        is_kept_P = self.is_kept_D[self.names_P]
        self.positions_P = self.positions_P[is_kept_P]
        self.names_P = self.names_P[is_kept_P]

    def forget_positions(self) -> None:
        """Free the memory of all positions."""
        self.positions_P = np.zeros(0, dtype=np.int32)
        self.names_P = np.zeros(0, dtype=np.int32)


def _count_by_length(words: Words) -> list[_Layer]:
    """Return the substrings of each length: all characters, and longer substrings that occur at least twice."""
    ends_N = offsets_of(words.lengths_N)[1:]
    end_T = np.repeat(ends_N, words.lengths_N)
    count_T = np.repeat(words.counts_N, words.lengths_N)
    symbols_T = words.characters_T.astype(np.int64)

    # 32 bits are enough, because `check_fit` limits the number of characters.
    layers = [_Layer(np.arange(len(symbols_T), dtype=np.int32), symbols_T, count_T)]
    symbols_T = layers[0].names_P.astype(np.int64)
    alphabet = len(layers[0].counts_D)

    for length in range(2, MAX_PIECE + 1):
        shorter = layers[-1]
        is_long_enough_P = shorter.positions_P + length <= end_T[shorter.positions_P]
        can_grow_P = is_long_enough_P & (shorter.counts_D[shorter.names_P] > 1)
        positions_P = shorter.positions_P[can_grow_P]
        prefix_P = shorter.names_P[can_grow_P].astype(np.int64)

        layer = _Layer(positions_P, prefix_P * alphabet + symbols_T[positions_P + length - 1], count_T)
        prefix_D = np.zeros(len(layer.counts_D), dtype=np.int64)
        prefix_D[layer.names_P] = prefix_P
        if length > 2:
            # The shorter substring is always followed by this character.
            is_all_D = layer.counts_D == shorter.counts_D[prefix_D]
            shorter.is_kept_D[prefix_D[is_all_D]] = False
            shorter.forget_dropped()
        layer.is_kept_D = layer.counts_D > 1
        layers.append(layer)

    layers[-1].forget_dropped()
    return layers


def _drop_uninformative(layers: list[_Layer], limit: int) -> None:
    """Keep the `limit` substrings of two or more characters that cover most of the corpus; ties go to the first."""
    covered = [layer.counts_D * length for length, layer in enumerate(layers, start=1)]
    candidates = [np.flatnonzero(layer.is_kept_D) for layer in layers[1:]]
    amounts = np.concatenate([amount[places] for amount, places in zip(covered[1:], candidates, strict=True)])
    if len(amounts) <= limit:
        return

    is_chosen = np.zeros(len(amounts), dtype=bool)
    is_chosen[np.argsort(-amounts, kind="stable")[:limit]] = True
    bounds = np.cumsum([len(places) for places in candidates])[:-1]
    for layer, places, chosen in zip(layers[1:], candidates, np.split(is_chosen, bounds), strict=True):
        layer.is_kept_D[places[~chosen]] = False
