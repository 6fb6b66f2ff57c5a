"""MinHash signatures (Broder, "On the resemblance and containment of documents", 1997).

    shingle     5 consecutive words; a document with fewer words has a single shingle of all of them
    minimum i   the smallest value of a permutation i over a document's shingles, i = 0 .. 127
    signature   the 128 minima

Two documents agree in minimum i exactly if the smallest shingle of their union belongs to both. The probability of that
is |A & B| / |A | B|: the Jaccard similarity of their sets of shingles. So the share of equal minima estimates it
without bias, with a standard deviation of sqrt(s * (1 - s) / 128): 0.04 at s = 0.7.

A permutation is the affine map x -> a * x + b modulo 2**32 of 32-bit hashes of shingles, with a odd, as in datasketch's
scheme "affine32". All minima of a permutation are found in one pass over the shingles of many documents.

For comparing signatures, the lowest 8 bits of each minimum are enough (Li and Koenig, "b-Bit Minwise Hashing", WWW
2010): different minima agree in them with probability 1/256, which raises the share of equal ones at s = 0.7 from 0.7
to 0.7012. The bands use whole minima, because 8 of them must not agree by accident.

Shape suffixes: D documents, W words, S shingles, M minima (PERMUTATIONS).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.shard.near_duplicates.words import PIECE, Hashes, Positions, hash_words
from schemas.randomness import key, mix, numbers

SHINGLE_WORDS = 5
PERMUTATIONS = 128

SIGNATURE_SCHEMA = pa.schema([("document", pa.uint64()), ("minima", pa.binary(PERMUTATIONS))])
"""document: its id. minima: the lowest 8 bits of each minimum. 136 bytes per row."""

_SHINGLES_AT_A_TIME = 1 << 14  # 64 KB, so that 128 passes over them stay in a core's cache

Minima = NDArray[np.uint32]


@cache
def _permutations() -> tuple[list[np.uint32], list[np.uint32]]:
    """Return the factors a, all odd, and the offsets b of the permutations."""
    draws = numbers(np.uint64(key("permutations of near-duplicates")), np.arange(2 * PERMUTATIONS))
    high = (draws >> np.uint64(32)).astype(np.uint32)
    return list(high[:PERMUTATIONS] | np.uint32(1)), list(high[PERMUTATIONS:])


@cache
def _word_factors() -> Hashes:
    """Return (SHINGLE_WORDS,) odd factors, which make the order of a shingle's words matter."""
    return numbers(np.uint64(key("shingles of near-duplicates")), np.arange(SHINGLE_WORDS)) | np.uint64(1)


def minhash_signatures(documents: Iterable[list[str]]) -> Minima:
    """Return (D, PERMUTATIONS) uint32: the signatures of documents, each a list of sentences.

    A document's signature depends on its words alone. Needs a few MB in addition to the result, or 100 bytes per word
    for a very long document.
    """
    minima = [np.zeros((0, PERMUTATIONS), np.uint32)]
    for texts in _groups(documents):
        shingles_S, starts_D = _shingles(texts)
        minima.append(_minima(shingles_S, starts_D))
    return np.concatenate(minima)


def _groups(documents: Iterable[list[str]]) -> Iterator[list[str]]:
    """Yield the texts of consecutive documents in lower case, about PIECE characters per group."""
    texts: list[str] = []
    characters = 0
    for sentences in documents:
        text = " ".join(sentences).lower()
        texts.append(text)
        characters += len(text)
        if characters >= PIECE:
            yield texts
            texts = []
            characters = 0
    if texts:
        yield texts


def _shingles(texts: list[str]) -> tuple[NDArray[np.uint32], Positions]:
    """Return (S,) uint32, the shingles of all texts in order, and (D,) int64, the start of each text's shingles.

    Every text has at least one shingle: a short text is padded with words of hash 0.
    """
    words_W, positions_W = hash_words(" ".join(texts))
    lengths_D = np.array([len(text) for text in texts])
    text_ends_D = np.cumsum(lengths_D + 1)
    ends_D = np.searchsorted(positions_W, text_ends_D)
    words_in_D = np.diff(ends_D, prepend=0)

    missing_D = np.maximum(SHINGLE_WORDS - words_in_D, 0)
    if missing_D.any():
        words_W = np.insert(words_W, np.repeat(ends_D, missing_D), np.uint64(0))
        ends_D = ends_D + np.cumsum(missing_D)

    last_start = len(words_W) - SHINGLE_WORDS + 1
    sums = np.zeros(last_start, np.uint64)
    for place, factor in enumerate(_word_factors()):
        sums += words_W[place : place + last_start] * factor

    # A text has 4 shingles fewer than words: none starts in its last 4 words, because it would extend into the next
    # text.
    crosses_texts = ends_D[:-1, None] - np.arange(1, SHINGLE_WORDS)
    keeps = np.ones(last_start, bool)
    keeps[crosses_texts] = False
    shingles_S = (mix(sums[keeps]) >> np.uint64(32)).astype(np.uint32)

    shingle_ends_D = ends_D - (SHINGLE_WORDS - 1) * np.arange(1, len(texts) + 1)
    return shingles_S, np.concatenate([np.zeros(1, np.int64), shingle_ends_D[:-1]])


def _minima(shingles_S: NDArray[np.uint32], starts_D: Positions) -> Minima:
    """Return (D, PERMUTATIONS) uint32: the minima over the shingles of each document. Each has at least one."""
    minima_DM = np.full((len(starts_D), PERMUTATIONS), np.uint32(0xFFFFFFFF))
    for start in range(0, len(shingles_S), _SHINGLES_AT_A_TIME):
        part_S = shingles_S[start : start + _SHINGLES_AT_A_TIME]
        end = start + len(part_S)

        # The first document of a part may have begun in an earlier part.
        first = int(np.searchsorted(starts_D, start, side="right")) - 1
        after_last = int(np.searchsorted(starts_D, end))
        starts_in_part = np.maximum(starts_D[first:after_last] - start, 0)

        minima_MD = _minima_of_part(part_S, starts_in_part)
        known_DM = minima_DM[first:after_last]
        np.minimum(known_DM, minima_MD.T, out=known_DM)
    return minima_DM


def _minima_of_part(shingles_S: NDArray[np.uint32], starts_D: Positions) -> Minima:
    """Return (PERMUTATIONS, D) uint32: the minima over one part of the shingles."""
    minima_MD = np.empty((PERMUTATIONS, len(starts_D)), np.uint32)
    permuted_S = np.empty_like(shingles_S)
    factors, offsets = _permutations()
    for i in range(PERMUTATIONS):
        np.multiply(shingles_S, factors[i], out=permuted_S)
        np.add(permuted_S, offsets[i], out=permuted_S)
        np.minimum.reduceat(permuted_S, starts_D, out=minima_MD[i])
    return minima_MD


def signature_rows(ids_D: Hashes, minima_DM: Minima) -> pa.RecordBatch:
    """Return the SIGNATURE_SCHEMA rows of documents."""
    low_bytes_DM = minima_DM.astype(np.uint8)  # keeps the lowest 8 bits
    stored_D = pa.Array.from_buffers(pa.binary(PERMUTATIONS), len(ids_D), [None, pa.py_buffer(low_bytes_DM)])
    return pa.record_batch([pa.array(ids_D, pa.uint64()), stored_D], schema=SIGNATURE_SCHEMA)
