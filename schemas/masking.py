"""The meaning of a mask: which tokens of a row are predicted, and what the model sees in their place.

One implementation serves both uses: the trainer draws masks as it reads rows, and `pairs --static_masks` stores them.
It works on many rows at once: B rows are end to end in flat arrays of T tokens, row r at offsets_B1[r] : offsets_B1[r +
1]. Every random number comes from the row's own key (schemas/randomness.py), so a row's mask depends neither on its
neighbors nor on which process reads it.

How many tokens, and which:

    budget      min(max_predictions, max(1, round(prob * n))), where n includes special tokens (google-research/bert)
    token       single tokens, uniformly without replacement
    whole_word  whole words in random order; a word that would exceed the budget is skipped (google-research/bert)
    ngram       groups of 1 to 3 words with probabilities 6/11, 3/11 and 2/11 (ALBERT, arXiv:1909.11942)
    span        groups of 1 to 10 words, geometric with p = 0.2, truncated and renormalized: 3.797 words on average
                (SpanBERT, arXiv:1907.10529)

What the model sees: 80% [MASK], 10% the token itself, 10% a random ordinary token, or other shares. All tokens of a
span share one such fate, as in SpanBERT; in the other kinds each token has its own, as in Google's and ALBERT's code.

mask_draws.py finds words and groups of words, and takes tokens or groups in random order until the budget is spent.

Letters: T tokens, B rows, K masked tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from schemas.mask_draws import (
    FATE_STREAM,
    KINDS,
    REPLACEMENT_STREAM,
    STREAM_SIZE,
    Ints,
    Kind,
    WordSpans,
    draw_tokens,
    find_words,
    group_words,
    take_groups,
)
from schemas.ragged import places_of_ranges
from schemas.randomness import U64, uniforms
from schemas.vocabulary import Vocabulary

__all__ = ["KINDS", "Kind", "Masking", "Masks", "RowsToMask", "budgets", "draw_masks"]


@dataclass(frozen=True)
class Masking:
    """How to mask: the kind, the share `prob` of a row, and at most `max_predictions` tokens per row (None: no limit).

    shown: the shares of masked tokens for which the model sees [MASK], and the token itself. For the rest it sees a
    random token.
    """

    kind: Kind = "token"
    prob: float = 0.15
    max_predictions: int | None = None
    shown: tuple[float, float] = (0.8, 0.1)


@dataclass(frozen=True)
class RowsToMask:
    """B rows laid end to end, each with its own key.

    ids_T: integers, token ids.
    offsets_B1: int64, where each row begins, and the end.
    word_starts_T: bool, true where a word begins.
    keys_B: uint64, the rows' random keys.
    """

    ids_T: NDArray[np.integer]
    offsets_B1: Ints
    word_starts_T: NDArray[np.bool_]
    keys_B: U64


@dataclass(frozen=True)
class Masks:
    """K masked tokens of B rows, in order of position.

    positions_K: int64, indices into the flat tokens.
    seen_K: the ids that the model sees there, in the type of the rows' ids.
    offsets_B1: int64; row r's masks are offsets_B1[r] : offsets_B1[r + 1].
    """

    positions_K: Ints
    seen_K: NDArray[np.integer]
    offsets_B1: Ints


def budgets(lengths_B: Ints, masking: Masking) -> Ints:
    """Return (B,) int64: how many tokens of each row may be masked. Halves round to even, as in Google's code."""
    budget_B = np.maximum(1, np.rint(lengths_B * masking.prob).astype(np.int64))
    if masking.max_predictions is None:
        return budget_B
    return np.minimum(budget_B, masking.max_predictions)


def draw_masks(rows: RowsToMask, masking: Masking, vocabulary: Vocabulary) -> Masks:
    """Choose the masked tokens of each row and what the model sees there. Special tokens are never chosen.

    Accepts at most 65,536 rows of at most 65,536 tokens each: `first_in_order` packs both numbers into 16 bits.
    """
    maskable_T = ~vocabulary.is_special_V.take(rows.ids_T)
    budget_B = budgets(np.diff(rows.offsets_B1), masking)

    if masking.kind == "token":
        positions_K = draw_tokens(maskable_T, rows.offsets_B1, rows.keys_B, budget_B)
        positions_K.sort()
        deciding_K = positions_K
    else:
        words = find_words(maskable_T, rows.word_starts_T, rows.offsets_B1, rows.keys_B)
        groups = words if masking.kind == "whole_word" else group_words(words, maskable_T, masking.kind)
        taken_W = take_groups(groups, words, budget_B)

        positions_K = places_of_ranges(words.positions[taken_W], words.sizes[taken_W])
        positions_K.sort()
        deciding_K = _deciding_positions(positions_K, groups, masking.kind)

    return _with_seen_tokens(rows, positions_K, deciding_K, masking, vocabulary)


def _deciding_positions(positions_K: Ints, groups: WordSpans, kind: Kind) -> Ints:
    """Return (K,) the position whose draw decides each token's fate: its span's first token, otherwise its own."""
    if kind != "span":
        return positions_K

    span_K = np.searchsorted(groups.positions, positions_K, side="right") - 1
    return groups.positions[span_K]


def _with_seen_tokens(
    rows: RowsToMask, positions_K: Ints, deciding_K: Ints, masking: Masking, vocabulary: Vocabulary
) -> Masks:
    """Draw what the model sees at the chosen positions. deciding_K: the positions whose draws decide their fates."""
    offsets_B1 = np.searchsorted(positions_K, rows.offsets_B1)
    row_K = np.repeat(np.arange(len(rows.keys_B)), np.diff(offsets_B1))
    keys_K = rows.keys_B[row_K]

    # Counters are places within the row, never within the batch: a row draws the same fates in any batch.
    row_begins_K = rows.offsets_B1[row_K]
    fate_K = uniforms(keys_K, deciding_K - row_begins_K + FATE_STREAM * STREAM_SIZE)
    which_K = uniforms(keys_K, positions_K - row_begins_K + REPLACEMENT_STREAM * STREAM_SIZE)
    ordinary_ids = vocabulary.ordinary_ids
    random_K = ordinary_ids[(which_K * len(ordinary_ids)).astype(np.int64)]

    masked, kept = masking.shown
    seen_K = np.where(fate_K < masked, vocabulary.special_id("mask"), rows.ids_T[positions_K])
    seen_K = np.where(fate_K >= masked + kept, random_K, seen_K).astype(rows.ids_T.dtype)
    return Masks(positions_K, seen_K, offsets_B1)
