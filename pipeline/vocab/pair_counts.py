"""Exact counts of the most frequent pairs of symbols, and a queue that returns the most frequent pair first.

A pair takes some 150 bytes in a Python dictionary, and most pairs of a large corpus are too rare to ever be merged. So
only pairs that occur at least `floor` times are kept, with exact counts; when they are used up, the caller counts all
pairs again with a lower floor. The number of kept pairs affects memory and time, never the result.

A pair is one integer, its key, with the left symbol in the higher bits. Keys sort as pairs of ids do, so a tie between
counts goes to the pair with the lower ids.

Shape suffix: K distinct pairs.
"""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

SYMBOL_BITS = 25
KEY_BITS = 2 * SYMBOL_BITS
KEY_MASK = (1 << KEY_BITS) - 1
MAX_PAIRS = 1 << 18


class PairCounts:
    """Every pair that occurs at least `floor` times, with its count."""

    def __init__(self, max_pairs: int = MAX_PAIRS):
        """Start without pairs. `max_pairs` bounds memory, but is raised if many pairs have equal counts."""
        self.counts: dict[int, int] = {}
        self.floor = 0
        self.max_pairs = max_pairs
        self._queue: list[int] = []  # a heap of `queue_entry`, some of them outdated

    def reset(self, keys_K: Ints, counts_K: Ints, min_frequency: int) -> None:
        """Start over with the counts of all pairs that occur at least `min_frequency` times."""
        self.floor = min_frequency
        self._keep_most_frequent(keys_K, counts_K)

    def pop_most_frequent(self) -> int | None:
        """Return the key of the most frequent pair, or None if no pair is left."""
        while self._queue:
            entry = heapq.heappop(self._queue)
            key = entry & KEY_MASK
            queued_count = -(entry >> KEY_BITS)
            count = self.counts.get(key, 0)

            if count == queued_count:
                return key

            # A heap cannot be searched, so an entry is not updated when its pair's count falls. It is corrected here.
            if 0 < count < queued_count:
                heapq.heappush(self._queue, queue_entry(count, key))

        return None

    def add(self, keys_K: Ints, changes_K: Ints) -> None:
        """Change the counts of distinct pairs (K,) after a merge."""
        # See `add_few`. Here most pairs need no Python statement at all.
        is_relevant_K = (changes_K < 0) | (changes_K >= self.floor)
        relevant = zip(keys_K[is_relevant_K].tolist(), changes_K[is_relevant_K].tolist(), strict=True)
        for key, change in relevant:
            self._change(key, change)

        self._keep_within_bound()

    def add_few(self, changes: dict[int, int]) -> None:
        """Do what `add` does, for a merge at few positions."""
        # Only pairs with the new symbol grow, and only in this merge, in which all of them arise. So a pair below the
        # floor never rises above it later.
        for key, change in changes.items():
            if change < 0 or change >= self.floor:
                self._change(key, change)

        self._keep_within_bound()

    def _keep_within_bound(self) -> None:
        pairs = len(self.counts)
        if pairs > self.max_pairs:
            all_keys_K = np.fromiter(self.counts.keys(), np.int64, pairs)
            all_counts_K = np.fromiter(self.counts.values(), np.int64, pairs)
            self._keep_most_frequent(all_keys_K, all_counts_K)

    def _change(self, key: int, change: int) -> None:
        count = self.counts.get(key, 0) + change
        if count < self.floor:
            self.counts.pop(key, None)
            return

        self.counts[key] = count
        if change > 0:
            heapq.heappush(self._queue, queue_entry(count, key))

    def _keep_most_frequent(self, keys_K: Ints, counts_K: Ints) -> None:
        """Keep max_pairs / 2 of these pairs, which leaves room for new ones, and all that tie with the last of them."""
        room = self.max_pairs // 2
        if len(counts_K) > room:
            self.floor = int(np.partition(counts_K, -room)[-room])
            is_kept_K = counts_K >= self.floor
            keys_K = keys_K[is_kept_K]
            counts_K = counts_K[is_kept_K]

        self.counts = dict(zip(keys_K.tolist(), counts_K.tolist(), strict=True))
        self._queue = [queue_entry(count, key) for key, count in self.counts.items()]
        heapq.heapify(self._queue)

        # Ties can fill the room for new pairs; without a higher limit, each merge would then sort all pairs again.
        self.max_pairs = max(self.max_pairs, 2 * len(self.counts))


def pair_keys(left: NDArray[np.int32] | int, right: NDArray[np.int32] | int) -> Ints:
    """Return the keys of pairs of symbols. Either side may be a single symbol for all pairs."""
    return np.asarray(left, dtype=np.int64) << SYMBOL_BITS | np.asarray(right, dtype=np.int64)


def pair_of(key: int) -> tuple[int, int]:
    """Return (left symbol, right symbol)."""
    return divmod(key, 1 << SYMBOL_BITS)


def queue_entry(count: int, key: int) -> int:
    """Return a number that is lowest for the highest count, then for the lowest key.

    One integer takes a third of the memory of a tuple.
    """
    return -count << KEY_BITS | key
