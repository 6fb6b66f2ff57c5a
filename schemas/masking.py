"""The meaning of a mask: which tokens of a row are predicted and what the model sees in their place.

One implementation draws the trainer's masks as rows are read and the masks that pairs store. It works on many rows at
once: B rows laid end to end in flat arrays of T tokens, row r at offsets_B1[r] : offsets_B1[r + 1]. Every number
comes from the row's own key, so a row's mask depends neither on its neighbours nor on who reads it.

    budget      min(max_predictions, max(1, round(prob * n))), n counting special tokens (google-research/bert)
    token       single tokens, uniformly without replacement
    whole_word  whole words in random order; one that would exceed the budget is skipped (google-research/bert)
    ngram       1 to 3 words together, with 6/11, 3/11 and 2/11 (ALBERT, arXiv:1909.11942)
    span        1 to 10 words together, geometric with 0.2, truncated and renormalised: 3.797 on average (SpanBERT,
                arXiv:1907.10529)
    seen        80% [MASK], 10% the token itself, 10% random ordinary tokens: one fate for a span, as in SpanBERT, and
                one for every piece in all other kinds, as Google's and ALBERT's code have it

N-grams and spans are drawn by laying groups of drawn lengths over the row's words, ended by special tokens, and taking
groups in random order. The words of a group are taken in order while they fit, so the last one may be shortened.

Letters: W words, G groups, Q groups or words in drawn order, K masked tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from schemas.ragged import offsets_of, places_of_ranges, take_ranges
from schemas.randomness import U64, numbers, uniforms
from schemas.vocabulary import Vocabulary

Kind = Literal["token", "whole_word", "ngram", "span"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_ORDER, _FATE, _REPLACEMENT, _LENGTH = 0, 1, 2, 3  # streams of a row: order, fate, random tokens, lengths of groups
_STREAM = 1 << 32
_NGRAM = np.array([6, 3, 2]) / 11
_SPAN = 0.2 * np.power(0.8, np.arange(10.0)) / (1 - 0.8**10)
LENGTHS: dict[str, NDArray[np.float64]] = {"ngram": _NGRAM, "span": _SPAN}
"""Of the kinds that mask several words together: how likely 1, 2, ... words are."""
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Masking:
    """How to mask: `kind`, the share `prob` of a row, and at most `max_predictions` tokens of it (None: no limit)."""

    kind: Kind = "token"
    prob: float = 0.15
    max_predictions: int | None = None


@dataclass(frozen=True)
class Masks:
    """K masked tokens of B rows, in order of position.

    positions_K: int64 into the flat tokens. seen_K: the ids the model sees there. offsets_B1: row r's masks are
    offsets_B1[r] : offsets_B1[r + 1].
    """

    positions_K: Ints
    seen_K: NDArray[np.integer]
    offsets_B1: Ints


def budgets(lengths_B: Ints, masking: Masking) -> Ints:
    """How many tokens of each row may be masked. Rounds halves to even, as Python and Google's code do."""
    budget_B = np.maximum(1, np.rint(lengths_B * masking.prob).astype(np.int64))
    return budget_B if masking.max_predictions is None else np.minimum(budget_B, masking.max_predictions)


def draw_masks(
    ids_T: NDArray[np.integer],
    offsets_B1: Ints,
    word_starts_T: NDArray[np.bool_],
    keys_B: U64,
    masking: Masking,
    vocabulary: Vocabulary,
) -> Masks:
    """Choose the masked tokens of each row and what the model sees there; special tokens are never chosen.

    At most 65,536 rows, of as many tokens, at a time: both share a 64-bit number with 32 bits of random order.
    """
    may_T = ~vocabulary.is_special_V.take(ids_T)
    budget_B = budgets(np.diff(offsets_B1), masking)
    groups = None
    if masking.kind == "token":
        positions_K = _draw_tokens(may_T, offsets_B1, keys_B, budget_B)
    else:
        words, size_W = _words(may_T, word_starts_T, offsets_B1, keys_B)
        groups = words if masking.kind == "whole_word" else words.only(_group_begins(words, may_T, masking.kind))
        taken_W = _fill(groups, words, size_W, budget_B)
        positions_K = places_of_ranges(words.positions[taken_W], size_W[taken_W])
    positions_K.sort()
    counts_B = np.diff(np.searchsorted(positions_K, offsets_B1))
    row_K = np.repeat(np.arange(len(counts_B)), counts_B)
    fate_K = positions_K
    if groups is not None and masking.kind == "span":
        fate_K = groups.positions[np.searchsorted(groups.positions, positions_K, side="right") - 1]
    places_K, fates_K = positions_K - offsets_B1[row_K], fate_K - offsets_B1[row_K]
    seen_K = _seen(ids_T[positions_K], keys_B[row_K], places_K, fates_K, vocabulary)
    return Masks(positions_K, seen_K, offsets_of(counts_B))


def _draw_tokens(may_T: NDArray[np.bool_], offsets_B1: Ints, keys_B: U64, budget_B: Ints) -> Ints:
    """The tokens of each row that come first in its random order, among those that may be chosen."""
    lengths_B = np.diff(offsets_B1)
    places_T = np.arange(len(may_T))
    places_T -= np.repeat(offsets_B1[:-1], lengths_B)
    order_T = numbers(np.repeat(keys_B, lengths_B), places_T)
    return first_in_order(order_T, offsets_B1, budget_B, may_T)[0]


@dataclass(frozen=True)
class WordSpans:
    """Words or groups of words of every row, in order, each by the position of its first token.

    positions: into the flat tokens. row: each item's row. places: of the token in its row. bounds_B1: row r's items are
    bounds_B1[r] : bounds_B1[r + 1]. parents: each group's first word, by number.
    """

    positions: Ints
    row: Ints
    places: Ints
    bounds_B1: Ints
    keys_B: U64
    parents: Ints

    @classmethod
    def of(cls, positions: Ints, offsets_B1: Ints, keys_B: U64) -> WordSpans:
        bounds_B1 = np.searchsorted(positions, offsets_B1)
        counts_B = np.diff(bounds_B1)
        places = positions - np.repeat(offsets_B1[:-1], counts_B)
        return cls(positions, np.repeat(np.arange(len(keys_B)), counts_B), places, bounds_B1, keys_B, positions)

    def only(self, begins: Ints) -> WordSpans:
        """The items numbered `begins`, which rises."""
        bounds_B1 = np.searchsorted(begins, self.bounds_B1)
        return WordSpans(self.positions[begins], self.row[begins], self.places[begins], bounds_B1, self.keys_B, begins)

    def counts(self) -> Ints:
        """(B,) how many each row has."""
        return np.diff(self.bounds_B1)

    def draw(self, stream: int) -> U64:
        """A random number for each item."""
        return numbers(np.repeat(self.keys_B, self.counts()), self.places + stream * _STREAM)


def first_in_order(
    order: U64, bounds_B1: Ints, count_B: Ints, may: NDArray[np.bool_] | None = None
) -> tuple[Ints, Ints]:
    """(numbers of items, (B,) how many): at most `count_B` items of each row, those with the lowest `order`.

    `order` is random; of its bits the upper 32 decide. Only items below a threshold are sorted, which a row seldom has
    too few of; then all of the row's are. One sort of plain integers, row | 32 bits of order | number in the row, is
    ten times faster than sorting numbers by two keys; with the number inside no two are equal, so every machine sorts
    them alike.
    """
    found_B = np.diff(bounds_B1)
    if may is not None:
        found_B = found_B - _sums(~may, bounds_B1)
    near = np.flatnonzero(_near(order, bounds_B1, count_B, found_B, may))
    near_B = np.diff(np.searchsorted(near, bounds_B1))
    row = np.repeat(np.arange(len(found_B)), near_B)
    packed = order[near] >> np.uint64(32) << np.uint64(16)
    packed |= (near - bounds_B1[row]).astype(np.uint64)
    packed |= row.astype(np.uint64) << np.uint64(48)
    packed.sort()
    kept_B = np.minimum(count_B, near_B)
    packed = take_ranges(packed, offsets_of(near_B)[:-1], kept_B) & np.uint64(0xFFFF)
    return packed.astype(np.int64) + np.repeat(bounds_B1[:-1], kept_B), kept_B


def _near(
    order: U64, bounds_B1: Ints, count_B: Ints, found_B: Ints, may: NDArray[np.bool_] | None
) -> NDArray[np.bool_]:
    """Items among which the first `count_B` of every row surely are."""
    sizes_B = np.diff(bounds_B1)
    share_B = np.minimum((1.25 * count_B + 12) / np.maximum(found_B, 1), 1.0)
    near = order <= np.repeat((share_B * (2.0**64 - 2.0**12)).astype(np.uint64), sizes_B)
    if may is not None:
        near &= may
    few_B = (_sums(near, bounds_B1) < np.minimum(count_B, found_B)) | (share_B >= 1.0)
    if few_B.any():
        near |= np.repeat(few_B, sizes_B) if may is None else np.repeat(few_B, sizes_B) & may
    return near


def _sums(true: NDArray[np.bool_], bounds_B1: Ints) -> Ints:
    """(B,) how many items of each row are true; twice as fast as by a running sum."""
    return np.diff(np.searchsorted(np.flatnonzero(true), bounds_B1))


def _words(
    may_T: NDArray[np.bool_], word_starts_T: NDArray[np.bool_], offsets_B1: Ints, keys_B: U64
) -> tuple[WordSpans, Ints]:
    """(all words, their tokens): one begins where it is marked, after a special token, and at its row's start."""
    begins_T = word_starts_T.copy()
    begins_T[1:] |= ~may_T[:-1]
    begins_T[offsets_B1[:-1]] = True
    begins_T &= may_T
    words = WordSpans.of(np.flatnonzero(begins_T), offsets_B1, keys_B)
    size_W = np.diff(np.append(words.positions, len(may_T)))
    after = np.searchsorted(words.positions, np.flatnonzero(~may_T)) - 1  # the word before each special token
    np.subtract.at(size_W, after[after >= 0], 1)
    return words, size_W


def _group_begins(words: WordSpans, may_T: NDArray[np.bool_], kind: Kind) -> Ints:
    """Which words begin a group: where the drawn lengths of their row add up to, and after special tokens."""
    length_W = _length_table(kind)[words.draw(_LENGTH) >> np.uint64(48)]
    end_W1, counts_B = offsets_of(length_W), words.counts()
    first_B, last_B = words.bounds_B1[:-1], words.bounds_B1[1:]
    begin_W = end_W1[:-1] - np.repeat(end_W1[first_B] - first_B, counts_B)  # as numbers among all words
    begins_W = ~may_T[words.positions - 1]
    begins_W[first_B[counts_B > 0]] = True
    begins_W[begin_W[begin_W < np.repeat(last_B, counts_B)]] = True
    return np.flatnonzero(begins_W)


@lru_cache
def _length_table(kind: Kind) -> NDArray[np.int64]:
    """65,536 lengths of groups in their shares, to be looked up by 16 random bits.

    All threads of a process share the table, so nobody may write to it. Two threads may compute it at once: equal ones.
    """
    steps = (np.arange(1 << 16) + 0.5) / (1 << 16)
    table = np.searchsorted(np.cumsum(LENGTHS[kind])[:-1], steps, side="right") + 1
    table.setflags(write=False)
    return table


def _fill(groups: WordSpans, words: WordSpans, size_W: Ints, budget_B: Ints) -> NDArray[np.bool_]:
    """(W,) the words taken: group by group in random order, each word that still fits its row's budget.

    As every word has a token, most rows are full after as many groups as hold their budget in words on average, and
    some more; the few that are not are done again with all their groups.
    """
    taken_W = np.zeros(len(size_W), dtype=bool)
    order_G, counts_B = groups.draw(_ORDER), groups.counts()
    enough_B = budget_B * len(order_G) // max(len(size_W), 1) + 8
    left_B = _take_words(groups, words, size_W, order_G, enough_B, budget_B, taken_W)
    again_B = (left_B > 0) & (counts_B > enough_B)
    if again_B.any():
        taken_W[again_B[words.row]] = False
        _take_words(groups, words, size_W, order_G, np.where(again_B, counts_B, 0), budget_B, taken_W)
    return taken_W


def _take_words(
    groups: WordSpans,
    words: WordSpans,
    size_W: Ints,
    order_G: U64,
    first_B: Ints,
    budget_B: Ints,
    taken_W: NDArray[np.bool_],
) -> Ints:
    """Mark in `taken_W` what fits of each row's first groups; (B,) what is left of the budgets."""
    word_Q, _ = first_in_order(order_G, groups.bounds_B1, first_B)
    if groups is not words:
        ends_G = np.append(groups.parents[1:], len(size_W))
        starts_Q = groups.parents[word_Q]
        word_Q = places_of_ranges(starts_Q, ends_G[word_Q] - starts_Q)
    left_B = budget_B.copy()
    while len(word_Q):
        row_Q, size_Q = words.row[word_Q], size_W[word_Q]
        fits_Q = _cumulative(size_Q, row_Q) <= left_B[row_Q]
        taken_W[word_Q[fits_Q]] = True
        left_B -= np.bincount(row_Q[fits_Q], weights=size_Q[fits_Q], minlength=len(left_B)).astype(np.int64)
        word_Q, row_Q, size_Q = word_Q[~fits_Q], row_Q[~fits_Q], size_Q[~fits_Q]
        word_Q = word_Q[size_Q <= left_B[row_Q]]  # a word that no longer fits never will
    return left_B


def _cumulative(size_Q: Ints, row_Q: Ints) -> Ints:
    """Running sums of the sizes that start again at each row; `row_Q` is sorted."""
    total_Q = np.cumsum(size_Q)
    begins_Q = np.flatnonzero(np.diff(row_Q, prepend=-1))
    before_Q = np.repeat(total_Q[begins_Q] - size_Q[begins_Q], np.diff(np.append(begins_Q, len(row_Q))))
    return total_Q - before_Q


def _seen(
    ids_K: NDArray[np.integer], keys_K: U64, places_K: Ints, fates_K: Ints, vocabulary: Vocabulary
) -> NDArray[np.integer]:
    """What the model sees at the chosen places: 80% [MASK], 10% the token, 10% a token drawn uniformly.

    Places of equal `fates_K` have one fate; the random tokens differ.
    """
    fate_K = uniforms(keys_K, fates_K + _FATE * _STREAM)
    ordinary = vocabulary.ordinary_ids
    drawn_K = (uniforms(keys_K, places_K + _REPLACEMENT * _STREAM) * len(ordinary)).astype(np.int64)
    seen_K = np.where(fate_K < 0.8, vocabulary.special_id("mask"), ids_K)
    return np.where(fate_K >= 0.9, ordinary[drawn_K], seen_K).astype(ids_K.dtype)
