"""The distinct words of a corpus as arrays of characters, and the parts of them that Unigram learns from.

A token of Unigram never contains characters of two scripts, as in sentencepiece (split_by_unicode_script). So each word
is cut between scripts first, "_end." into "_end" and ".", and equal parts of all words are added up. There are far
fewer parts than words, because words include punctuation. (The underscore stands for sentencepiece's mark of a space,
U+2581.)

Shape suffixes: N distinct words or parts, T characters of all of them, C code points (all of Unicode).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from tokenizers import normalizers, pre_tokenizers

from pipeline.words.arrow import Bools, Ints, bytes_of
from pipeline.words.rules import fold_steps
from schemas import shards
from schemas.ragged import offsets_of
from schemas.vocabulary_kinds import SENTENCEPIECE_SPACE, Family

CODE_POINTS = 0x110000
LOOKED_UP_AT_ONCE = 100_000  # words or characters per array operation, because numpy makes large copies of them
WORDS_AT_ONCE = 1 << 18  # that are Python or Arrow strings at the same time

MAX_PART_CHARACTERS = 128
"""Longer parts are cut, because the sums over their segmentations would exceed the range of 64-bit floats."""

_JOINS = 0
"""The class of characters that combine with any script: the mark of a space, and combining marks."""

_COMBINING = "\u0301"


@dataclass(frozen=True)
class Words:
    """Distinct words end to end: word i is the next `lengths_N[i]` of `characters_T` and occurs `counts_N[i]` times.

    A character is its code point, as uint16 if all code points fit, otherwise as uint32.
    """

    characters_T: NDArray[Any]
    lengths_N: Ints
    counts_N: Ints

    @classmethod
    def of(cls, counts: pa.Table) -> Words:
        """Return the words of a table of word counts (shards.COUNTS_SCHEMA)."""
        lengths_N = pc.utf8_length(counts["word"]).to_numpy().astype(np.int64)  # type: ignore[attr-defined]
        text_B, _ = bytes_of(counts["word"].combine_chunks())
        characters_T = np.frombuffer(text_B.tobytes().decode().encode("utf-32-le"), np.uint32)
        if characters_T.max(initial=0) < 1 << 16:
            characters_T = characters_T.astype(np.uint16)
        return cls(characters_T, lengths_N, counts["count"].to_numpy())

    @classmethod
    def of_counts(cls, counts: dict[str, int]) -> Words:
        """Return the words of a {word: count} dict, in its order."""
        amounts = pa.array(list(counts.values()), pa.int64())
        return cls.of(pa.table([pa.array(list(counts), pa.string()), amounts], schema=shards.COUNTS_SCHEMA))

    @classmethod
    def concatenate(cls, parts: Sequence[Words]) -> Words:
        """Return all words of some parts, which share no word. Unlike Arrow's columns, the result may exceed 2 GB."""
        return cls(
            np.concatenate([part.characters_T for part in parts]),
            np.concatenate([part.lengths_N for part in parts]),
            np.concatenate([part.counts_N for part in parts]),
        )

    def count_characters(self) -> Ints:
        """Return (C,) int64: how often each character occurs in the corpus, exactly."""
        counts_C = np.zeros(CODE_POINTS, dtype=np.int64)
        offsets_N1 = offsets_of(self.lengths_N)

        for start in range(0, len(self.counts_N), LOOKED_UP_AT_ONCE):
            end = min(start + LOOKED_UP_AT_ONCE, len(self.counts_N))
            characters = self.characters_T[offsets_N1[start] : offsets_N1[end]]
            amounts = np.repeat(self.counts_N[start:end], self.lengths_N[start:end])
            np.add.at(counts_C, characters, amounts)  # exact in 64 bits; bincount would sum floats

        return counts_C

    def strings(self) -> list[str]:
        text = self.characters_T.astype("<u4").tobytes().decode("utf-32-le")
        offsets = offsets_of(self.lengths_N).tolist()
        return [text[start:end] for start, end in pairwise(offsets)]

    def select(self, is_kept_N: Bools) -> Words:
        is_kept_T = np.repeat(is_kept_N, self.lengths_N)
        return Words(self.characters_T[is_kept_T], self.lengths_N[is_kept_N], self.counts_N[is_kept_N])


def look_up(table: NDArray[Any], indices_T: NDArray[Any]) -> NDArray[Any]:
    """Return `table[indices_T]`, LOOKED_UP_AT_ONCE at a time: numpy would make a copy of all indices in 64 bits."""
    found_T = np.empty(len(indices_T), dtype=table.dtype)
    for start in range(0, len(indices_T), LOOKED_UP_AT_ONCE):
        part = slice(start, start + LOOKED_UP_AT_ONCE)
        found_T[part] = table[indices_T[part]]
    return found_T


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

    normalize = normalizers.Sequence(steps).normalize_str

    def fold(word: str) -> str:
        if word[1:].isascii():  # the first character is the mark of a space
            return word.lower() if lowercase else word
        return normalize(word)

    folded = []
    for some in _slices(words):
        strings = [fold(word) for word in some.strings()]
        # A lone accent is now only the mark of a space. No text is tokenized as that.
        is_word_N = np.array([string != SENTENCEPIECE_SPACE for string in strings], dtype=bool)
        counted = pa.table([pa.array(strings, pa.string()), some.counts_N], schema=shards.COUNTS_SCHEMA)
        folded.append(Words.of(counted).select(is_word_N))
    return Words.concatenate(folded)


def lower_words(words: Words) -> Words:
    """Return counted words without case, as BERT's normalizer makes them. Equal ones are not added up here."""
    lower = normalizers.Lowercase().normalize_str
    lowered = []
    for some in _slices(words):
        strings = pa.array(map(lower, some.strings()), pa.string())
        lowered.append(Words.of(pa.table([strings, some.counts_N], schema=shards.COUNTS_SCHEMA)))
    return Words.concatenate(lowered)


def cut_parts(words: Words, is_kept_C: Bools) -> Words:
    """Return the parts of words, each once with its count, the longest first, then in alphabetical order.

    is_kept_C: the characters of the alphabet. A word is cut at any other character, which is in no part.
    """
    occurs_C = np.zeros(CODE_POINTS, dtype=bool)
    occurs_C[words.characters_T] = True
    classes_C = script_classes(np.flatnonzero(occurs_C))
    sums: dict[str, int] = {}
    for some in _slices(words):
        parts = _cut(some, is_kept_C, classes_C)
        # Arrow adds up most of them; what remains of each slice is only its distinct parts.
        table = pa.table({"part": pa.array(parts.strings(), pa.string()), "count": parts.counts_N})
        added = table.group_by("part", use_threads=False).aggregate([("count", "sum")])
        for part, count in zip(added["part"].to_pylist(), added["count_sum"].to_pylist(), strict=True):
            sums[part] = sums.get(part, 0) + count

    ordered = sorted(sums, key=lambda part: (-len(part), part))
    return Words.of_counts({part: sums[part] for part in ordered})


def _cut(words: Words, is_kept_C: Bools, classes_C: NDArray[np.uint8]) -> Words:
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


def script_classes(code_points: Ints) -> NDArray[np.uint8]:
    """Return (C,) uint8: a number for the script of each code point; only characters with equal numbers share tokens.

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


def _slices(words: Words) -> Iterator[Words]:
    """Yield the words in slices of WORDS_AT_ONCE, at least one."""
    offsets_N1 = offsets_of(words.lengths_N)
    for start in range(0, max(1, len(words.counts_N)), WORDS_AT_ONCE):
        end = min(start + WORDS_AT_ONCE, len(words.counts_N))
        characters = words.characters_T[offsets_N1[start] : offsets_N1[end]]
        yield Words(characters, words.lengths_N[start:end], words.counts_N[start:end])
