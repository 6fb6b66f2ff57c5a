"""Takes tokens or groups of words in random order until each row's budget is spent.

Everything here works on all rows of a batch at once, in numpy. Every unit has a random 64-bit number, and the first n
units of a row are those with the n lowest numbers. `first_in_order` finds them for all rows with one sort.

Letters: T tokens, B rows, W words, G groups, Q units in the order they were drawn, K masked tokens.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from schemas.ragged import group_starts, offsets_of, places_of_ranges, take_ranges
from schemas.randomness import U64, numbers, uniforms
from schemas.vocabulary import Vocabulary
from schemas.word_spans import FATE_STREAM, ORDER_STREAM, REPLACEMENT_STREAM, STREAM_SIZE, WordSpans

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def draw_tokens(maskable_T: Bools, offsets_B1: Ints, keys_B: U64, budget_B: Ints) -> Ints:
    """Return (K,) int64: positions of the maskable tokens that come first in each row's random order."""
    lengths_B = np.diff(offsets_B1)

    # A token's draw depends on its row's key and its place in the row, never on its place in the batch.
    places_T = np.arange(len(maskable_T))
    places_T -= np.repeat(offsets_B1[:-1], lengths_B)
    order_T = numbers(np.repeat(keys_B, lengths_B), places_T)

    positions, _ = first_in_order(order_T, offsets_B1, budget_B, maskable_T)
    return positions


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
    group_Q = _order_of(groups, order_G, enough_B)
    left_B = _take_words(groups, words, group_Q, budget_B, taken_W)

    # The few rows that are not full yet start over with all their groups. Starting over, instead of continuing, makes
    # the result independent of the estimate above.
    again_B = (left_B > 0) & (counts_B > enough_B)
    if again_B.any():
        taken_W[again_B[words.row]] = False
        all_groups_B = np.where(again_B, counts_B, 0)
        group_Q = _order_of(groups, order_G, all_groups_B)
        _take_words(groups, words, group_Q, budget_B, taken_W)
    return taken_W


def _order_of(groups: WordSpans, order_G: U64, first_B: Ints) -> Ints:
    """Return the numbers of each row's first groups in random order, row by row."""
    group_Q, _ = first_in_order(order_G, groups.bounds_B1, first_B)
    return group_Q


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


def first_in_order(order: U64, bounds_B1: Ints, count_B: Ints, allowed: Bools | None = None) -> tuple[Ints, Ints]:
    """Return the first `count_B` items of each row in random order, and (B,) how many there are.

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
    return kept_places + np.repeat(bounds_B1[:-1], kept_B), kept_B


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


def draw_fates(keys_K: U64, deciding_places_K: Ints) -> NDArray[np.float64]:
    """Return (K,) numbers in [0, 1), one per masked token; tokens with equal places in a row share theirs."""
    return uniforms(keys_K, deciding_places_K + FATE_STREAM * STREAM_SIZE)


def random_tokens(keys_K: U64, places_K: Ints, vocabulary: Vocabulary) -> NDArray[np.integer]:
    """Return (K,) ids, one per place, drawn uniformly from the ordinary tokens."""
    ordinary_ids = vocabulary.ordinary_ids
    draws_K = uniforms(keys_K, places_K + REPLACEMENT_STREAM * STREAM_SIZE)
    which_K = (draws_K * len(ordinary_ids)).astype(np.int64)
    return ordinary_ids[which_K]
