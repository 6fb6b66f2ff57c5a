"""A block: the rows of several shards, numbered consecutively, from which batches take rows.

The shards stay where they are, in this process's memory or in memory that the ranks of a node share, because joining
them would copy every token once more. Only the rows that a micro-batch takes are copied.

Shape suffixes: B rows, N all rows of the block, S shards, K masked tokens. S1 and B1 mean S + 1 and B + 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from schemas.masking import Masks
from schemas.ragged import offsets_of, take_ranges
from trainer.data.pair_rows import PairRows, ShardRows, join_masks, join_rows

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class RowsOfShards:
    """Some rows of a block, sorted by shard.

    rows_by_shard: for each shard that holds any of the rows: (its place in the block, the rows' numbers within it).
    place_of_B: for each row, in the order asked for, its place among the sorted rows.
    """

    rows_by_shard: list[tuple[int, Ints]]
    place_of_B: Ints


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
        wanted = self._by_shard(rows_B)
        taken = [self.shards[shard].rows.take(rows) for shard, rows in wanted.rows_by_shard]

        joined = join_rows(taken)
        return joined if len(taken) == 1 else joined.take(wanted.place_of_B)

    def take_masks(self, rows_B: Ints, variant: int) -> Masks:
        """Return one stored variant of each of these rows; positions count from the row's first token.

        Raises ValueError if the rows carry no masks. `variant` is taken modulo the number of stored variants.
        """
        wanted = self._by_shard(rows_B)
        parts = []
        for shard, rows in wanted.rows_by_shard:
            stored = self.shards[shard].stored
            if stored is None:
                raise ValueError("these rows carry no masks")
            parts.append(stored.take(rows, variant % stored.variants))

        # Bring the rows' lists back into the order in which the rows were asked for.
        joined = join_masks(parts)
        starts_B = joined.offsets_B1[wanted.place_of_B]
        counts_B = joined.offsets_B1[wanted.place_of_B + 1] - starts_B
        positions_K = take_ranges(joined.positions_K, starts_B, counts_B)
        seen_K = take_ranges(joined.seen_K, starts_B, counts_B)
        return Masks(positions_K, seen_K, offsets_of(counts_B))

    def _by_shard(self, rows_B: Ints) -> RowsOfShards:
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
        return RowsOfShards(rows_by_shard, place_of_B)
