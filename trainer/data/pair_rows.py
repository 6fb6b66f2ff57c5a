"""Rows of pair shards as flat arrays: many rows laid end to end, without padding.

Shape suffixes: B rows, T tokens of all rows, K masked tokens. A suffix of B1 means B + 1 offsets: row i occupies
offsets_B1[i] : offsets_B1[i + 1].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas.masking import Masks
from schemas.ragged import offsets_of, places_of_ranges, take_ranges
from schemas.row_checks import lengths_of
from trainer.models.batch import IGNORE_INDEX

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class PairRows:
    """B rows laid end to end in T tokens.

    word_starts_T: whether a word begins at a token. segment_b_B: place of segment B's first token within its row.
    labels_B: 0 or 1, or IGNORE_INDEX if the row has no pair label. These two are small integers (int32 and int8) in
    whole shards, of which many are in memory at a time, and int64 in rows taken from them.
    """

    ids_T: NDArray[Any]
    word_starts_T: NDArray[np.bool_]
    offsets_B1: Ints
    segment_b_B: NDArray[Any]
    labels_B: NDArray[Any]

    def lengths(self) -> Ints:
        """Return the number of tokens in each row, (B,)."""
        return np.diff(self.offsets_B1)

    def take(self, rows: Ints) -> PairRows:
        """Return the rows with these numbers, in this order."""
        # One take() of token indices copies all rows at once.
        starts = self.offsets_B1[rows]
        lengths = self.offsets_B1[rows + 1] - starts
        token_places = places_of_ranges(starts, lengths)

        return PairRows(
            ids_T=self.ids_T.take(token_places),
            word_starts_T=self.word_starts_T.take(token_places),
            offsets_B1=offsets_of(lengths),
            segment_b_B=self.segment_b_B[rows].astype(np.int64),
            labels_B=self.labels_B[rows].astype(np.int64),
        )


def join_rows(parts: list[PairRows]) -> PairRows:
    """Concatenate several sets of rows, in order."""
    if len(parts) == 1:
        return parts[0]

    return PairRows(
        ids_T=np.concatenate([part.ids_T for part in parts]),
        word_starts_T=np.concatenate([part.word_starts_T for part in parts]),
        offsets_B1=offsets_of(np.concatenate([part.lengths() for part in parts])),
        segment_b_B=np.concatenate([part.segment_b_B for part in parts]),
        labels_B=np.concatenate([part.labels_B for part in parts]),
    )


@dataclass(frozen=True)
class StoredMasks:
    """The masks that rows carry: `variants` of them for each row.

    The masks are lists of different lengths, laid end to end: variant v of row i is list number i * variants + v, which
    occupies offsets[n] : offsets[n + 1] for list number n. positions count from the row's first token; tokens are the
    ids that replace the tokens at these positions.
    """

    variants: int
    positions: NDArray[np.integer]
    tokens: NDArray[np.integer]
    offsets: Ints

    def take(self, rows_B: Ints, variant: int) -> Masks:
        """Return one variant of each of these rows. Positions count from the row's first token, as they are stored."""
        list_numbers_B = rows_B * self.variants + variant
        starts_B = self.offsets[list_numbers_B]
        counts_B = self.offsets[list_numbers_B + 1] - starts_B

        positions_in_row_K = take_ranges(self.positions, starts_B, counts_B).astype(np.int64)
        tokens_K = take_ranges(self.tokens, starts_B, counts_B)
        return Masks(positions_in_row_K, tokens_K, offsets_of(counts_B))


@dataclass(frozen=True)
class ShardRows:
    """All rows of one shard. stored: None if the rows carry no masks."""

    rows: PairRows
    stored: StoredMasks | None = None


def join_masks(parts: list[Masks]) -> Masks:
    """Concatenate the masks of several sets of rows, in order, without changing their positions."""
    counts_B = np.concatenate([np.diff(part.offsets_B1) for part in parts])
    return Masks(
        np.concatenate([part.positions_K for part in parts]),
        np.concatenate([part.seen_K for part in parts]),
        offsets_of(counts_B),
    )


def rows_from_table(table: pa.Table) -> PairRows:
    """Convert the table of a shard whose rows have been checked (schemas.row_checks).

    The checks ensure that no list is null, so the values of an Arrow list column are the rows end to end.
    """
    ids = table["input_ids"].combine_chunks()
    word_starts = table["word_starts"].combine_chunks()
    labels = table["pair_label"].combine_chunks().fill_null(IGNORE_INDEX)

    return PairRows(
        ids_T=ids.flatten().to_numpy(),
        word_starts_T=word_starts.flatten().to_numpy(zero_copy_only=False),
        offsets_B1=offsets_of(lengths_of(ids)),
        segment_b_B=table["segment_b_start"].to_numpy(),
        labels_B=labels.to_numpy(),
    )


def stored_masks_from_table(table: pa.Table, variants: int) -> StoredMasks:
    """Convert the stored masks of a shard, each of whose rows has `variants` of them."""
    # A column holds a list of lists for each row. One flatten() leaves one list for each variant of each row.
    positions = table["mask_positions"].combine_chunks().flatten()
    tokens = table["mask_tokens"].combine_chunks().flatten()

    return StoredMasks(
        variants=variants,
        positions=positions.flatten().to_numpy(),
        tokens=tokens.flatten().to_numpy(),
        offsets=offsets_of(lengths_of(positions)),
    )
