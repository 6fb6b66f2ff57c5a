"""Byte-pair merges learnt from word counts (Sennrich et al., arXiv:1508.07909), with nothing left to chance.

The pair of neighbouring symbols with the highest count becomes one symbol, again and again. Of pairs with one count
the one with the lower symbol ids wins, and ids follow from the alphabet's order and the merges before.

All words lie end to end in one array of positions, and one merge is a few array operations over the places where its
pair occurs. A symbol is written at its first and at its last position, and a symbol's length never changes, so the
neighbours of a place are found by adding and subtracting: there are no links to keep. Only a symbol's places are kept,
not a pair's: the places of the rarer of two symbols are looked through. Of the pairs' counts the highest are kept; once
they are used up, all are counted again. Memory is some 15 bytes for each character of the different words. Counts are
64-bit and exact.

Both models use it. WordPiece here is the bottom-up kind that merges by count, as `tokenizers` trains it; Google's own
trainer was never published.

Letters: P positions of the words' characters and the gaps between words, M places of one merge, K different pairs.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schemas.ragged import offsets_of

Join = Callable[[str, str], str]
Ints = NDArray[np.int64]
GAP, INSIDE, ENDS = -1, -2, -3
"""What else a position can hold: a gap between words; neither end of a symbol; ENDS - i, the last of symbol i."""
SYMBOL_BITS, PAIR_BITS = 25, 50
PAIR = (1 << PAIR_BITS) - 1
MOST_PAIRS = 1 << 18  # kept; each takes some 150 bytes
AT_ONCE = 1 << 20  # positions that are sorted at once, where numpy makes copies in 64 bits


def join_bytes(left: str, right: str) -> str:
    return left + right


def join_wordpieces(left: str, right: str) -> str:
    """Example: `join_wordpieces("un", "##able")` -> `"unable"`."""
    return left + right.removeprefix("##")


def sum_by_key(keys_N: NDArray[Any], amounts_N: Ints) -> tuple[NDArray[Any], Ints]:
    """(different keys, rising; the exact sum of each one's amounts)."""
    order_N = np.argsort(keys_N, kind="stable")
    sorted_N = keys_N[order_N]
    begins_K = np.flatnonzero(np.diff(sorted_N, prepend=-1))
    if len(begins_K) == 0:
        return keys_N, amounts_N
    return sorted_N[begins_K], np.add.reduceat(amounts_N[order_N], begins_K)


def places_by_symbol(symbol_P: NDArray[np.int32], symbols: int) -> list[NDArray[np.int32]]:
    """The places of each symbol, rising. A radix sort where 16 bits hold the symbols."""
    parts = []
    for first in range(0, len(symbol_P), AT_ONCE):
        place_T = np.flatnonzero(symbol_P[first : first + AT_ONCE] >= 0).astype(np.int32) + np.int32(first)
        symbol_T = symbol_P[place_T].astype(np.min_scalar_type(symbols))
        ends = np.cumsum(np.bincount(symbol_T, minlength=symbols))[:-1]
        parts.append(np.split(place_T[np.argsort(symbol_T, kind="stable")], ends))
    return [np.concatenate(places) for places in zip(*parts, strict=True)]


class BPETrainer:
    """The words as chained symbols, the places of every symbol, and the counts of the commonest pairs of neighbours."""

    def __init__(
        self,
        symbols_T: NDArray[Any],
        lengths_N: Ints,
        counts_N: Ints,
        alphabet: Sequence[str],
        join: Join,
        most_pairs: int = MOST_PAIRS,
    ):
        """Word i, the next `lengths_N[i]` of `symbols_T`, occurs `counts_N[i]` times.

        A symbol is a place in `alphabet`, whose order decides ties. `most_pairs` bounds memory; no result shows it.
        """
        self.tokens = list(alphabet)
        self.merges: list[tuple[str, str]] = []
        self._join = join
        self._lengths = [1] * len(alphabet)  # in characters
        self._counts_N = counts_N
        self._word_P = np.repeat(np.arange(len(lengths_N) + 1, dtype=np.int32), np.append(lengths_N + 1, 1))
        size = len(self._word_P)
        self._symbol_P = np.full(size, GAP, dtype=np.int32)
        gap_N1 = offsets_of(lengths_N + 1)  # one before each word, and one at the end
        inside_P = np.ones(size, dtype=bool)
        inside_P[gap_N1] = False
        self._symbol_P[inside_P] = symbols_T
        self._places = places_by_symbol(self._symbol_P, len(alphabet))
        self._most_pairs = most_pairs
        self._pairs: dict[int, int] = {}  # every pair that occurs `_floor` times or more, with its exact count
        self._queue: list[int] = []
        self._floor = 0

    def train(self, size: int, min_frequency: int) -> None:
        """Merge until there are `size` tokens or no pair occurs `min_frequency` times."""
        self._count_pairs(min_frequency)
        while len(self.tokens) < size and (self._queue or self._floor > min_frequency):
            if not self._queue:
                self._count_pairs(min_frequency)
                continue
            first = heapq.heappop(self._queue)
            count, key = -(first >> PAIR_BITS), first & PAIR
            now = self._pairs.get(key, 0)
            if now == count:
                self._merge(key)
            elif 0 < now < count:  # the queue is not searched when counts fall; it finds out here
                heapq.heappush(self._queue, queued(now, key))

    def _count_pairs(self, min_frequency: int) -> None:
        """Count all pairs and keep the commonest, at least those that occur `min_frequency` times."""
        found = [self._pairs_after(left, min_frequency) for left in range(len(self.tokens))]
        keys_K, counts_K = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
        self._floor = min_frequency
        self._keep(keys_K, counts_K)

    def _pairs_after(self, left: int, min_frequency: int) -> tuple[Ints, Ints]:
        """(pairs that begin with a symbol, their counts)."""
        places = self._places[left]
        self._places[left] = places = places[self._symbol_P[places] == left]
        rights = self._symbol_P[places + np.int32(self._lengths[left])]
        inside = rights >= 0
        keys_K, counts_K = sum_by_key(rights[inside], self._counts_N[self._word_P[places[inside]]])
        often_K = counts_K >= min_frequency
        return pair_keys(left, keys_K[often_K]), counts_K[often_K]

    def _keep(self, keys_K: Ints, counts_K: Ints) -> None:
        """Keep of these pairs half of what there is room for, and all that are as common as the rarest of them."""
        room = self._most_pairs // 2
        if len(counts_K) > room:
            self._floor = int(np.partition(counts_K, -room)[-room])
            kept_K = counts_K >= self._floor
            keys_K, counts_K = keys_K[kept_K], counts_K[kept_K]
        self._pairs = dict(zip(keys_K.tolist(), counts_K.tolist(), strict=True))
        self._queue = [queued(count, key) for key, count in self._pairs.items()]
        heapq.heapify(self._queue)
        self._most_pairs = max(self._most_pairs, 2 * len(self._pairs))  # when many are equally common

    def _merge(self, key: int) -> None:
        left, right = divmod(key, 1 << SYMBOL_BITS)
        first_M = self._occurrences(left, right)
        new = self._new_symbol(left, right)
        keys_K, changes_K = sum_by_key(*self._replace(first_M, left, right, new))

        # Only pairs of the new symbol grow, and they all arise here: what is rare now stays rare.
        matter_K = (changes_K < 0) | (changes_K >= self._floor)
        for pair, change in zip(keys_K[matter_K].tolist(), changes_K[matter_K].tolist(), strict=True):
            self._change(pair, change)

        if len(self._pairs) > self._most_pairs:
            amount = len(self._pairs)
            self._keep(
                *(np.fromiter(numbers, np.int64, amount) for numbers in (self._pairs.keys(), self._pairs.values()))
            )

    def _change(self, pair: int, change: int) -> None:
        """Change a pair's count. Below the floor it is not kept: it is new or becomes rarer, so it stays below."""
        count = self._pairs.get(pair, 0) + change
        if count < self._floor:
            self._pairs.pop(pair, None)
            return

        self._pairs[pair] = count
        if change > 0:
            heapq.heappush(self._queue, queued(count, pair))

    def _occurrences(self, left: int, right: int) -> NDArray[np.int32]:
        """(M,) the left positions of the pair; of overlapping ones (aaa) the first, the third, ..."""
        found_M = self._adjacent(left, right)
        return every_other(np.sort(found_M), self._lengths[left]) if left == right else found_M

    def _adjacent(self, left: int, right: int) -> NDArray[np.int32]:
        """(M,) the left positions of the pair, overlapping ones too."""
        symbol_P, length = self._symbol_P, self._lengths[left]
        lefts, rights = self._places[left], self._places[right]
        if len(lefts) <= len(rights):
            self._places[left] = lefts = lefts[symbol_P[lefts] == left]
            return lefts[symbol_P[lefts + length] == right]
        self._places[right] = rights = rights[symbol_P[rights] == right]
        return rights[ending_at(symbol_P[rights - 1]) == left] - np.int32(length)

    def _replace(self, first_M: NDArray[np.int32], left: int, right: int, new: int) -> tuple[Ints, Ints]:
        """Put `new` in place of each pair; (keys, changes of their counts), a key as often as it was touched."""
        symbol_P, count_M = self._symbol_P, self._counts_N[self._word_P[first_M]]
        second_M = first_M + np.int32(self._lengths[left])
        after_M = second_M + np.int32(self._lengths[right])
        before_M, behind_M = ending_at(symbol_P[first_M - 1]), symbol_P[after_M]
        symbol_P[second_M - 1] = symbol_P[second_M] = INSIDE
        symbol_P[first_M], symbol_P[after_M - 1] = new, ENDS - new
        self._places[new] = first_M
        now_before_M = ending_at(symbol_P[first_M - 1])
        has_before_M = before_M >= 0
        alone_M = (behind_M >= 0) & (symbol_P[after_M] == behind_M)  # else the next place counts the pair between
        behind, behind_counts, before_counts = behind_M[alone_M], count_M[alone_M], count_M[has_before_M]
        keys = np.concatenate([
            np.full(len(first_M), left << SYMBOL_BITS | right),
            pair_keys(before_M[has_before_M], left), pair_keys(right, behind),
            pair_keys(now_before_M[has_before_M], new), pair_keys(new, behind),
        ])  # fmt: skip
        return keys, np.concatenate([-count_M, -before_counts, -behind_counts, before_counts, behind_counts])

    def _new_symbol(self, left: int, right: int) -> int:
        """Give the merged pair the next id; no token has its characters yet.

        A stretch of characters that no merge has reached across is cut in one way wherever it occurs, for merges depend
        on what they join alone and a symbol repeated is paired from its left end. So each time a token comes to be, all
        its occurrences do, from one pair. That takes symbols whose spelling shows what they are. A word "##a" would be
        the same token as the piece "##a" of other words, but BERT's rules make every "#" a word by itself.
        """
        merge = (self.tokens[left], self.tokens[right])
        self.merges.append(merge)
        self.tokens.append(self._join(*merge))
        self._lengths.append(self._lengths[left] + self._lengths[right])
        self._places.append(np.zeros(0, dtype=np.int32))  # until they are replaced
        return len(self.tokens) - 1


def pair_keys(left: NDArray[np.int32] | int, right: NDArray[np.int32] | int) -> Ints:
    """One number for each pair of symbols; numbers sort as pairs do."""
    return np.asarray(left, dtype=np.int64) << SYMBOL_BITS | np.asarray(right, dtype=np.int64)


def queued(count: int, key: int) -> int:
    """A pair's entry in the queue, lowest for the highest count; one integer takes a third of a tuple's memory."""
    return -count << PAIR_BITS | key


def ending_at(symbols_M: NDArray[np.int32]) -> NDArray[np.int32]:
    """The symbols of which these positions are the last; below 0 where there is a gap."""
    return np.where(symbols_M <= ENDS, ENDS - symbols_M, symbols_M)


def every_other(places_M: NDArray[np.int32], length: int) -> NDArray[np.int32]:
    """Of places that follow one another at `length`, the first, the third and so on; `places_M` rises."""
    goes_on_M = np.diff(places_M, prepend=-1 - length) == length
    number_M = np.arange(len(places_M))
    begin_M = np.maximum.accumulate(np.where(goes_on_M, 0, number_M))
    return places_M[(number_M - begin_M) % 2 == 0]
