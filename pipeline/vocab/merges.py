"""Byte-pair merges learnt from word counts (Sennrich et al., arXiv:1508.07909), with nothing left to chance.

The pair of neighbouring symbols with the highest count becomes one symbol, again and again. Of pairs with one count
the one with the lower symbol ids wins, and ids follow from the sorted alphabet and the merges before. Counts are
Python integers, which do not overflow.

Both models use it. WordPiece here is the bottom-up kind that merges by count, as `tokenizers` trains it; Google's own
trainer was never published.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence

Join = Callable[[str, str], str]


def join_bytes(left: str, right: str) -> str:
    return left + right


def join_wordpieces(left: str, right: str) -> str:
    """Example: `join_wordpieces("un", "##able")` -> `"unable"`."""
    return left + right.removeprefix("##")


class MergeLearner:
    """Words as sequences of symbols, the count of every pair of neighbours, and where each pair occurs."""

    def __init__(self, words: Sequence[Sequence[str]], counts: Sequence[int], symbols: Sequence[str], join: Join):
        """`words[i]` occurs `counts[i]` times; `symbols` is the alphabet, whose order decides ties."""
        self.tokens = list(symbols)
        self.merges: list[tuple[str, str]] = []
        self._ids = {symbol: i for i, symbol in enumerate(symbols)}
        self._words = [[self._ids[symbol] for symbol in word] for word in words]
        self._counts, self._join = counts, join
        self._merged: set[tuple[int, int]] = set()
        self._pair_counts: dict[tuple[int, int], int] = defaultdict(int)
        self._places: dict[tuple[int, int], set[int]] = defaultdict(set)
        for index in range(len(self._words)):
            self._count_pairs(index, +1)
        self._queue = [(-count, pair) for pair, count in self._pair_counts.items()]
        heapq.heapify(self._queue)

    def learn(self, size: int, min_frequency: int) -> None:
        """Merge until there are `size` tokens or no pair occurs `min_frequency` times."""
        while len(self.tokens) < size and self._queue:
            count, pair = heapq.heappop(self._queue)
            now = self._pair_counts.get(pair, 0)
            if now != -count:  # the queue is not searched when counts change; it finds out here
                if now >= min_frequency:
                    heapq.heappush(self._queue, (-now, pair))
            elif now >= min_frequency:
                self._merge(pair)

    def _merge(self, pair: tuple[int, int]) -> None:
        new = self._new_symbol(pair)
        changed: set[tuple[int, int]] = set()
        for index in self._places.pop(pair):
            self._count_pairs(index, -1)
            self._words[index] = replace_pair(self._words[index], pair, new)
            changed |= self._count_pairs(index, +1)
        for found in changed:
            if new in found:  # only these can have grown; the queue finds out about the others by itself
                heapq.heappush(self._queue, (-self._pair_counts[found], found))
        self._pair_counts.pop(pair, None)

    def _new_symbol(self, pair: tuple[int, int]) -> int:
        merge = (self.tokens[pair[0]], self.tokens[pair[1]])
        if pair not in self._merged:  # a pair comes back when another spelling of one of its tokens is merged
            self._merged.add(pair)
            self.merges.append(merge)
        merged = self._join(*merge)
        new = self._ids.setdefault(merged, len(self.tokens))
        if new == len(self.tokens):  # else another pair has spelt this token before
            self.tokens.append(merged)
        return new

    def _count_pairs(self, index: int, sign: int) -> set[tuple[int, int]]:
        word, count = self._words[index], sign * self._counts[index]
        pairs = list(itertools.pairwise(word))
        for pair in pairs:
            self._pair_counts[pair] += count
            if sign > 0:
                self._places[pair].add(index)
        return set(pairs)


def replace_pair(word: list[int], pair: tuple[int, int], new: int) -> list[int]:
    """Example: `replace_pair([1, 2, 1, 2, 3], (1, 2), 9)` -> `[9, 9, 3]`."""
    replaced, i = [], 0
    while i < len(word):
        if i + 1 < len(word) and word[i] == pair[0] and word[i + 1] == pair[1]:
            replaced.append(new)
            i += 2
        else:
            replaced.append(word[i])
            i += 1
    return replaced
