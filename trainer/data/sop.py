"""SOP's order, drawn again each epoch: half of the rows have A and B exchanged, and with them their label.

A shard holds one draw; on top of it comes another by the row's own key, so the order of an epoch is as random as the
shard's and follows from (seed, epoch, row) as masks do. A row keeps its length, so no place in the data moves.

Letters: B rows, T tokens.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from schemas.ragged import places_of_ranges
from schemas.randomness import U64, numbers
from trainer.data.dataset import NO_LABEL, PairRows

_EXCHANGE = 1 << 48  # the draw's counter, far from those of masks


def redraw_order(rows: PairRows, keys_B: U64, between: int) -> PairRows:
    """The rows with each order drawn again; `between` special tokens separate A and B."""
    drawn_B = numbers(keys_B, _EXCHANGE) >> np.uint64(63) == 1
    return exchange_segments(rows, drawn_B & (rows.labels_B != NO_LABEL), between)


def exchange_segments(rows: PairRows, which_B: NDArray[np.bool_], between: int) -> PairRows:
    """Example: `[CLS] A [SEP] B [SEP]`, label 0 -> `[CLS] B [SEP] A [SEP]`, label 1, for the rows in `which_B`."""
    a_B = rows.segment_b_B - 1 - between
    lengths = np.stack(
        [np.ones_like(a_B), a_B, np.full_like(a_B, between), rows.lengths() - rows.segment_b_B - 1, np.ones_like(a_B)]
    )
    starts = rows.offsets_B1[:-1] + np.cumsum(lengths, axis=0) - lengths
    order = np.where(which_B, np.array([[0], [3], [2], [1], [4]]), np.arange(5)[:, None])
    starts, lengths = (np.take_along_axis(values, order, axis=0) for values in (starts, lengths))
    places_T = places_of_ranges(starts.T.ravel(), lengths.T.ravel())
    return replace(
        rows,
        ids_T=rows.ids_T.take(places_T),
        word_starts_T=rows.word_starts_T.take(places_T),
        segment_b_B=lengths[:3].sum(axis=0),
        labels_B=np.where(which_B, 1 - rows.labels_B, rows.labels_B),
    )
