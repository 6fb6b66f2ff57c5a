"""Byte-pair encoding: learns merges from word counts (Sennrich et al., arXiv:1508.07909), deterministically.

The most frequent pair of neighboring symbols becomes one symbol, over and over. Among pairs with equal counts, the one
with the lower symbol ids wins. Ids follow from the alphabet's order and from the merges so far, and counts are exact
64-bit integers, so equal word counts always give equal merges.

WordPiece and byte-level BPE both use it. WordPiece here is the bottom-up kind that merges by count, as `tokenizers`
trains it; Google never published its own trainer.

Shape suffixes: K distinct pairs, M positions where one merge takes place.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

import numpy as np

from pipeline.vocab.symbol_array import FEW, SYMBOL_BITS, SymbolArray, WordSymbols
from pipeline.words.arrow import Ints
from schemas.ragged import sum_by_key

KEY_BITS = 2 * SYMBOL_BITS
KEY_MASK = (1 << KEY_BITS) - 1
MAX_PAIRS = 1 << 18

Join = Callable[[str, str], str]
"""A function from the spellings of two neighboring symbols to the spelling of their merge."""


def join_bytes(left: str, right: str) -> str:
    """Join two byte-level BPE symbols. Example: `join_bytes("un", "able")` -> `"unable"`."""
    return left + right


def join_wordpieces(left: str, right: str) -> str:
    """Join two WordPiece symbols. Example: `join_wordpieces("un", "##able")` -> `"unable"`."""
    return left + right.removeprefix("##")


class BPETrainer:
    """Learns merges. `tokens[i]` spells symbol i: first the alphabet, then one token per merge."""

    def __init__(
        self,
        words: WordSymbols,
        alphabet: Sequence[str],
        join: Join,
        max_pairs: int = MAX_PAIRS,
        forbidden: frozenset[str] = frozenset(),
    ):
        """Prepare to merge the symbols of words, which are indices into `alphabet`.

        The alphabet's order decides ties. `max_pairs` bounds memory and does not change the result. Pairs that spell
        one of `forbidden` are not merged.
        """
        self._forbidden = forbidden
        self.tokens = list(alphabet)
        self.merges: list[tuple[str, str]] = []
        self._join = join
        self._symbols = SymbolArray(words, len(alphabet))
        self._pairs = PairCounts(max_pairs)

    def train(self, size: int, min_frequency: int) -> None:
        """Merge until there are `size` tokens or no pair occurs `min_frequency` times."""
        self._count_all_pairs(min_frequency)

        while len(self.tokens) < size:
            key = self._pairs.pop_most_frequent()
            if key is not None:
                self._merge(*divmod(key, 1 << SYMBOL_BITS))
            elif self._pairs.floor > min_frequency:
                # The kept pairs are used up, but rarer pairs were left out when they were counted.
                self._count_all_pairs(min_frequency)
            else:
                break

    def _count_all_pairs(self, min_frequency: int) -> None:
        keys = []
        counts = []
        for left in range(len(self.tokens)):
            left_keys, left_counts = self._symbols.count_pairs_after(left, min_frequency)
            keys.append(left_keys)
            counts.append(left_counts)

        self._pairs.reset(np.concatenate(keys), np.concatenate(counts), min_frequency)

    def _merge(self, left: int, right: int) -> None:
        """Make a token of a pair, unless it is forbidden, and replace the pair by its symbol everywhere.

        No earlier token has the new spelling. Consider a string of characters such that no merge extends across its
        ends: it is divided into symbols in the same way wherever it occurs, because a merge depends only on the two
        symbols that it joins, and a repeated symbol is paired from its left end. So one merge makes all occurrences of
        a token.

        This requires that a spelling identifies a symbol. A whole word "##a" would be the same token as the piece "##a"
        of other words, but BERT's rules make every "#" a separate word.
        """
        merge = (self.tokens[left], self.tokens[right])
        token = self._join(*merge)
        if token in self._forbidden:
            return

        self.merges.append(merge)
        self.tokens.append(token)

        positions_M = self._symbols.find(left, right)
        if len(positions_M) <= FEW:
            self._pairs.add_few(self._symbols.replace_few(positions_M, left, right))
            return

        keys, changes = self._symbols.replace(positions_M, left, right)
        keys_K, changes_K = sum_by_key(keys, changes)
        self._pairs.add(keys_K, changes_K)


class PairCounts:
    """Exact counts of the most frequent pairs, and a queue that returns the most frequent pair first.

    A pair takes some 150 bytes in a Python dictionary, and most pairs of a large corpus are too rare to ever be merged.
    So only pairs that occur at least `floor` times are kept, with exact counts; when they are used up, the caller
    counts all pairs again with a lower floor. The number of kept pairs affects memory and time, never the result.
    """

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
        self.add_few(dict(zip(keys_K[is_relevant_K].tolist(), changes_K[is_relevant_K].tolist(), strict=True)))

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


def queue_entry(count: int, key: int) -> int:
    """Return a number that is lowest for the highest count, then for the lowest key.

    One integer takes a third of the memory of a tuple.
    """
    return -count << KEY_BITS | key
