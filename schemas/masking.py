"""The meaning of a mask: which tokens of a row are predicted and what the model sees in their place.

One implementation draws the trainer's masks as rows are read and any mask that is stored. It works on many rows at
once: B rows laid end to end in flat arrays of T tokens, row r at offsets_B1[r] : offsets_B1[r + 1]. Every number
comes from the row's own key, so a row's mask depends neither on its neighbours nor on who reads it.

    budget    min(max_predictions, max(1, round(prob * n))), n counting special tokens (google-research/bert)
    token     single tokens, uniformly without replacement
    whole_word  whole words in random order; one that would exceed the budget is skipped (google-research/bert)
    seen      80% [MASK], 10% the token itself, 10% a random ordinary token, drawn for each token
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from schemas.ragged import offsets_of
from schemas.randomness import U64, numbers, uniforms
from schemas.vocabulary import Vocabulary

Kind = Literal["token", "whole_word"]
_ORDER, _FATE, _REPLACEMENT = 0, 1, 2  # streams of a row: which tokens, their fate, random tokens
_STREAM = 1 << 32


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

    positions_K: NDArray[np.int64]
    seen_K: NDArray[np.integer]
    offsets_B1: NDArray[np.int64]


def budgets(lengths_B: NDArray[np.int64], masking: Masking) -> NDArray[np.int64]:
    """How many tokens of each row may be masked. Rounds halves to even, as Python and Google's code do."""
    budget_B = np.maximum(1, np.rint(lengths_B * masking.prob).astype(np.int64))
    return budget_B if masking.max_predictions is None else np.minimum(budget_B, masking.max_predictions)


def draw_masks(
    ids_T: NDArray[np.integer],
    offsets_B1: NDArray[np.int64],
    word_starts_T: NDArray[np.bool_],
    keys_B: U64,
    masking: Masking,
    vocabulary: Vocabulary,
) -> Masks:
    """Choose the masked tokens of each row and what the model sees there; special tokens are never chosen.

    At most 65,536 rows at a time.
    """
    lengths_B = np.diff(offsets_B1)
    row_T = np.repeat(np.arange(len(lengths_B)), lengths_B)
    candidates_C = np.flatnonzero(~vocabulary.is_special_V[ids_T])
    unit_C = _units(candidates_C, row_T, word_starts_T, masking.kind)
    chosen_C = _choose(candidates_C, unit_C, row_T, offsets_B1, keys_B, budgets(lengths_B, masking))
    positions_K = candidates_C[chosen_C]
    row_K = row_T[positions_K]
    seen_K = _seen(ids_T[positions_K], keys_B[row_K], positions_K - offsets_B1[row_K], vocabulary)
    counts_B = np.bincount(row_K, minlength=len(lengths_B))
    return Masks(positions_K, seen_K, offsets_of(counts_B))


def _units(
    candidates_C: NDArray[np.int64], row_T: NDArray[np.int64], word_starts_T: NDArray[np.bool_], kind: Kind
) -> NDArray[np.int64]:
    """(C,) the number of the unit, counted from 0, that is masked as one with each candidate."""
    if kind == "token":
        return np.arange(len(candidates_C))
    follows_C = np.zeros(len(candidates_C), dtype=bool)  # true where a candidate goes on with the word before it
    follows_C[1:] = (np.diff(candidates_C) == 1) & (row_T[candidates_C[1:]] == row_T[candidates_C[:-1]])
    follows_C &= ~word_starts_T[candidates_C]
    return np.cumsum(~follows_C) - 1


def _choose(
    candidates_C: NDArray[np.int64],
    unit_C: NDArray[np.int64],
    row_T: NDArray[np.int64],
    offsets_B1: NDArray[np.int64],
    keys_B: U64,
    budget_B: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """(C,) true for the candidates of the units taken: in random order, each unit that still fits its row's budget."""
    if len(candidates_C) == 0:
        return np.zeros(0, dtype=bool)
    size_U = np.bincount(unit_C)
    first_U = candidates_C[offsets_of(size_U)[:-1]]
    row_U = row_T[first_U]
    order_U = numbers(keys_B[row_U], first_U - offsets_B1[row_U] + _ORDER * _STREAM)
    # Row and order in one integer sort ten times faster than the two do; 48 bits of order are plenty.
    queue = np.argsort(row_U.astype(np.uint64) << np.uint64(48) | order_U >> np.uint64(16), kind="stable")
    taken_U = np.zeros(len(size_U), dtype=bool)
    left_B = budget_B.copy()
    while len(queue):
        queue = queue[size_U[queue] <= left_B[row_U[queue]]]  # a unit that no longer fits never will
        row_Q, size_Q = row_U[queue], size_U[queue]
        fits_Q = _cumulative(size_Q, row_Q) <= left_B[row_Q]
        taken_U[queue[fits_Q]] = True
        left_B -= np.bincount(row_Q[fits_Q], weights=size_Q[fits_Q], minlength=len(left_B)).astype(np.int64)
        queue = queue[~fits_Q]
    return taken_U[unit_C]


def _cumulative(size_Q: NDArray[np.int64], row_Q: NDArray[np.int64]) -> NDArray[np.int64]:
    """Running sums of the sizes that start again at each row; `row_Q` is sorted."""
    total_Q = np.cumsum(size_Q)
    begins_Q = np.flatnonzero(np.diff(row_Q, prepend=-1))
    before_Q = np.repeat(total_Q[begins_Q] - size_Q[begins_Q], np.diff(np.append(begins_Q, len(row_Q))))
    return total_Q - before_Q


def _seen(
    ids_K: NDArray[np.integer], keys_K: U64, places_K: NDArray[np.int64], vocabulary: Vocabulary
) -> NDArray[np.integer]:
    """What the model sees at the chosen places: 80% [MASK], 10% the token, 10% a token drawn uniformly."""
    fate_K = uniforms(keys_K, places_K + _FATE * _STREAM)
    ordinary = vocabulary.ordinary_ids
    drawn_K = (uniforms(keys_K, places_K + _REPLACEMENT * _STREAM) * len(ordinary)).astype(np.int64)
    seen_K = np.where(fate_K < 0.8, vocabulary.special_id("mask"), ids_K)
    return np.where(fate_K >= 0.9, ordinary[drawn_K], seen_K).astype(ids_K.dtype)
