"""The words of a corpus as sequences of BPE symbols, in one array that merges change in place.

All distinct words are end to end in `_symbol_P`, one position per character, with a gap before each word and one at
the end. A symbol of n characters keeps its n positions for as long as it exists:

    first position        the symbol's id
    last position         ENDS - id    (a symbol of one character has only the first)
    positions between     INSIDE
    gap between words     GAP

So no links between neighbors are stored. The symbol to the right of one that begins at p begins at p + its length, and
the symbol to the left ends at p - 1, where its id can be read as well.

An example: "hug" occurs 10 times and "hugs" 5 times; the alphabet is g h s u, with ids 0 1 2 3.

    position           0    1    2    3    4    5    6    7    8    9
    character               h    u    g         h    u    g    s
    _word_P            0    0    0    0    1    1    1    1    1    2
    _symbol_P        GAP    1    3    0  GAP    1    3    0    2  GAP

The pairs are (h, u) 15 times, (u, g) 15 times and (g, s) 5 times. Merging (h, u) makes symbol 4, "hu":

 1. `find` compares how often h and u occur and goes through the positions of the rarer one. It returns the positions
    where the pair begins, [1, 5].
 2. `replace` computes where the second symbols begin, [2, 6], and where the symbols after the pair begin, [3, 7]. It
    reads the neighbors of each pair (a gap to the left, g to the right) before it changes anything.
 3. It writes the new symbol over both old ones. ENDS - 4 is -7:

        _symbol_P    GAP    4   -7    0  GAP    4   -7    0    2  GAP

 4. It returns how the counts of pairs change: (h, u) -10 -5, (u, g) -10 -5 and (hu, g) +10 +5.

Then (hu, g) would make symbol 5, "hug", and the array GAP 5 INSIDE -8 GAP 5 INSIDE -8 2 GAP.

The positions of a symbol are kept, those of a pair are not: an index of pairs would be several times as large. Entries
of `_positions` become outdated when a merge uses up a symbol, and are removed when the symbol is next looked at.
Memory is about 15 bytes for each character of the distinct words.

Shape suffixes: N words, T characters of all words, P positions (characters and gaps), M positions where one merge
takes place, K distinct pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.words.arrow import Ints
from schemas.ragged import offsets_of, sum_by_key

SYMBOL_BITS = 25
"""Bits of a symbol in the key of a pair, an integer with the left symbol in the higher bits.

Keys sort as pairs of ids do, so a tie between counts goes to the pair with the lower ids.
"""

GAP = -1
INSIDE = -2
ENDS = -3

POSITIONS_AT_ONCE = 1 << 20  # positions sorted in one call, because numpy makes 64-bit copies of them

FEW = 48
"""Up to this many positions, a plain loop is faster than array operations, which cost microseconds each.

Most merges of a vocabulary take place at fewer than ten positions.
"""


@dataclass(frozen=True)
class WordSymbols:
    """Distinct words end to end: word i is the next `lengths_N[i]` of `symbols_T` and occurs `counts_N[i]` times.

    A symbol is an index into the alphabet.
    """

    symbols_T: NDArray[Any]
    lengths_N: Ints
    counts_N: Ints


class SymbolArray:
    """Words as sequences of symbols, with the positions of every symbol. The module docstring explains the layout."""

    def __init__(self, words: WordSymbols, alphabet_size: int):
        """Lay out the words; `alphabet_size` symbols exist."""
        self._lengths = [1] * alphabet_size  # of each symbol, in characters
        self._counts_N = words.counts_N

        # The gap before a word counts as part of it. The gap at the end belongs to no word.
        positions_per_word_N1 = np.append(words.lengths_N + 1, 1)
        word_numbers_N1 = np.arange(len(words.lengths_N) + 1, dtype=np.int32)
        self._word_P = np.repeat(word_numbers_N1, positions_per_word_N1)

        is_character_P = np.ones(len(self._word_P), dtype=bool)
        is_character_P[offsets_of(words.lengths_N + 1)] = False
        self._symbol_P = np.full(len(self._word_P), GAP, dtype=np.int32)
        self._symbol_P[is_character_P] = words.symbols_T

        # The first positions of each symbol, ascending; some are outdated.
        self._positions = positions_by_symbol(self._symbol_P, alphabet_size)

        # Views of the same memory: Python reads a single element from a memoryview in half the time.
        self._symbol_view = self._symbol_P.data
        self._word_view = self._word_P.data
        self._counts_view = self._counts_N.data

    def count_pairs_after(self, left: int, min_frequency: int) -> tuple[Ints, Ints]:
        """Count the pairs whose left symbol is `left`.

        Returns (keys_K, counts_K) of those that occur `min_frequency` times or more.
        """
        left_M = self._current_positions(left)
        right_M = self._symbol_P[left_M + np.int32(self._lengths[left])]

        has_right_M = right_M >= 0
        count_M = self._counts_N[self._word_P[left_M[has_right_M]]]
        rights_K, counts_K = sum_by_key(right_M[has_right_M], count_M)

        is_frequent_K = counts_K >= min_frequency
        return pair_keys(left, rights_K[is_frequent_K]), counts_K[is_frequent_K]

    def find(self, left: int, right: int) -> NDArray[np.int32]:
        """Return (M,) int32: the positions, ascending, at which a pair begins and can be merged.

        Where a repeated symbol makes pairs overlap (aaa), these are the first, the third, and so on.
        """
        is_left_rarer = len(self._positions[left]) <= len(self._positions[right])
        rarer = left if is_left_rarer else right
        if len(self._positions[rarer]) <= FEW and left != right:
            return self._find_few(left, right, is_left_rarer)

        adjacent_M = self._find_overlapping(left, right)
        if left == right:
            return every_other(adjacent_M, self._lengths[left])
        return adjacent_M

    def replace(self, first_M: NDArray[np.int32], left: int, right: int) -> tuple[Ints, Ints]:
        """Replace the pairs that begin at `first_M` by a new symbol, which gets the next id.

        Returns (keys of pairs, changes of their counts); a pair can occur several times.
        """
        new = len(self._lengths)
        self._lengths.append(self._lengths[left] + self._lengths[right])
        self._positions.append(first_M)

        symbol_P = self._symbol_P
        second_M = first_M + np.int32(self._lengths[left])
        after_M = second_M + np.int32(self._lengths[right])

        left_neighbor_M = ending_at(symbol_P[first_M - 1])
        right_neighbor_M = symbol_P[after_M]

        # INSIDE comes first: a symbol of one character has its last position where its first is.
        symbol_P[second_M - 1] = INSIDE
        symbol_P[second_M] = INSIDE
        symbol_P[first_M] = new
        symbol_P[after_M - 1] = ENDS - new

        # Two pairs may be direct neighbors, as in (ab)(ab). The old pair (b, a) between them and the new pair (ab, ab)
        # must be counted once: as the left neighbor of the second. The first pair must skip them, which it does because
        # its right neighbor is no longer the symbol that it was.
        new_left_neighbor_M = ending_at(symbol_P[first_M - 1])
        has_left_M = left_neighbor_M >= 0
        has_right_M = (right_neighbor_M >= 0) & (symbol_P[after_M] == right_neighbor_M)
        rights = right_neighbor_M[has_right_M]

        count_M = self._counts_N[self._word_P[first_M]]
        changes = [
            (np.full(len(first_M), pair_keys(left, right)), -count_M),
            (pair_keys(left_neighbor_M[has_left_M], left), -count_M[has_left_M]),
            (pair_keys(right, rights), -count_M[has_right_M]),
            (pair_keys(new_left_neighbor_M[has_left_M], new), count_M[has_left_M]),
            (pair_keys(new, rights), count_M[has_right_M]),
        ]
        keys, amounts = zip(*changes, strict=True)
        return np.concatenate(keys), np.concatenate(amounts)

    def replace_few(self, first_M: NDArray[np.int32], left: int, right: int) -> dict[int, int]:
        """Do what `replace` does, one position at a time. Returns {key of a pair: change of its count}."""
        new = len(self._lengths)
        length_of_left = self._lengths[left]
        length_of_pair = length_of_left + self._lengths[right]
        self._lengths.append(length_of_pair)
        self._positions.append(first_M)

        symbols = self._symbol_view
        merged = left << SYMBOL_BITS | right
        changes = {merged: 0}
        for first in first_M.tolist():
            count = self._counts_view[self._word_view[first]]
            changes[merged] -= count

            # A pair directly before this one is merged already, so the left neighbor is its new symbol.
            before = symbols[first - 1]
            if before != GAP:
                neighbor = ENDS - before if before <= ENDS else before
                _add_change(changes, neighbor << SYMBOL_BITS | left, -count)
                _add_change(changes, neighbor << SYMBOL_BITS | new, count)

            after = first + length_of_pair
            neighbor = symbols[after]
            if neighbor != GAP:
                _add_change(changes, right << SYMBOL_BITS | neighbor, -count)
                _add_change(changes, new << SYMBOL_BITS | neighbor, count)

            # In the same order as in `replace`: symbols of one character have one position for both ends.
            second = first + length_of_left
            symbols[second - 1] = INSIDE
            symbols[second] = INSIDE
            symbols[first] = new
            symbols[after - 1] = ENDS - new

        return changes

    def _find_few(self, left: int, right: int, is_left_rarer: bool) -> NDArray[np.int32]:
        """Do what `_find_overlapping` does, one position at a time."""
        symbols = self._symbol_view
        length = self._lengths[left]
        if is_left_rarer:
            positions = self._positions[left].tolist()
            found = [first for first in positions if symbols[first] == left and symbols[first + length] == right]
            return np.array(found, dtype=np.int32)

        # A symbol of one character has only its first position, where its id can be read.
        end_of_left = left if length == 1 else ENDS - left
        positions = self._positions[right].tolist()
        found = [
            second - length for second in positions if symbols[second] == right and symbols[second - 1] == end_of_left
        ]
        return np.array(found, dtype=np.int32)

    def _current_positions(self, symbol: int) -> NDArray[np.int32]:
        """Return the first positions of a symbol, after removing those that are outdated."""
        positions = self._positions[symbol]
        positions = positions[self._symbol_P[positions] == symbol]
        self._positions[symbol] = positions
        return positions

    def _find_overlapping(self, left: int, right: int) -> NDArray[np.int32]:
        """Return (M,) int32: the positions at which a pair begins, including overlapping ones."""
        length = np.int32(self._lengths[left])

        # The work is proportional to the occurrences of one of the two symbols: take the rarer one.
        if len(self._positions[left]) <= len(self._positions[right]):
            left_positions = self._current_positions(left)
            return left_positions[self._symbol_P[left_positions + length] == right]

        right_positions = self._current_positions(right)
        left_of_them = ending_at(self._symbol_P[right_positions - 1])
        return right_positions[left_of_them == left] - length


def pair_keys(left: NDArray[np.int32] | int, right: NDArray[np.int32] | int) -> Ints:
    """Return the keys of pairs of symbols. Either side may be a single symbol for all pairs."""
    return np.asarray(left, dtype=np.int64) << SYMBOL_BITS | np.asarray(right, dtype=np.int64)


def _add_change(changes: dict[int, int], key: int, change: int) -> None:
    changes[key] = changes.get(key, 0) + change


def positions_by_symbol(symbol_P: NDArray[np.int32], symbols: int) -> list[NDArray[np.int32]]:
    """Return the positions of each symbol from 0 to `symbols` - 1, ascending.

    Sorts POSITIONS_AT_ONCE positions at a time, in the narrowest type: numpy has a radix sort for up to 16 bits.
    """
    counts = np.zeros(symbols, dtype=np.int64)
    for start in range(0, len(symbol_P), POSITIONS_AT_ONCE):
        symbols_of_part = symbol_P[start : start + POSITIONS_AT_ONCE]
        counts += np.bincount(symbols_of_part[symbols_of_part >= 0], minlength=symbols)

    # Filled part by part, because lists of parts would take the memory of all positions a second time.
    positions = [np.empty(count, dtype=np.int32) for count in counts.tolist()]
    filled = np.zeros(symbols, dtype=np.int64)
    for start in range(0, len(symbol_P), POSITIONS_AT_ONCE):
        symbols_of_part = symbol_P[start : start + POSITIONS_AT_ONCE]
        position_M = np.flatnonzero(symbols_of_part >= 0).astype(np.int32) + np.int32(start)
        symbol_M = symbol_P[position_M].astype(np.min_scalar_type(symbols))

        sorted_M = position_M[np.argsort(symbol_M, kind="stable")]
        ends = np.cumsum(np.bincount(symbol_M, minlength=symbols))
        first = 0
        for symbol, end in enumerate(ends.tolist()):
            if end > first:
                at = filled[symbol]
                positions[symbol][at : at + end - first] = sorted_M[first:end]
                filled[symbol] = at + end - first
            first = end

    return positions


def ending_at(value_M: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the symbols that end at positions with these values of `_symbol_P`; below 0 for a gap."""
    return np.where(value_M <= ENDS, ENDS - value_M, value_M)


def every_other(position_M: NDArray[np.int32], length: int) -> NDArray[np.int32]:
    """Keep the first, third, fifth, ... of each series of ascending positions whose steps are exactly `length`.

    Example: `every_other([0, 1, 2, 5, 6], 1)` -> `[0, 2, 5]`.
    """
    continues_M = np.diff(position_M, prepend=-1 - length) == length
    index_M = np.arange(len(position_M))
    series_start_M = np.maximum.accumulate(np.where(continues_M, 0, index_M))
    return position_M[(index_M - series_start_M) % 2 == 0]
