"""MinHash signatures (Broder, "On the resemblance and containment of documents", 1997).

    word        an ideograph or kana, or a run of other letters, digits and underscores, in lower case
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

Words are found in an array of code points, and hashed as a polynomial over them:

    hash = mix(sum of code_point[i] * BASE**i, modulo 2**64)

which one pass over the array computes for all words. It costs a seventh of a regular expression and a hash per word.
Different words have equal hashes about as often as random 64-bit numbers do; equal ones would merely make two documents
look slightly more similar.

Shape suffixes: D documents, W words, S shingles, M minima (PERMUTATIONS), C code points of a text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas.randomness import key, mix, numbers

SHINGLE_WORDS = 5
PERMUTATIONS = 128

SIGNATURE_SCHEMA = pa.schema([("document", pa.uint64()), ("minima", pa.binary(PERMUTATIONS))])
"""document: its id. minima: the lowest 8 bits of each minimum. 136 bytes per row."""

SIGNATURE_BUCKETS = 256
"""Number of ranges of keys that the runs of bands and signatures are cut into. With more buckets than this, they are
merged before they are read, and cut again."""

_SHINGLES_AT_A_TIME = 1 << 14  # 64 KB, so that 128 passes over them stay in a core's cache

Minima = NDArray[np.uint32]

HASHED_CHARACTERS = 1 << 16
"""Characters that are hashed at a time. Their arrays fit into a core's cache."""

# Kana, CJK ideographs and their extension A, compatibility ideographs.
IDEOGRAPHS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"

# A text may be cut before such a character without cutting a word.
_CUT = re.compile(rf"[\W{IDEOGRAPHS}]")

_CODE_POINTS = 0x110000
_BASE = key("words of near-duplicates") | 1  # odd, and so invertible modulo 2**64
_INVERSE = pow(_BASE, -1, 1 << 64)

Hashes = NDArray[np.uint64]
Positions = NDArray[np.int64]


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
    """Yield the texts of consecutive documents in lower case, about HASHED_CHARACTERS characters per group."""
    texts: list[str] = []
    characters = 0
    for sentences in documents:
        text = " ".join(sentences).lower()
        texts.append(text)
        characters += len(text)
        if characters >= HASHED_CHARACTERS:
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
    stored_D = binary_column(minima_DM.astype(np.uint8))  # keeps the lowest 8 bits
    return pa.record_batch([pa.array(ids_D, pa.uint64()), stored_D], schema=SIGNATURE_SCHEMA)


def binary_column(minima_DM: NDArray[np.uint8]) -> pa.Array:
    """Return (D, PERMUTATIONS) uint8 values as an Arrow column of fixed-size binary values."""
    data = pa.py_buffer(np.ascontiguousarray(minima_DM))
    return pa.Array.from_buffers(pa.binary(PERMUTATIONS), len(minima_DM), [None, data])


def distinct_signatures(ids: list[int], documents: Iterable[list[str]]) -> tuple[Hashes, Minima]:
    """Return (D,) uint64 distinct ids in ascending order and (D, PERMUTATIONS) uint32, their signatures.

    documents: the sentences of each id's document. Copies of one text have the same id.
    """
    ids_D, places_D = np.unique(np.array(ids, dtype=np.uint64), return_index=True)
    return ids_D, minhash_signatures(documents)[places_D]


# ---- Words ----


@cache
def _letters() -> tuple[Hashes, NDArray[np.bool_]]:
    """Return a table of each code point itself, or 0 if it is not part of words, and a table of ideographs.

    The tables take 10 MB. Threads may compute them twice, with the same result.
    """
    every = np.arange(_CODE_POINTS, dtype="<u4").tobytes().decode("utf-32-le", "surrogatepass")

    is_ideograph = np.zeros(_CODE_POINTS, bool)
    for found in re.finditer(f"[{IDEOGRAPHS}]+", every):
        is_ideograph[found.start() : found.end()] = True

    is_letter = is_ideograph.copy()
    for found in re.finditer(r"\w+", every):
        is_letter[found.start() : found.end()] = True

    letters = np.where(is_letter, np.arange(_CODE_POINTS, dtype=np.uint64), np.uint64(0))
    return letters, is_ideograph


@cache
def _powers() -> tuple[Hashes, Hashes]:
    """Return the powers of the base and of its inverse that suffice unless a word has more than HASHED_CHARACTERS."""
    return _power_tables(2 * HASHED_CHARACTERS)


def _power_tables(size: int) -> tuple[Hashes, Hashes]:
    """Return (size,) powers of the base and (size,) powers of its inverse, from exponent 0 up."""
    tables = []
    for base in (_BASE, _INVERSE):
        factors = np.full(size, base, np.uint64)
        factors[0] = 1
        tables.append(np.multiply.accumulate(factors))
    return tables[0], tables[1]


def hash_words(text: str) -> tuple[Hashes, Positions]:
    """Return (W,) uint64 hashes of the words of a text, in order, and (W,) int64 positions of their first letters.

    To ignore case, pass the text in lower case. Needs 40 bytes per character of HASHED_CHARACTERS, and 16 per word.
    """
    hashes = [np.zeros(0, np.uint64)]
    positions = [np.zeros(0, np.int64)]
    for start, piece in _pieces(text):
        hashes_W, positions_W = _hash_piece(piece)
        hashes.append(hashes_W)
        positions.append(positions_W + start)
    return np.concatenate(hashes), np.concatenate(positions)


def _pieces(text: str) -> Iterator[tuple[int, str]]:
    """Yield (start, piece): HASHED_CHARACTERS to twice as many. Words are not cut: a longer word is a longer piece."""
    start = 0
    while start < len(text):
        end = len(text)
        if end - start > 2 * HASHED_CHARACTERS:
            cut = _CUT.search(text, start + HASHED_CHARACTERS)
            end = cut.start() if cut else end
        yield start, text[start:end]
        start = end


def _hash_piece(text: str) -> tuple[Hashes, Positions]:
    letters, is_ideograph = _letters()
    # Half of a surrogate pair is not a letter, but may occur in text.
    codes_C = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    values_C = letters.take(codes_C, mode="clip")  # codes are never too large, and clipping is faster than checking

    # A word starts at a letter that follows a non-letter, at every ideograph, and at a letter after an ideograph.
    is_letter_C = values_C != 0
    continues_C = np.zeros(len(codes_C), bool)
    continues_C[1:] = is_letter_C[:-1]
    if not text.isascii():
        ideographs_C = is_ideograph[codes_C]
        continues_C[ideographs_C] = False
        continues_C[1:][ideographs_C[:-1]] = False
    starts_W = np.flatnonzero(is_letter_C & ~continues_C)
    if len(starts_W) == 0:
        return np.zeros(0, np.uint64), starts_W

    # The sum from one word's start to the next one's: characters between the words have value 0. Differences of running
    # sums are exact modulo 2**64, and faster than one sum per word.
    powers, inverses = _powers() if len(text) <= 2 * HASHED_CHARACTERS else _power_tables(len(text))
    values_C *= powers[: len(codes_C)]
    running_C = np.cumsum(values_C, out=values_C)
    before_W = running_C[starts_W - 1]
    before_W[0] = 0
    sums_W = np.append(before_W[1:], running_C[-1]) - before_W
    return mix(sums_W * inverses[starts_W]), starts_W
