"""What permutation language modeling predicts, and in which order (XLNet, Yang et al., arXiv:1906.08237).

A row keeps its tokens: nothing is masked. Some tokens are targets. They are predicted one after the other, in a random
order, each from all ordinary tokens that are not targets and from the targets before it. Both draws follow
zihangdai/xlnet, data_utils.py:

    targets   `_sample_mask`: along the row, one span of 1 to 5 words (probabilities proportional to 1 / n), in a random
              place within a stretch of 1 / prob tokens for every token of the span; prob is 1 / 6 there. The rest of
              the row's budget is filled with words in random order.
    order     `_local_perm`: a random order of the targets and of the functional tokens, [SEP] and [CLS]. The latter
              are never targets, but only later ones see them, because their states may depend on targets.

Differences from that code:

- A span is 1 to 5 whole words. Google's loop looks at the wrong piece (`seg[beg]`, which always begins a word), so its
  spans are 1 to 5 pieces and cut words. Nor are words cut at the row's end or in the last draws. A word that
  exceeds the remaining budget is skipped.
- A span ends before a special token, and [UNK] is never a target. Google draws special tokens and drops them later.
- One order covers the whole row. Google's `perm_size` divides it at the point up to which memory is reused; there is
  no memory here.

Every random number comes from the row's own key, like those of masks (schemas/masking.py).

Letters: T tokens, B rows, W words, K targets, N tokens with a place in the order, A rows that a round processes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from schemas.mask_draws import STREAM_SIZE, WordSpans, find_words, take_groups
from schemas.masking import Masking, RowsToMask, budgets, draw_masks
from schemas.ragged import Bools, Ints, offsets_of, places_of_ranges
from schemas.randomness import U64, numbers, uniforms
from schemas.vocabulary import Vocabulary

SEEN_BY_ALL = -1
"""Marks, in place of a number in the order, a token that is neither a target nor functional."""

# Additional streams of a row's key; see schemas/mask_draws.py for the others.
PLACE_IN_ORDER_STREAM = 4  # counter: the token's place in its row
SPAN_LENGTH_STREAM = 5  # counter: the number of spans that the row already has, also for CONTEXT_STREAM
CONTEXT_STREAM = 6  # how many tokens of context come before the span

MAX_SPAN = 5
SPAN_SHARES = 1 / np.arange(1, MAX_SPAN + 1)
SPAN_SHARES /= SPAN_SHARES.sum()
"""Probabilities of spans of 1, 2, ... words."""


@dataclass(frozen=True)
class Targets:
    """K targets of B rows, in order of position, and the order in which they are predicted.

    positions_K: int64, indices into the flat tokens.
    offsets_B1: int64; row r's targets are offsets_B1[r] : offsets_B1[r + 1].
    order_T: int64: the token's number in its row's order, counted from 0, or SEEN_BY_ALL.
    """

    positions_K: Ints
    offsets_B1: Ints
    order_T: Ints


def draw_targets(rows: RowsToMask, masking: Masking, vocabulary: Vocabulary) -> Targets:
    """Choose the targets of each row and their order.

    The kind "ngram" means XLNet's own spans. With any other kind, the targets are the tokens that would be masked.
    Accepts at most 65,536 rows of at most 65,536 tokens each.
    """
    if masking.kind == "ngram":
        positions_K = _draw_spans(rows, masking, vocabulary)
    else:
        positions_K = draw_masks(rows, masking, vocabulary).positions_K

    offsets_B1 = np.searchsorted(positions_K, rows.offsets_B1)
    return Targets(positions_K, offsets_B1, _draw_order(rows, positions_K, vocabulary))


def _draw_order(rows: RowsToMask, positions_K: Ints, vocabulary: Vocabulary) -> Ints:
    """Return `Targets.order_T`, (T,) int64."""
    has_place_T = rows.ids_T == vocabulary.special_id("sep")
    has_place_T |= rows.ids_T == vocabulary.special_id("cls")
    has_place_T[positions_K] = True

    positions_N = np.flatnonzero(has_place_T)
    row_N = np.searchsorted(rows.offsets_B1, positions_N, side="right") - 1
    places_N = positions_N - rows.offsets_B1[row_N]
    draws_N = numbers(rows.keys_B[row_N], places_N + PLACE_IN_ORDER_STREAM * STREAM_SIZE)

    # Sort by row, and within a row by the draws. Equal draws, one in 2**64, keep the order of the tokens.
    sorted_N = np.lexsort((draws_N, row_N))
    first_B1 = np.searchsorted(positions_N, rows.offsets_B1)
    order_T = np.full(len(rows.ids_T), SEEN_BY_ALL, dtype=np.int64)
    order_T[positions_N[sorted_N]] = np.arange(len(sorted_N)) - first_B1[row_N]
    return order_T


def _draw_spans(rows: RowsToMask, masking: Masking, vocabulary: Vocabulary) -> Ints:
    """Return the positions of the tokens in XLNet's spans and in single words that fill each row's budget."""
    is_ordinary_T = ~vocabulary.is_special_V.take(rows.ids_T)
    words = find_words(is_ordinary_T, rows.word_starts_T, rows.offsets_B1, rows.keys_B)
    budget_B = budgets(np.diff(rows.offsets_B1), masking)

    walk = _Walk(words, _ends_of_stretches(words, is_ordinary_T), rows.offsets_B1, budget_B)
    walk.take_spans(masking.prob)

    # Spend what the walk has left of the budgets on single words.
    others = words.only(np.flatnonzero(~walk.taken_W))
    taken_others = take_groups(others, others, walk.left_B)
    taken_W = walk.taken_W
    taken_W[others.first_words[taken_others]] = True

    return places_of_ranges(words.positions[taken_W], words.sizes[taken_W])


def _ends_of_stretches(words: WordSpans, is_ordinary_T: Bools) -> Ints:
    """Return (W,) for each word the number of the first word after its stretch.

    A stretch is a series of words without a special token between them.
    """
    begins_W = ~is_ordinary_T[words.positions - 1]
    first_B = words.bounds_B1[:-1]
    begins_W[first_B[words.counts() > 0]] = True  # position 0 has no token before it: -1 above wrapped around

    begins = np.flatnonzero(begins_W)
    next_begin_W = np.searchsorted(begins, np.arange(len(begins_W)), side="right")
    return np.append(begins, len(begins_W))[next_begin_W]


class _Walk:
    """A walk along all rows at once that takes one span of words from every row in each round.

    taken_W: the words taken.
    left_B: tokens left in each row's budget.
    """

    def __init__(self, words: WordSpans, ends_W: Ints, offsets_B1: Ints, budget_B: Ints):
        self.taken_W = np.zeros(len(words.positions), dtype=bool)
        self.left_B = budget_B.copy()
        self._words = words
        self._token_sums_W1 = offsets_of(words.sizes)

        # A walk past the last word of the batch looks up word number W, so that number needs an end too.
        self._ends_W1 = np.append(ends_W, len(ends_W))

        # Where the next span's context begins, in the flat tokens.
        self._position_B = offsets_B1[:-1].copy()

    def take_spans(self, prob: float) -> None:
        """Walk until each row's budget is spent or its last word is passed."""
        rows_A = np.flatnonzero(self._words.counts())
        spans = 0
        while len(rows_A):
            rows_A = self._take_span(rows_A, spans, prob)
            spans += 1

    def _take_span(self, rows_A: Ints, number: int, prob: float) -> Ints:
        """Take span number `number` in these rows. Returns the rows that may have another span."""
        words = self._words
        keys_A = words.keys_B[rows_A]
        left_A = self.left_B[rows_A]

        words_A = np.minimum(_span_lengths(keys_A, number), left_A)
        chance_A = uniforms(keys_A, number + CONTEXT_STREAM * STREAM_SIZE)
        tokens_before_A = (chance_A * words_A / prob).astype(np.int64)

        # Take whole words from the first one that begins there or later, limited by the stretch and the budget.
        first_A = np.searchsorted(words.positions, self._position_B[rows_A] + tokens_before_A)
        sums_A = self._token_sums_W1[first_A]
        affordable_A = np.searchsorted(self._token_sums_W1, sums_A + left_A, side="right") - 1
        end_A = np.minimum(first_A + words_A, np.minimum(self._ends_W1[first_A], affordable_A))

        is_taken_A = (first_A < words.bounds_B1[rows_A + 1]) & (end_A > first_A)
        rows_A = rows_A[is_taken_A]
        first_A = first_A[is_taken_A]
        end_A = end_A[is_taken_A]
        self.taken_W[places_of_ranges(first_A, end_A - first_A)] = True

        # The context has 1 / prob tokens for each token of the span; the part that is not before the span comes after
        # it.
        tokens_A = self._token_sums_W1[end_A] - self._token_sums_W1[first_A]
        tokens_after_A = np.maximum(0, (tokens_A / prob).astype(np.int64) - tokens_before_A[is_taken_A])
        self._position_B[rows_A] = words.positions[first_A] + tokens_A + tokens_after_A
        self.left_B[rows_A] -= tokens_A
        return rows_A[self.left_B[rows_A] > 0]


def _span_lengths(keys_A: U64, number: int) -> Ints:
    """Return (A,) the number of words that the span with this number may have in each row."""
    chance_A = uniforms(keys_A, number + SPAN_LENGTH_STREAM * STREAM_SIZE)
    return np.searchsorted(np.cumsum(SPAN_SHARES)[:-1], chance_A, side="right") + 1
