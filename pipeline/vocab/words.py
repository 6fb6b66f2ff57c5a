"""The distinct words of a corpus as arrays of characters, and the characters frequent enough for an alphabet.

Shape suffixes: N distinct words, T characters of all words, C code points (all of Unicode).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from schemas import shards
from schemas.ragged import offsets_of

CODE_POINTS = 0x110000
WORDS_AT_ONCE = 100_000  # words or characters per array operation, because numpy makes large copies of them


@dataclass(frozen=True)
class Words:
    """Distinct words end to end: word i is the next `lengths_N[i]` of `characters_T` and occurs `counts_N[i]` times.

    A character is its code point, as uint16 if all code points fit, otherwise as uint32.
    """

    characters_T: NDArray[Any]
    lengths_N: NDArray[np.int64]
    counts_N: NDArray[np.int64]

    @classmethod
    def of(cls, counts: pa.Table) -> Words:
        """Return the words of a table of word counts (shards.COUNTS_SCHEMA)."""
        lengths_N = pc.utf8_length(counts["word"]).to_numpy().astype(np.int64)  # type: ignore[attr-defined]
        characters_T = np.frombuffer(_text_of(counts).encode("utf-32-le"), np.uint32)
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

    def count_characters(self) -> NDArray[np.int64]:
        """Return (C,) int64: how often each character occurs in the corpus, exactly."""
        counts_C = np.zeros(CODE_POINTS, dtype=np.int64)
        offsets_N1 = offsets_of(self.lengths_N)

        for start in range(0, len(self.counts_N), WORDS_AT_ONCE):
            end = min(start + WORDS_AT_ONCE, len(self.counts_N))
            characters = self.characters_T[offsets_N1[start] : offsets_N1[end]]
            amounts = np.repeat(self.counts_N[start:end], self.lengths_N[start:end])
            np.add.at(counts_C, characters, amounts)  # exact in 64 bits; bincount would sum floats

        return counts_C

    def count_occurrences(self) -> int:
        """Return the number of characters in the corpus."""
        return int(self.lengths_N @ self.counts_N)

    def select(self, is_kept_N: NDArray[np.bool_]) -> Words:
        """Return the words for which `is_kept_N` is true."""
        is_kept_T = np.repeat(is_kept_N, self.lengths_N)
        return Words(self.characters_T[is_kept_T], self.lengths_N[is_kept_N], self.counts_N[is_kept_N])


def _text_of(counts: pa.Table) -> str:
    """Return all words end to end, read from Arrow's buffers. Python strings would take six times the memory."""
    words = counts["word"].combine_chunks()
    _, offsets, text = words.buffers()
    if len(words) == 0 or text is None:
        return ""

    offsets_N1 = np.frombuffer(offsets, np.int32)[words.offset :][: len(words) + 1]
    start = int(offsets_N1[0])
    end = int(offsets_N1[-1])
    return text[start:end].to_pybytes().decode()


def common_characters(counts_C: NDArray[np.int64], limit: int) -> tuple[NDArray[np.bool_], dict[str, int]]:
    """Return ((C,) bool, true for the `limit` most frequent characters; all others with their counts).

    Among characters with equal counts, the lower code point is kept.
    """
    points = np.flatnonzero(counts_C)
    ranked = points[np.argsort(-counts_C[points], kind="stable")]

    is_kept_C = np.zeros(CODE_POINTS, dtype=bool)
    is_kept_C[ranked[:limit]] = True
    cut = {chr(point): int(counts_C[point]) for point in ranked[limit:].tolist()}
    return is_kept_C, cut


def look_up(table: NDArray[Any], indices_T: NDArray[Any]) -> NDArray[Any]:
    """Return `table[indices_T]`, WORDS_AT_ONCE at a time: numpy would make a copy of all indices in 64 bits."""
    found_T = np.empty(len(indices_T), dtype=table.dtype)
    for start in range(0, len(indices_T), WORDS_AT_ONCE):
        part = slice(start, start + WORDS_AT_ONCE)
        found_T[part] = table[indices_T[part]]
    return found_T
