"""Units to mask, words and groups of words, and draws of units until each row's budget is spent.

A word begins where the row's `word_starts` say so, after a special token, and at the row's start. It ends before the
next word or special token.

N-grams and spans are groups laid over the row's words from left to right. Every word draws a length, but a group uses
the draw of the word with its own number: the j-th group of a row has the length that the row's j-th word drew, and so
begins where the first lengths add up to. Special tokens cut a group in two, so that none extends across [SEP]:

    words      the  quick  brown  fox  jumps  [SEP]  over  it
    lengths     2     1      3     1     2             1    3
    groups     |--- 2 ---| |-1-| |---- 3 --|  cut   |------| |-1-

Everything here works on all rows of a batch at once, in numpy. Every unit has a random 64-bit number, and the first n
units of a row are those with the n lowest numbers. `first_in_order` finds them for all rows with one sort.

Letters: T tokens, B rows, W words or groups, G groups, Q units in the order they were drawn, K masked tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from schemas.ragged import Bools, Ints, group_starts, offsets_of, places_of_ranges, take_ranges
from schemas.randomness import U64, numbers

Kind = Literal["token", "whole_word", "ngram", "span"]
KINDS: tuple[Kind, ...] = get_args(Kind)

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


def find_words(maskable_T: Bools, word_starts_T: Bools, offsets_B1: Ints, keys_B: U64) -> WordSpans:
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


def group_words(words: WordSpans, maskable_T: Bools, kind: Kind) -> WordSpans:
    """Return the groups of a kind, ngram or span, each represented by its first word."""
    return words.only(_group_begins(words, maskable_T, kind))


def _group_begins(words: WordSpans, maskable_T: Bools, kind: Kind) -> Ints:
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


# Draws


def draw_tokens(maskable_T: Bools, offsets_B1: Ints, keys_B: U64, budget_B: Ints) -> Ints:
    """Return (K,) int64: positions of the maskable tokens that come first in each row's random order."""
    lengths_B = np.diff(offsets_B1)

    # A token's draw depends on its row's key and its place in the row, never on its place in the batch.
    places_T = np.arange(len(maskable_T))
    places_T -= np.repeat(offsets_B1[:-1], lengths_B)
    order_T = numbers(np.repeat(keys_B, lengths_B), places_T)

    return first_in_order(order_T, offsets_B1, budget_B, maskable_T)


def take_groups(groups: WordSpans, words: WordSpans, budget_B: Ints) -> Bools:
    """Return (W,) bool: which words are masked. Groups come in random order; each word that fits the budget is taken.

    The words of a group are taken from left to right, so the last group may be shortened to the exact budget. With
    whole_word every word is a group, and `groups` is `words`.
    """
    taken_W = np.zeros(len(words.positions), dtype=bool)
    order_G = groups.draw(ORDER_STREAM)
    counts_B = groups.counts()

    # Sorting all groups would cost more than everything else. Every word has at least one token, so a budget of n
    # tokens is spent after at most n words. As many groups as contain n words on average, and 8 more, are enough for
    # most rows.
    num_words = max(len(words.positions), 1)
    enough_B = budget_B * len(order_G) // num_words + 8
    group_Q = first_in_order(order_G, groups.bounds_B1, enough_B)
    left_B = _take_words(groups, words, group_Q, budget_B, taken_W)

    # The few rows that are not full yet start over with all their groups. Starting over, instead of continuing, makes
    # the result independent of the estimate above.
    again_B = (left_B > 0) & (counts_B > enough_B)
    if again_B.any():
        taken_W[again_B[words.row]] = False
        all_groups_B = np.where(again_B, counts_B, 0)
        group_Q = first_in_order(order_G, groups.bounds_B1, all_groups_B)
        _take_words(groups, words, group_Q, budget_B, taken_W)
    return taken_W


def _take_words(groups: WordSpans, words: WordSpans, group_Q: Ints, budget_B: Ints, taken_W: Bools) -> Ints:
    """Mark in `taken_W` the words that fit, in the order of `group_Q`; return (B,) the remaining budgets."""
    word_Q = _words_of_groups(groups, words, group_Q)
    left_B = budget_B.copy()

    # In each round, every row takes the words up to the first one that does not fit, discards those that never will,
    # and tries the rest with the remaining budget. A loop over words gives the same result (tests compare them); rounds
    # are few.
    while len(word_Q):
        row_Q = words.row[word_Q]
        size_Q = words.sizes[word_Q]

        # Sums only grow, so the words that fit come first in each row.
        fits_Q = _running_sums(size_Q, row_Q) <= left_B[row_Q]
        taken_W[word_Q[fits_Q]] = True
        taken_B = np.bincount(row_Q[fits_Q], weights=size_Q[fits_Q], minlength=len(left_B))
        left_B -= taken_B.astype(np.int64)

        # A word larger than its row's remaining budget will never fit, because budgets only shrink. In each row, the
        # first of the other words fits in the next round, so every round makes progress.
        word_Q = word_Q[~fits_Q]
        can_fit_Q = words.sizes[word_Q] <= left_B[words.row[word_Q]]
        word_Q = word_Q[can_fit_Q]
    return left_B


def _words_of_groups(groups: WordSpans, words: WordSpans, group_Q: Ints) -> Ints:
    """Return the words of these groups, group by group."""
    if groups is words:
        return group_Q

    ends_G = np.append(groups.first_words[1:], len(words.positions))
    starts_Q = groups.first_words[group_Q]
    return places_of_ranges(starts_Q, ends_G[group_Q] - starts_Q)


def _running_sums(size_Q: Ints, row_Q: Ints) -> Ints:
    """Return running sums of the sizes that start over at each row. `row_Q` is sorted."""
    total_Q = np.cumsum(size_Q)

    # Subtract the total of all earlier rows. Rows without units are not in `begins`.
    begins = group_starts(row_Q)
    units_per_row = np.diff(np.append(begins, len(row_Q)))
    total_before = total_Q[begins] - size_Q[begins]
    return total_Q - np.repeat(total_before, units_per_row)


def first_in_order(order: U64, bounds_B1: Ints, count_B: Ints, allowed: Bools | None = None) -> Ints:
    """Return the first `count_B` items of each row in random order, row by row.

    order: a random uint64 for each item, of which the upper 32 bits decide. bounds_B1: row r's items are bounds_B1[r] :
    bounds_B1[r + 1]. allowed: which items may be taken; all by default. Items are returned as indices into `order`.

    Cost: only items below a threshold are sorted (`_likely_first`). The sort is one of plain integers that pack the row
    (16 bits), the order (32 bits) and the place in the row (16 bits), ten times as fast as a sort by two keys. Because
    the place is part of the number, no two are equal, and every machine sorts them the same way.
    """
    allowed_B = np.diff(bounds_B1)
    if allowed is not None:
        allowed_B = allowed_B - _count_true(~allowed, bounds_B1)

    is_likely = _likely_first(order, bounds_B1, count_B, allowed_B, allowed)
    candidates = np.flatnonzero(is_likely)
    candidates_B = np.diff(np.searchsorted(candidates, bounds_B1))
    row = np.repeat(np.arange(len(allowed_B)), candidates_B)
    places = candidates - bounds_B1[row]

    # From the highest bits: the row (16), the order (32), the place in the row (16). Sorting these numbers keeps rows
    # together and puts each row's candidates in order.
    packed = order[candidates] >> np.uint64(32) << np.uint64(16)
    packed |= places.astype(np.uint64)
    packed |= row.astype(np.uint64) << np.uint64(48)
    packed.sort()

    # Take the first ones of each row, and convert them to places and then to indices into `order`.
    kept_B = np.minimum(count_B, candidates_B)
    packed = take_ranges(packed, offsets_of(candidates_B)[:-1], kept_B)
    kept_places = (packed & np.uint64(0xFFFF)).astype(np.int64)
    return kept_places + np.repeat(bounds_B1[:-1], kept_B)


def _likely_first(order: U64, bounds_B1: Ints, count_B: Ints, allowed_B: Ints, allowed: Bools | None) -> Bools:
    """Return a bool per item: all items that may be among the first `count_B` of their row, and few others.

    Order numbers are uniform, so a threshold of 1.25 times the wanted share plus 12 items rarely leaves a row with too
    few. If it does, all of the row's items are candidates.
    """
    sizes_B = np.diff(bounds_B1)
    share_B = np.minimum((1.25 * count_B + 12) / np.maximum(allowed_B, 1), 1.0)

    # 2**64 itself does not fit into 64 bits; rows with a share of 1 are handled below.
    threshold_B = (share_B * (2.0**64 - 2.0**12)).astype(np.uint64)
    likely = order <= np.repeat(threshold_B, sizes_B)
    if allowed is not None:
        likely &= allowed

    wanted_B = np.minimum(count_B, allowed_B)
    has_too_few_B = _count_true(likely, bounds_B1) < wanted_B
    takes_all_B = has_too_few_B | (share_B >= 1.0)
    if takes_all_B.any():
        of_such_rows = np.repeat(takes_all_B, sizes_B)
        likely |= of_such_rows if allowed is None else of_such_rows & allowed
    return likely


def _count_true(flags: Bools, bounds_B1: Ints) -> Ints:
    """Return (B,) int64: the number of true items in each row. Twice as fast as differences of a running sum."""
    return np.diff(np.searchsorted(np.flatnonzero(flags), bounds_B1))
