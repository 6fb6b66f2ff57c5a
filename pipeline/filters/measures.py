"""What rules measure about a document. Each value is computed once, when a rule first asks for it.

A word is what stands between spaces, or WORD_DIVIDER, as in C4 and in Gopher's paper; datatrove also counts each
punctuation mark as a word. A line is a paragraph, whose wrapped lines are joined already. A block is what stands
between blank lines.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from itertools import chain

import numpy as np
from numpy.typing import NDArray

_ODD = np.uint64(0x9E3779B97F4A7C15)  # of the polynomial that hashes n-grams; any odd number with mixed bits will do

WORD_DIVIDER = "\u1361"
"""Stands between the words of traditional Amharic and Tigrinya, in place of a space."""


def words_of(text: str) -> list[str]:
    return text.replace(WORD_DIVIDER, " ").split()


class Measured:
    """A document's text and what was measured about it. blocks: the lines of each; none of both is empty."""

    def __init__(self, blocks: list[list[str]]) -> None:
        self.lines = list(chain.from_iterable(blocks))
        self.blocks = list(map("\n".join, blocks))

    @cached_property
    def text(self) -> str:
        """The lines with line ends between."""
        return "\n".join(self.lines)

    @cached_property
    def words(self) -> list[str]:
        """All words, with the punctuation that touches them."""
        return words_of(self.text)

    @cached_property
    def _ngrams(self) -> NGrams:
        return NGrams(self.words)

    def share_of_words(self, count: float) -> float:
        """Return `count` for each word; 0 for a text without words."""
        return count / max(1, len(self.words))

    def share_of_lines(self, flags: Iterable[bool]) -> float:
        """Return the share of lines for which a flag is set, given a flag for each."""
        return sum(flags) / max(1, len(self.lines))

    def share_of_text(self, characters: int) -> float:
        """Return `characters` for each character of the text, line ends included."""
        return characters / max(1, len(self.text))

    def top_ngram(self, n: int) -> float:
        """Return the share of characters in the most frequent n-gram of words; of equal ones, the first."""
        return self.share_of_text(self._ngrams.top(n))

    def duplicate_ngrams(self, n: int) -> float:
        """Return the share of characters in n-grams of words that occurred before, each character counted once."""
        return self.share_of_text(self._ngrams.duplicated(n))


def duplicates(parts: list[str]) -> tuple[int, int]:
    """Return how many parts occurred before in the list, and their characters."""
    seen: set[str] = set()
    count = characters = 0
    for part in parts:
        if part in seen:
            count += 1
            characters += len(part)
        seen.add(part)
    return count, characters


class NGrams:
    """The n-grams of a text's words, as 64-bit hashes. Two of one text are equal by chance once in 10^12 documents."""

    def __init__(self, words: list[str]) -> None:
        numbers: dict[str, int] = {}
        ids = [numbers.setdefault(word, len(numbers)) for word in words]
        self._ids = np.array(ids, dtype=np.uint64) + np.uint64(1)
        self._ends = np.cumsum([0, *map(len, words)])
        self._hashes: dict[int, NDArray[np.uint64]] = {1: self._ids}
        self._repeating = {1: True}

    def top(self, n: int) -> int:
        """Return the characters of all occurrences of the most frequent n-gram, the spaces between words included.

        0 if no n-gram occurs twice.
        """
        if not self._repeats(n):
            return 0
        _, first, counts = np.unique(self._hashes_of(n), return_index=True, return_counts=True)
        most = counts.max()
        place = first[counts == most].min()
        return int(most * (self._characters(place, n) + n - 1))

    def duplicated(self, n: int) -> int:
        """Return the characters of n-grams that occurred before, read from left to right and not overlapping."""
        if not self._repeats(n):
            return 0

        seen: set[int] = set()
        characters = place = 0
        hashes = self._hashes_of(n).tolist()
        while place < len(hashes):
            if hashes[place] in seen:
                characters += self._characters(place, n)
                place += n
            else:
                seen.add(hashes[place])
                place += 1
        return characters

    def _repeats(self, n: int) -> bool:
        """Return whether any n-gram occurs twice. If none does, no longer one does either."""
        if n not in self._repeating:
            ordered = np.sort(self._hashes_of(n)) if self._repeats(n - 1) else self._ids[:0]
            self._repeating[n] = bool((ordered[1:] == ordered[:-1]).any())
        return self._repeating[n]

    def _characters(self, place: int, n: int) -> int:
        return int(self._ends[place + n] - self._ends[place])

    def _hashes_of(self, n: int) -> NDArray[np.uint64]:
        """Return a hash for each n-gram, in order: that of its first n - 1 words, and its last word."""
        if n not in self._hashes:
            shorter = self._hashes_of(n - 1)
            mixed = shorter[: max(0, len(self._ids) - n + 1)] * _ODD
            mixed ^= mixed >> np.uint64(29)
            self._hashes[n] = mixed + self._ids[n - 1 :]
        return self._hashes[n]
