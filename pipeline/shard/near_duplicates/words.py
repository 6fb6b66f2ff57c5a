"""Hash the words of many documents at once.

A word is an ideograph or kana, or a run of other letters, digits and underscores: `[ideographs]|[^\\W ideographs]+` as
a regular expression. Here it is found in an array of code points, and hashed as a polynomial over them:

    hash = mix(sum of code_point[i] * BASE**i, modulo 2**64)

which one pass over the array computes for all words. It costs a seventh of a regular expression and a hash per word.
Different words have equal hashes about as often as random 64-bit numbers do; equal ones would merely make two documents
look slightly more similar.

Shape suffixes: C code points of a text, W words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

import numpy as np
from numpy.typing import NDArray

from schemas.randomness import key, mix

PIECE = 1 << 16
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
    """Return the powers of the base and of its inverse for a piece of text; only a word above PIECE needs more."""
    return _power_tables(2 * PIECE)


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

    To ignore case, pass the text in lower case. Needs 40 bytes per character of PIECE, and 16 per word.
    """
    hashes = [np.zeros(0, np.uint64)]
    positions = [np.zeros(0, np.int64)]
    for start, piece in _pieces(text):
        hashes_W, positions_W = _hash_piece(piece)
        hashes.append(hashes_W)
        positions.append(positions_W + start)
    return np.concatenate(hashes), np.concatenate(positions)


def _pieces(text: str) -> Iterator[tuple[int, str]]:
    """Yield (start, piece), PIECE to 2 * PIECE characters each. Words are not cut: a longer word is a longer piece."""
    start = 0
    while start < len(text):
        end = len(text)
        if end - start > 2 * PIECE:
            cut = _CUT.search(text, start + PIECE)
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
    powers, inverses = _powers() if len(text) <= 2 * PIECE else _power_tables(len(text))
    values_C *= powers[: len(codes_C)]
    running_C = np.cumsum(values_C, out=values_C)
    before_W = running_C[starts_W - 1]
    before_W[0] = 0
    sums_W = np.append(before_W[1:], running_C[-1]) - before_W
    return mix(sums_W * inverses[starts_W]), starts_W
