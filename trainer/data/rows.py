"""Rows of pair shards as flat arrays: many rows laid end to end, without padding.

A block is the rows of several shards, numbered consecutively, from which batches take rows. The shards stay where they
are, in this process's memory or in memory that the ranks of a node share, because joining them would copy every token
once more. Only the rows that a micro-batch takes are copied.

Shape suffixes: B rows, T tokens of all rows, N all rows of a block, S shards, K masked tokens. A suffix of B1 means
B + 1 offsets: row i occupies offsets_B1[i] : offsets_B1[i + 1]. S1 means S + 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas.masking import Masks
from schemas.ragged import Ints, offsets_of, places_of_ranges, take_ranges
from schemas.randomness import U64, numbers
from schemas.row_checks import lengths_of
from trainer.models.batch import IGNORE_INDEX

SWAP_COUNTER = 1 << 48
"""The counter of the draw of a row's order, far above those of its masks, which are drawn from the same keys."""


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


# Blocks


class Block:
    """All rows of several shards, end to end in the order of the shards."""

    def __init__(self, shards: list[ShardRows]):
        self.shards = shards
        rows_per_shard = [len(shard.rows.offsets_B1) - 1 for shard in shards]
        self._first_rows_S1 = offsets_of(np.array(rows_per_shard, dtype=np.int64))

    @cached_property
    def lengths_N(self) -> NDArray[np.int32]:
        """The number of tokens of each row, (N,) int32. Cached, because every rank needs those of all batches."""
        return np.concatenate([shard.rows.lengths().astype(np.int32) for shard in self.shards])

    @property
    def rows(self) -> PairRows:
        """All rows, copied into one PairRows."""
        return join_rows([shard.rows for shard in self.shards])

    def identities(self, rows_B: Ints) -> tuple[Ints, Ints]:
        """Return the place of each row's shard in the block, and the row's number within the shard, both (B,) int64."""
        # The last shard that begins at or before the row holds it, so shards without rows are never chosen.
        shard_B = np.searchsorted(self._first_rows_S1, rows_B, side="right") - 1
        return shard_B, rows_B - self._first_rows_S1[shard_B]

    def take(self, rows_B: Ints) -> PairRows:
        """Return the rows with these numbers, in this order."""
        rows_by_shard, place_of_B = self._by_shard(rows_B)
        taken = [self.shards[shard].rows.take(rows) for shard, rows in rows_by_shard]

        joined = join_rows(taken)
        return joined if len(taken) == 1 else joined.take(place_of_B)

    def take_masks(self, rows_B: Ints, variant: int) -> Masks:
        """Return one stored variant of each of these rows; positions count from the row's first token.

        Raises ValueError if the rows carry no masks. `variant` is taken modulo the number of stored variants.
        """
        rows_by_shard, place_of_B = self._by_shard(rows_B)
        parts = []
        for shard, rows in rows_by_shard:
            stored = self.shards[shard].stored
            if stored is None:
                raise ValueError("these rows carry no masks")
            parts.append(stored.take(rows, variant % stored.variants))

        # Bring the rows' lists back into the order in which the rows were asked for.
        joined = join_masks(parts)
        return StoredMasks(1, joined.positions_K, joined.seen_K, joined.offsets_B1).take(place_of_B, 0)

    def _by_shard(self, rows_B: Ints) -> tuple[list[tuple[int, Ints]], Ints]:
        """Return for each shard that holds any of the rows its place in the block and the rows' numbers within it.

        Also returns where each row, in the order asked for, is among the rows sorted by shard.
        """
        # After a sort by shard, the rows of shard s are by_shard_B[bounds_S1[s] : bounds_S1[s + 1]].
        shard_B, row_B = self.identities(rows_B)
        by_shard_B = np.argsort(shard_B, kind="stable")
        bounds_S1 = np.searchsorted(shard_B[by_shard_B], np.arange(len(self.shards) + 1))

        rows_by_shard = []
        for shard in range(len(self.shards)):
            chosen = by_shard_B[bounds_S1[shard] : bounds_S1[shard + 1]]
            if len(chosen):
                rows_by_shard.append((shard, row_B[chosen]))

        # The inverse of the sort.
        place_of_B = np.empty_like(by_shard_B)
        place_of_B[by_shard_B] = np.arange(len(by_shard_B))
        return rows_by_shard, place_of_B


# The order of segments


def redraw_order(rows: PairRows, keys_B: U64, separators: int) -> PairRows:
    """Return rows of sentence-order prediction with the order of A and B redrawn: half of them are swapped.

    A shard holds one random order of each row. A second draw on top of it, from the row's own key, makes the order of
    an epoch as random as the shard's. A row keeps its length, so the places of rows in the data do not change.
    separators: the number of special tokens between A and B.
    """
    top_bits_B = numbers(keys_B, SWAP_COUNTER) >> np.uint64(63)
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
