"""Which rows make up the global batches, in an order that follows from (data, seed, place) alone.

Every epoch visits every row once. Shards are shuffled, taken BLOCK_SHARDS at a time, and the rows of such a block are
shuffled together, so a reader holds one block and reads every shard once an epoch. A place in the endless sequence is
a number of rows, or of tokens when batches hold a number of tokens: a row is in the batch in which its first token
lies. To find the rows at a place is arithmetic on the manifest and one permutation of a block; nothing is replayed.

Letters: N rows of one block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from schemas.ragged import offsets_of
from schemas.randomness import key, permutation

BLOCK_SHARDS = 8
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class RowRange:
    """Rows of one block in their order: numbers in the block, whose `shards` lie end to end."""

    epoch: int
    shards: tuple[int, ...]
    rows_N: Ints


class Order:
    """The endless sequence of rows over shards with `rows[i]` rows and, where places are tokens, `tokens[i]` tokens."""

    def __init__(
        self,
        rows: list[int],
        fingerprint: str,
        seed: int,
        tokens: list[int] | None = None,
        lengths: Callable[[tuple[int, ...]], Ints] | None = None,
    ):
        """`lengths` gives the tokens of every row of some shards end to end; with it places are tokens."""
        self._rows = np.array(rows, dtype=np.int64)
        self._sizes = self._rows if tokens is None else np.array(tokens, dtype=np.int64)
        self._lengths = lengths
        self.epoch_size = int(self._sizes.sum())
        self._identity = (seed, fingerprint)
        self._shuffled = lru_cache(maxsize=2)(self._shuffle)
        self._shard_order = lru_cache(maxsize=4)(self._shuffle_shards)  # a batch looks at it several times

    def row_ranges(self, first: int, last: int) -> Iterator[RowRange]:
        """The rows at places `first` to `last` - 1."""
        while first < last:
            epoch, place = divmod(first, self.epoch_size)
            shards = self._shard_order(epoch)
            ends = np.cumsum(np.add.reduceat(self._sizes[shards], np.arange(0, len(shards), BLOCK_SHARDS)))
            block = int(np.searchsorted(ends, place, side="right"))
            begin, end = int(ends[block - 1]) if block else 0, min(int(ends[block]), place + last - first)
            rows_N, starts_N = self._shuffled(epoch, block)
            low, high = np.searchsorted(starts_N, [place - begin, end - begin])
            yield RowRange(epoch, self.block(epoch, block), rows_N[low:high])
            first += end - place

    def block(self, epoch: int, block: int) -> tuple[int, ...]:
        """The shards of a block; empty past the epoch's last one."""
        return tuple(self._shard_order(epoch)[block * BLOCK_SHARDS :][:BLOCK_SHARDS].tolist())

    def after(self, stretch: RowRange) -> tuple[int, ...]:
        """The shards of the block after a stretch's own, perhaps the next epoch's first."""
        order = self._shard_order(stretch.epoch)
        block = int(np.flatnonzero(order == stretch.shards[0])[0]) // BLOCK_SHARDS
        return self.block(stretch.epoch, block + 1) or self.block(stretch.epoch + 1, 0)

    def _shuffle_shards(self, epoch: int) -> Ints:
        """Return the shards in the order of an epoch, as an array that cannot be written: callers share it."""
        order = permutation(len(self._rows), key(*self._identity, "shard order", epoch))
        order.flags.writeable = False
        return order

    def _shuffle(self, epoch: int, block: int) -> tuple[Ints, Ints]:
        """(rows_N, starts_N): a block's rows in their order, and the place in the block where each begins."""
        shards = self.block(epoch, block)
        order_N = permutation(int(self._rows[list(shards)].sum()), key(*self._identity, "row order", epoch, block))
        if self._lengths is None:
            return order_N, np.arange(len(order_N))
        return order_N, offsets_of(self._lengths(shards)[order_N])[:-1]
