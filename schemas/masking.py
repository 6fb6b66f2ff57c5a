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

Letters: C candidates (tokens that are not special), W words, G groups, Q groups or words in drawn order, K masked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from schemas.ragged import offsets_of, take_ranges
from schemas.randomness import U64, numbers, uniforms
from schemas.vocabulary import Vocabulary

Kind = Literal["token", "whole_word", "ngram", "span"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_ORDER, _FATE, _REPLACEMENT, _LENGTH = 0, 1, 2, 3  # streams of a row: order, fate, random tokens, lengths of groups
_STREAM = 1 << 32
MOST_ROWS = 1 << 16
"""Rows in one call, and tokens in one row: both share a 64-bit number with 32 bits of random order."""

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

    At most MOST_ROWS rows, of as many tokens, at a time.
    """
    candidates_C = np.flatnonzero(~vocabulary.is_special_V[ids_T])
    rows = Rows.of(candidates_C, offsets_B1, keys_B)
    budget_B = budgets(np.diff(offsets_B1), masking)
    if masking.kind == "token":
        positions_K = rows.positions[rows.first_in_order(budget_B)]
    else:
        words = rows.only(_word_begins(rows, word_starts_T))
        groups = words if masking.kind == "whole_word" else words.only(_group_begins(words, rows, masking.kind))
        positions_K = rows.positions[_fill(groups, words, rows, budget_B)]
    positions_K.sort()
    counts_B = np.diff(np.searchsorted(positions_K, offsets_B1))
    row_K = np.repeat(np.arange(len(counts_B)), counts_B)
    fate_K = positions_K
    if masking.kind == "span":
        fate_K = groups.positions[np.searchsorted(groups.positions, positions_K, side="right") - 1]
    places_K, fates_K = positions_K - offsets_B1[row_K], fate_K - offsets_B1[row_K]
    seen_K = _seen(ids_T[positions_K], keys_B[row_K], places_K, fates_K, vocabulary)
    return Masks(positions_K, seen_K, offsets_of(counts_B))


@dataclass(frozen=True)
class Rows:
    """Some items of every row, in order: candidates, words or groups, each by the position of its first token.

    positions: into the flat tokens. row: each item's row. places: of the token in its row. bounds_B1: row r's items are
    bounds_B1[r] : bounds_B1[r + 1]. parents: each item's number among the items that it was picked from.
    """

    positions: Ints
    row: Ints
    places: Ints
    bounds_B1: Ints
    keys_B: U64
    parents: Ints

    @classmethod
    def of(cls, positions: Ints, offsets_B1: Ints, keys_B: U64) -> Rows:
        bounds_B1 = np.searchsorted(positions, offsets_B1)
        row = np.repeat(np.arange(len(keys_B)), np.diff(bounds_B1))
        return cls(positions, row, positions - offsets_B1[row], bounds_B1, keys_B, positions)

    def only(self, begins: Ints) -> Rows:
        """The items numbered `begins`, which rises."""
        bounds_B1 = np.searchsorted(begins, self.bounds_B1)
        return Rows(self.positions[begins], self.row[begins], self.places[begins], bounds_B1, self.keys_B, begins)

    def in_order(self) -> Ints:
        """The items' numbers, row by row and within a row in random order.

        One sort of plain integers, row | 32 random bits | number in the row, is ten times faster than sorting numbers
        by two keys; with the number inside no two are equal, so every machine sorts them alike.
        """
        order = numbers(self.keys_B[self.row], self.places + _ORDER * _STREAM)
        number = np.arange(len(self.row)) - self.bounds_B1[self.row]
        order >>= np.uint64(32)
        order <<= np.uint64(16)
        order |= number.astype(np.uint64)
        order |= self.row.astype(np.uint64) << np.uint64(48)
        order.sort()
        order &= np.uint64(0xFFFF)
        return order.astype(np.int64) + self.bounds_B1[self.row]

    def first_in_order(self, count_B: Ints) -> Ints:
        """At most `count_B` items of each row, the first in its random order."""
        starts_B, found_B = self.bounds_B1[:-1], np.diff(self.bounds_B1)
        return take_ranges(self.in_order(), starts_B, np.minimum(count_B, found_B))

    def ends(self, last: int) -> Ints:
        """Where each item ends among its parents: where the next one begins, or at `last`."""
        return np.append(self.parents[1:], last)


def _word_begins(candidates: Rows, word_starts_T: NDArray[np.bool_]) -> Ints:
    """Which candidates begin a word: marked so, or after a special token, or first in their row."""
    begins_C = word_starts_T[candidates.positions]
    begins_C |= np.diff(candidates.positions, prepend=-2) != 1
    begins_C[candidates.bounds_B1[:-1][np.diff(candidates.bounds_B1) > 0]] = True
    return np.flatnonzero(begins_C)


def _group_begins(words: Rows, candidates: Rows, kind: Kind) -> Ints:
    """Which words begin a group: where the drawn lengths of their row add up to, and after special tokens."""
    drawn = uniforms(words.keys_B[words.row], words.places + _LENGTH * _STREAM)
    length_W = np.searchsorted(np.cumsum(LENGTHS[kind])[:-1], drawn, side="right") + 1
    end_W1 = offsets_of(length_W)
    first_B = words.bounds_B1[:-1]
    begin_W = (end_W1[:-1] - end_W1[first_B[words.row]]) + first_B[words.row]  # as numbers among all words
    begins_W = np.diff(candidates.positions, prepend=-2)[words.parents] != 1
    begins_W[begin_W[begin_W < words.bounds_B1[words.row + 1]]] = True
    return np.flatnonzero(begins_W)


def _fill(groups: Rows, words: Rows, candidates: Rows, budget_B: Ints) -> Ints:
    """The candidates taken, by number: group by group in random order, each word that still fits its row's budget."""
    order_Q = groups.in_order()
    if groups is words:
        word_Q = order_Q
    else:
        starts_Q, ends_Q = groups.parents[order_Q], groups.ends(len(words.row))[order_Q]
        word_Q = take_ranges(np.arange(len(words.row)), starts_Q, ends_Q - starts_Q)
    size_W = words.ends(len(candidates.row)) - words.parents
    taken_W = np.zeros(len(size_W), dtype=bool)
    left_B = budget_B.copy()
    while len(word_Q):
        word_Q = word_Q[size_W[word_Q] <= left_B[words.row[word_Q]]]  # a word that no longer fits never will
        row_Q, size_Q = words.row[word_Q], size_W[word_Q]
        fits_Q = _cumulative(size_Q, row_Q) <= left_B[row_Q]
        taken_W[word_Q[fits_Q]] = True
        left_B -= np.bincount(row_Q[fits_Q], weights=size_Q[fits_Q], minlength=len(left_B)).astype(np.int64)
        word_Q = word_Q[~fits_Q]
    return take_ranges(np.arange(len(candidates.row)), words.parents[taken_W], size_W[taken_W])


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
