"""Redraws the order of sentence-order prediction (SOP) each epoch: half of the rows have A and B swapped.

A shard holds one random order of each row. A second draw on top of it, from the row's own key, makes the order of an
epoch as random as the shard's. Like masks, it follows from (seed, epoch, row). A row keeps its length, so the places of
rows in the data do not change.

Shape suffixes: B rows, T tokens.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from schemas.ragged import places_of_ranges
from schemas.randomness import U64, numbers
from trainer.data.pair_rows import PairRows
from trainer.models.batch import IGNORE_INDEX

_SWAP_COUNTER = 1 << 48
"""The counter of this draw, far above those of the masks, which are drawn from the same keys."""


def redraw_order(rows: PairRows, keys_B: U64, separators: int) -> PairRows:
    """Return the rows with the order of A and B redrawn. separators: the number of special tokens between A and B."""
    top_bits_B = numbers(keys_B, _SWAP_COUNTER) >> np.uint64(63)
    has_pair_label_B = rows.labels_B != IGNORE_INDEX
    return swap_segments(rows, (top_bits_B == 1) & has_pair_label_B, separators)


def swap_segments(rows: PairRows, swapped_B: NDArray[np.bool_], separators: int) -> PairRows:
    """Swap the segments of the rows in `swapped_B`, and their labels with them.

    Example: `[CLS] A [SEP] B [SEP]`, label 0 -> `[CLS] B [SEP] A [SEP]`, label 1.
    """
    # A row has five pieces: [CLS], A, the separators, B and the last [SEP]. Arrays of pieces have the shape (5, B).
    one_B = np.ones_like(rows.segment_b_B)
    length_of_a_B = rows.segment_b_B - 1 - separators
    length_of_b_B = rows.lengths() - rows.segment_b_B - 1
    separators_B = np.full_like(rows.segment_b_B, separators)
    lengths = np.stack([one_B, length_of_a_B, separators_B, length_of_b_B, one_B])
    starts = rows.offsets_B1[:-1] + np.cumsum(lengths, axis=0) - lengths

    # In swapped rows piece 3 (B) comes second, and piece 1 (A) fourth.
    in_place = np.arange(5)[:, None]
    swapped = np.array([[0], [3], [2], [1], [4]])
    order = np.where(swapped_B, swapped, in_place)
    starts = np.take_along_axis(starts, order, axis=0)
    lengths = np.take_along_axis(lengths, order, axis=0)

    # Transposed to (B, 5) and flattened, the pieces follow each other row by row.
    places_T = places_of_ranges(starts.T.ravel(), lengths.T.ravel())
    return replace(
        rows,
        ids_T=rows.ids_T.take(places_T),
        word_starts_T=rows.word_starts_T.take(places_T),
        segment_b_B=lengths[:3].sum(axis=0),
        labels_B=np.where(swapped_B, 1 - rows.labels_B, rows.labels_B),
    )
