"""Words of rows, and groups of neighboring words: the units that whole_word, ngram and span masking choose from.

A word begins where the row's `word_starts` say so, after a special token, and at the row's start. It ends before the
next word or special token.

N-grams and spans are groups laid over the row's words from left to right. Every word draws a length, but a group uses
the draw of the word with its own number: the j-th group of a row has the length that the row's j-th word drew, and so
begins where the first lengths add up to. Special tokens cut a group in two, so that none extends across [SEP]:

    words      the  quick  brown  fox  jumps  [SEP]  over  it
    lengths     2     1      3     1     2             1    3
    groups     |--- 2 ---| |-1-| |---- 3 --|  cut   |------| |-1-

Letters: T tokens, B rows, W words or groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from schemas.ragged import offsets_of
from schemas.randomness import U64, numbers

Kind = Literal["token", "whole_word", "ngram", "span"]
KINDS: tuple[Kind, ...] = get_args(Kind)

Ints = NDArray[np.int64]

# Each row draws from several independent streams of its key: counter = place in the row + stream * 2**32.
ORDER_STREAM = 0  # the order in which units are taken
FATE_STREAM = 1  # [MASK], the token itself, or a random one
REPLACEMENT_STREAM = 2  # which random token
LENGTH_STREAM = 3  # how many words a group has
STREAM_SIZE = 1 << 32

_NGRAM_SHARES = np.array([6, 3, 2]) / 11  # ALBERT: p(n) proportional to 1 / n for n = 1, 2, 3
_SPAN_SHARES = 0.2 * np.power(0.8, np.arange(10.0)) / (1 - 0.8**10)  # SpanBERT: geometric(0.2), at most 10 words
GROUP_LENGTHS: dict[str, NDArray[np.float64]] = {"ngram": _NGRAM_SHARES, "span": _SPAN_SHARES}
"""Probabilities of groups of 1, 2, ... words, for the kinds that mask several words together."""


@dataclass(frozen=True)
class WordSpans:
    """Words, or groups of words, of B rows, in order, each represented by its first token.

    positions: index of the first token in the flat tokens. row: its row. places: its place in that row.
    sizes: tokens of each word; for groups, the size of the first word only.
    bounds_B1: row r's items are bounds_B1[r] : bounds_B1[r + 1].
    keys_B: the rows' random keys. first_words: the number of each item's first word.
    """

    positions: Ints
    row: Ints
    places: Ints
    sizes: Ints
    bounds_B1: Ints
    keys_B: U64
    first_words: Ints

    def only(self, numbers_W: Ints) -> WordSpans:
        """Return the items with these numbers, which must be ascending."""
        return WordSpans(
            positions=self.positions[numbers_W],
            row=self.row[numbers_W],
            places=self.places[numbers_W],
            sizes=self.sizes[numbers_W],
            bounds_B1=np.searchsorted(numbers_W, self.bounds_B1),
            keys_B=self.keys_B,
            first_words=numbers_W,
        )

    def counts(self) -> Ints:
        """Return (B,) int64: the number of items in each row."""
        return np.diff(self.bounds_B1)

    def draw(self, stream: int) -> U64:
        """Return (W,) uint64: a random number for each item, from one stream of its row's key."""
        keys_W = np.repeat(self.keys_B, self.counts())
        return numbers(keys_W, self.places + stream * STREAM_SIZE)


def find_words(
    maskable_T: NDArray[np.bool_], word_starts_T: NDArray[np.bool_], offsets_B1: Ints, keys_B: U64
) -> WordSpans:
    """Return all words of the rows. `maskable_T` is false at special tokens, which belong to no word."""
    begins_T = word_starts_T.copy()
    begins_T[1:] |= ~maskable_T[:-1]  # after a special token
    begins_T[offsets_B1[:-1]] = True  # at the row's start
    begins_T &= maskable_T
    positions = np.flatnonzero(begins_T)

    # A word extends to the next one, minus the special tokens in between. np.subtract.at subtracts each of them, even
    # if several follow the same word.
    sizes = np.diff(np.append(positions, len(maskable_T)))
    word_before = np.searchsorted(positions, np.flatnonzero(~maskable_T)) - 1
    np.subtract.at(sizes, word_before[word_before >= 0], 1)

    bounds_B1 = np.searchsorted(positions, offsets_B1)
    counts_B = np.diff(bounds_B1)
    return WordSpans(
        positions=positions,
        row=np.repeat(np.arange(len(keys_B)), counts_B),
        places=positions - np.repeat(offsets_B1[:-1], counts_B),
        sizes=sizes,
        bounds_B1=bounds_B1,
        keys_B=keys_B,
        first_words=np.arange(len(positions)),
    )


def group_words(words: WordSpans, maskable_T: NDArray[np.bool_], kind: Kind) -> WordSpans:
    """Return the groups of a kind, ngram or span, each represented by its first word."""
    return words.only(_group_begins(words, maskable_T, kind))


def _group_begins(words: WordSpans, maskable_T: NDArray[np.bool_], kind: Kind) -> Ints:
    """Return the numbers of the words that begin a group, ascending."""
    # The upper 16 random bits choose a length from a table that contains each length as often as its share.
    length_W = _length_table(kind)[words.draw(LENGTH_STREAM) >> np.uint64(48)]

    # Group j of a row begins where the row's first j lengths add up to. `target_W` has these starts for as many groups
    # as the row has words, as word numbers of the whole batch; those beyond the row's end are dropped below.
    length_sums_W1 = offsets_of(length_W)
    first_B = words.bounds_B1[:-1]
    last_B = words.bounds_B1[1:]
    counts_B = words.counts()
    target_W = length_sums_W1[:-1] - np.repeat(length_sums_W1[first_B] - first_B, counts_B)

    begins_W = ~maskable_T[words.positions - 1]  # after a special token
    begins_W[first_B[counts_B > 0]] = True  # position 0 has no token before it: -1 above wrapped around
    begins_W[target_W[target_W < np.repeat(last_B, counts_B)]] = True
    return np.flatnonzero(begins_W)


@lru_cache
def _length_table(kind: Kind) -> Ints:
    """Return 65,536 group lengths, each as often as its share, for lookups with 16 random bits.

    All threads of a process share the table, so it is read-only. Two threads may compute it at once, with the same
    result.
    """
    steps = (np.arange(1 << 16) + 0.5) / (1 << 16)
    table = np.searchsorted(np.cumsum(GROUP_LENGTHS[kind])[:-1], steps, side="right") + 1
    table.setflags(write=False)
    return table
