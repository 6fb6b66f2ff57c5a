"""The strings that a Unigram vocabulary is learned from: words folded, and cut where no piece may cross.

A piece never contains characters of two scripts, as in sentencepiece (split_by_unicode_script). So each word is cut
between scripts first, "_end." into "_end" and ".", and equal parts of all words are added up. There are far fewer parts
than words, because words include punctuation. (The underscore stands for sentencepiece's mark of a space, U+2581.)

Shape suffixes: N distinct words or parts, T characters of all of them, D distinct characters, C code points.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from tokenizers import normalizers, pre_tokenizers

from pipeline.vocab.words import CODE_POINTS, Words, look_up
from pipeline.words.rules import fold_steps
from schemas import shards
from schemas.ragged import offsets_of
from schemas.vocabulary import SENTENCEPIECE_SPACE, Family

MAX_PART_CHARACTERS = 128
"""Longer parts are cut, because the sums over their segmentations would exceed the range of 64-bit floats."""

WORDS_AT_ONCE = 1 << 18  # that are Python or Arrow strings at the same time

_JOINS = 0
"""The class of characters that combine with any script: the mark of a space, and combining marks."""

_COMBINING = "\u0301"


@dataclass(frozen=True)
class UnigramRules:
    """How a Unigram vocabulary's text is normalized, and whose special tokens it has."""

    family: Family = "albert"
    lowercase: bool = True
    keep_accents: bool = False


def fold_words(words: Words, lowercase: bool, keep_accents: bool) -> Words:
    """Return counted words, which have case and accents, in the form that the vocabulary's normalizer gives them.

    Different words may become equal; they are not added up here.
    """
    steps = fold_steps(lowercase, keep_accents)
    if not steps:
        return words

    normalize = normalizers.Sequence(steps).normalize_str  # type: ignore[arg-type]

    def fold(word: str) -> str:
        if word[1:].isascii():  # the first character is the mark of a space
            return word.lower() if lowercase else word
        return normalize(word)

    folded = []
    for some in _slices(words):
        strings = [fold(word) for word in arrow_strings(some).to_pylist()]
        # A lone accent is now only the mark of a space. No text is tokenized as that.
        is_word_N = np.array([string != SENTENCEPIECE_SPACE for string in strings], dtype=bool)
        counted = pa.table([pa.array(strings, pa.string()), some.counts_N], schema=shards.COUNTS_SCHEMA)
        folded.append(Words.of(counted).select(is_word_N))
    return Words.concatenate(folded)


def cut_parts(words: Words, is_kept_C: NDArray[np.bool_]) -> Words:
    """Return the parts of words, each once with its count, the longest first, then in alphabetical order.

    is_kept_C: the characters of the alphabet. A word is cut at any other character, which is in no part.
    """
    classes_C = script_classes(np.flatnonzero(_occurring(words)))
    sums: dict[str, int] = {}
    for some in _slices(words):
        parts = _cut(some, is_kept_C, classes_C)
        # Arrow adds up most of them; what remains of each slice is only its distinct parts.
        grouped = pa.table({"part": arrow_strings(parts), "count": parts.counts_N}).group_by("part", use_threads=False)
        added = grouped.aggregate([("count", "sum")])
        for part, count in zip(added["part"].to_pylist(), added["count_sum"].to_pylist(), strict=True):
            sums[part] = sums.get(part, 0) + count

    ordered = sorted(sums, key=lambda part: (-len(part), part))
    return Words.of_counts({part: sums[part] for part in ordered})


def _cut(words: Words, is_kept_C: NDArray[np.bool_], classes_C: NDArray[np.uint8]) -> Words:
    characters_T = words.characters_T
    starts_N = offsets_of(words.lengths_N)[:-1]
    class_T = look_up(classes_C, characters_T)
    is_kept_T = look_up(is_kept_C, characters_T)

    # A joining character gets the class of the nearest other character before it in the word, if there is one.
    places_T = np.arange(len(characters_T))
    last_other_T = np.maximum.accumulate(np.where(class_T != _JOINS, places_T, -1))
    word_start_T = np.repeat(starts_N, words.lengths_N)
    class_T = np.where(last_other_T >= word_start_T, class_T[last_other_T], _JOINS)

    begins_T = np.zeros(len(characters_T), dtype=bool)
    begins_T[1:] = (class_T[1:] != class_T[:-1]) & (class_T[:-1] != _JOINS)
    begins_T[1:] |= ~is_kept_T[1:] | ~is_kept_T[:-1]
    begins_T[starts_N] = True

    # Long parts are cut at every MAX_PART_CHARACTERS.
    begins = np.flatnonzero(begins_T)
    lengths = np.diff(begins, append=len(characters_T))
    place_in_part_T = places_T - np.repeat(begins, lengths)
    begins_T |= place_in_part_T % MAX_PART_CHARACTERS == 0

    begins = np.flatnonzero(begins_T)
    lengths = np.diff(begins, append=len(characters_T))
    word_of_part = np.searchsorted(starts_N, begins, side="right") - 1
    parts = Words(characters_T, lengths, words.counts_N[word_of_part])
    return parts.select(is_kept_T[begins])


def script_classes(code_points: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return (C,) uint8: a number for the script of each code point; only characters with equal numbers share pieces.

    The scripts are those of tokenizers' `UnicodeScripts`, which follows sentencepiece: kana count as Chinese, and
    digits, punctuation and symbols are one script. It does not name scripts, so each character is compared with one
    example of each script found so far.
    """
    split = pre_tokenizers.UnicodeScripts().pre_tokenize_str
    classes_C = np.zeros(CODE_POINTS, dtype=np.uint8)
    examples = [_COMBINING]
    for point in code_points.tolist():
        character = chr(point)
        if character == SENTENCEPIECE_SPACE:
            continue

        found = next((i for i, other in enumerate(examples) if len(split(other + character)) == 1), None)
        if found is None:
            found = len(examples)
            examples.append(character)
        classes_C[point] = found
    return classes_C


def _occurring(words: Words) -> NDArray[np.bool_]:
    occurs_C = np.zeros(CODE_POINTS, dtype=bool)
    occurs_C[words.characters_T] = True
    return occurs_C


def _slices(words: Words) -> Iterator[Words]:
    """Yield the words in slices of WORDS_AT_ONCE, at least one."""
    offsets_N1 = offsets_of(words.lengths_N)
    for start in range(0, max(1, len(words.counts_N)), WORDS_AT_ONCE):
        end = min(start + WORDS_AT_ONCE, len(words.counts_N))
        characters = words.characters_T[offsets_N1[start] : offsets_N1[end]]
        yield Words(characters, words.lengths_N[start:end], words.counts_N[start:end])


def arrow_strings(words: Words) -> pa.Array:
    """Return words as an Arrow array."""
    return pa.array(strings_of(words), pa.string())


def strings_of(words: Words) -> list[str]:
    """Return words as Python strings."""
    text = words.characters_T.astype("<u4").tobytes().decode("utf-32-le")
    offsets = offsets_of(words.lengths_N).tolist()
    return [text[start:end] for start, end in pairwise(offsets)]
