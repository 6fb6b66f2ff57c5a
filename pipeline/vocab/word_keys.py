"""64-bit hashes of words, which decide the partition that counts a word.

A hash is a polynomial of the word's bytes, computed for all words at once as arrays.

Shape suffixes: W words, B bytes of all words.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.vocab.arrow_strings import bytes_of_strings, offsets_of_strings, slices_of_strings

HASHED_AT_ONCE = 1 << 20  # bytes of words

# Odd factors with well mixed bits: 2**64 divided by the golden ratio, and a factor of the generator SplitMix64.
_HASH_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_MIX_FACTOR = np.uint64(0xBF58476D1CE4E5B9)
_SHIFT = np.uint64(31)


def keys_of_words(words: pa.StringArray) -> NDArray[np.uint64]:
    """Return (W,) uint64 hashes: polynomials of the bytes, mixed so that all bits of a key depend on all bytes.

    Words that collide share a partition and are still counted separately, so the hash decides nothing else.
    """
    hashes_W = np.zeros(len(words), dtype=np.uint64)

    # A few words at a time, because their bytes become 64-bit numbers: 16 times the memory of the words.
    for start, stop in slices_of_strings(words, HASHED_AT_ONCE):
        hashes_W[start:stop] = _polynomials(words.slice(start, stop - start))

    # A product carries low bits only upward. The shifts bring the high bits down, before and after.
    hashes_W ^= hashes_W >> _SHIFT
    hashes_W *= _MIX_FACTOR
    hashes_W ^= hashes_W >> _SHIFT
    return hashes_W


def _polynomials(words: pa.StringArray) -> NDArray[np.uint64]:
    """Return (W,) uint64: the sum, modulo 2**64, of each byte plus 1 times a power of _HASH_FACTOR; 0 if empty."""
    text_B = bytes_of_strings(words).astype(np.uint64)
    offsets = offsets_of_strings(words).astype(np.int64)
    starts_W = offsets[:-1] - offsets[0]
    lengths_W = np.diff(offsets)

    sums_W = np.zeros(len(words), dtype=np.uint64)
    if len(text_B) == 0:
        return sums_W

    # powers[n] is the factor to the power of n + 1.
    longest = int(lengths_W.max())
    powers = np.multiply.accumulate(np.full(longest, _HASH_FACTOR, dtype=np.uint64))

    # Add 1 to each byte; otherwise zero bytes at the end of a word would not affect the hash.
    place_in_word_B = np.arange(len(text_B)) - np.repeat(starts_W, lengths_W)
    terms_B = (text_B + np.uint64(1)) * powers[place_in_word_B]

    # `reduceat` would give an empty word the term at its start, so only non-empty words are added up.
    is_word_W = lengths_W > 0
    sums_W[is_word_W] = np.add.reduceat(terms_B, starts_W[is_word_W])
    return sums_W
