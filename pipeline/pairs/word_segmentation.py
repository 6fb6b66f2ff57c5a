"""Finds where words begin in scripts without spaces, so that whole words can be masked.

BERT's rules make every ideograph a word, and a run of kana or of Thai letters one word, however long. A segmenter
(segmenters.py) cuts the same text into words of its language, and each character of BERT's words gets a mark:

    CONTINUES   the first character of one of BERT's words: the segmenter's word began before it
    BEGINS      a character inside one of BERT's words: a word of the segmenter begins here
    KEPT        all others, also in other scripts: what the vocabulary says of the token counts

A token has the mark of its first character. So a token that crosses the beginning of a segmenter's word joins both
words: the next token, in the middle of the second one, does not begin a word. Token ids do not change, only
`word_starts` does. In Chinese this is the rule of Chinese-BERT-wwm (arXiv:1906.08101).

The segmenter reads the text as it was written, while BERT's words are normalized. Both are aligned by counting: the
k-th letter of the script in the text is the k-th one in BERT's words. Other characters may come, go or change in
between, and so may combining marks, such as a Thai vowel above its consonant. Where the numbers differ, the segmenter
gets the normalized words instead.

Shape suffixes: R runs, C characters of all runs, B those of them that are no combining marks, K the letters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.words.arrow import Bools, Ints
from schemas.ragged import offsets_of

KEPT, CONTINUES, BEGINS = 0, 1, 2

Cut = Callable[[str], list[int]]
"""A function from a text to the places at which its words begin; its end may be one, too."""

Ranges = tuple[tuple[int, int], ...]
"""The first and the last code point of each range."""


@dataclass(frozen=True)
class Script:
    """The letters that a segmenter decides about, and the combining marks among them, which belong to a letter."""

    letters: Ranges
    combining: Ranges = ()


class WordMarker:
    """Marks the characters of BERT's words as a segmenter cuts them. As thread-safe as the segmenter is."""

    def __init__(self, cut: Cut, script: Script):
        """Take the segmenter and what it decides about."""
        self._cut = cut
        self._script = script

    def __call__(self, runs: list[str], words_of_run: list[list[str]]) -> NDArray[np.int8]:
        """Return (C,) the mark of each character of the words of all runs, end to end.

        Example: of the run `"\u6211\u7231\u5317\u4eac"` and its four words, only the last one CONTINUES.
        """
        spelled = ["".join(words) for words in words_of_run]
        found = _find_letters(spelled, self._script)
        marks_C = np.full(found.characters, KEPT, np.int8)
        if len(found.place_K) == 0:
            return marks_C[:-1]

        begins_K, follows_K, is_last_K = self._segment(runs, spelled, found)
        is_first_C = np.zeros(found.characters, dtype=bool)
        is_first_C[_starts_of(list(chain.from_iterable(words_of_run)))] = True

        letter_K = found.base_B[found.place_K]
        marks_C[letter_K[is_first_C[letter_K] & follows_K]] = CONTINUES
        marks_C[letter_K[~is_first_C[letter_K] & begins_K]] = BEGINS

        # A letter of another script inside of BERT's word, after the end of the segmenter's word.
        is_other_B = ~found.is_letter_B & ~is_first_C[found.base_B]
        next_K = found.place_K + 1
        marks_C[found.base_B[next_K[is_last_K & is_other_B[next_K]]]] = BEGINS
        return marks_C[:-1]

    def _segment(self, runs: list[str], spelled: list[str], found: _Letters) -> tuple[Bools, Bools, Bools]:
        """Return of each letter whether it begins a word, follows another letter of its word, and is the word's last.

        found: the letters of the words (`spelled`).
        """
        texts = runs
        written = _find_letters(texts, self._script)
        differs_R = written.letters_R != found.letters_R
        if differs_R.any():
            texts = [words if differs else run for run, words, differs in zip(runs, spelled, differs_R, strict=True)]
            written = _find_letters(texts, self._script)

        begins_C = np.zeros(written.characters, dtype=bool)
        starts_R1 = _starts_of(texts)
        begins_C[starts_R1] = True
        for run in np.flatnonzero(written.letters_R):
            begins_C[starts_R1[run] + np.array(self._cut(texts[run]), np.int64)] = True

        begins_B = begins_C[written.base_B]
        begins_B[0] = True
        begins_K = begins_B[written.place_K]
        return begins_K, ~begins_K & written.is_letter_B[written.place_K - 1], begins_B[written.place_K + 1]


class _Letters(NamedTuple):
    """Where letters are in texts laid end to end, after which a NUL stands, so that each letter has a next character.

    characters: C. base_B: the characters that are no combining marks. is_letter_B: which of them are letters. place_K:
    the places of letters in base_B. letters_R: the number of letters of each text.
    """

    characters: int
    base_B: Ints
    is_letter_B: Bools
    place_K: Ints
    letters_R: Ints


def _find_letters(texts: list[str], script: Script) -> _Letters:
    points_C = np.frombuffer(("".join(texts) + "\0").encode("utf-32-le", "surrogatepass"), np.uint32)
    base_B = np.flatnonzero(~_in_ranges(points_C, script.combining))
    is_letter_B = _in_ranges(points_C[base_B], script.letters)
    place_K = np.flatnonzero(is_letter_B)

    starts_R1 = _starts_of(texts)
    letters_R = np.diff(np.searchsorted(base_B[place_K], starts_R1))
    return _Letters(len(points_C), base_B, is_letter_B, place_K, letters_R)


def _starts_of(texts: list[str]) -> Ints:
    """Return where each text begins if all are laid end to end, and the end."""
    return offsets_of(np.fromiter(map(len, texts), np.int64, len(texts)))


def _in_ranges(points: NDArray[np.uint32], ranges: Ranges) -> Bools:
    found = np.zeros(len(points), dtype=bool)
    for first, last in ranges:
        found |= (points >= first) & (points <= last)
    return found
