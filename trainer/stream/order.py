"""Which rows make up the global batches, in an order that follows from (data, seed, place) alone.

Every epoch visits every row once. Shards are shuffled, taken BLOCK_SHARDS at a time, and the rows of such a block are
shuffled together, so a reader holds one block and reads every shard once an epoch. A batch may span two epochs. To
find the rows at a place is arithmetic and one permutation of a block; nothing is replayed.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from schemas.ragged import offsets_of
from schemas.randomness import key, permutation

BLOCK_SHARDS = 8


class Order:
    """The endless sequence of rows over shards with `rows[i]` rows in shard i."""

    def __init__(self, rows: list[int], fingerprint: str, seed: int):
        self._rows = np.array(rows, dtype=np.int64)
        self.epoch_rows = int(self._rows.sum())
        self._identity = (seed, fingerprint)
        self._block = lru_cache(maxsize=2)(self._shuffled_block)

    def rows_at(self, start: int, count: int) -> NDArray[np.int64]:
        """(count, 3): epoch, shard and row in the shard, for places start to start + count of the sequence."""
        found = []
        while count > 0:
            epoch, place = divmod(start, self.epoch_rows)
            shards = permutation(len(self._rows), key(*self._identity, "shard order", epoch))
            begins = offsets_of(self._rows[shards])[::BLOCK_SHARDS]
            block = int(np.searchsorted(begins, place, side="right")) - 1
            rows = self._block(epoch, block)[place - begins[block] :][:count]
            found.append(np.column_stack([np.full(len(rows), epoch), rows]))
            start, count = start + len(rows), count - len(rows)
        return np.concatenate(found)

    def _shuffled_block(self, epoch: int, block: int) -> NDArray[np.int64]:
        """(rows of the block, 2): shard and row, shuffled."""
        shards = permutation(len(self._rows), key(*self._identity, "shard order", epoch))
        shards = shards[block * BLOCK_SHARDS :][:BLOCK_SHARDS]
        shard = np.repeat(shards, self._rows[shards])
        row = np.concatenate([np.arange(n) for n in self._rows[shards]])
        order = permutation(len(row), key(*self._identity, "row order", epoch, block))
        return np.column_stack([shard, row])[order]
