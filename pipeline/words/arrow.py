"""Columns of strings as arrays of bytes, and hashes of their strings.

An Arrow column of strings has their UTF-8 end to end in one buffer, and in a second buffer the offsets at which each
begins. Both can be read and made as NumPy arrays, so no string becomes a Python object.

Shape suffixes: B bytes of all strings, N strings. N1 has one element more, for the end of the last string.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas.randomness import GOLDEN, MIX_1

Bytes = NDArray[np.uint8]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

SPACE_BYTE = 0x20
HASHED_AT_ONCE = 1 << 20  # bytes

# Odd factors with well mixed bits.
_HASH_FACTOR = np.uint64(GOLDEN)
_MIX_FACTOR = np.uint64(MIX_1)
_SHIFT = np.uint64(31)


def bytes_of(strings: pa.StringArray) -> tuple[Bytes, Ints]:
    """Return (B,) the UTF-8 of N strings, not copied, and (N1,) the offset of each string, from 0.

    The column may be a slice of a longer one.
    """
    if len(strings) == 0:
        return np.zeros(0, dtype=np.uint8), np.zeros(1, dtype=np.int64)

    _, offsets, text = strings.buffers()
    first = strings.offset
    offsets_N1 = np.frombuffer(offsets, np.int32)[first : first + len(strings) + 1].astype(np.int64)
    start = offsets_N1[0]
    end = offsets_N1[-1]
    text_B: Bytes = np.zeros(0, dtype=np.uint8) if text is None else np.frombuffer(text, np.uint8)[start:end]
    return text_B, offsets_N1 - start


def strings_of(text_B: Bytes, offsets_N1: Ints) -> pa.StringArray:
    """Return the N strings that are end to end in a text of less than 2 GB."""
    offsets = pa.py_buffer(offsets_N1.astype(np.int32))
    return pa.StringArray.from_buffers(len(offsets_N1) - 1, offsets, pa.py_buffer(text_B))


def slices_of(strings: pa.StringArray, num_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of consecutive slices of at most `num_bytes` each, or of a single longer string."""
    _, offsets_N1 = bytes_of(strings)
    start = 0
    while start < len(strings):
        # Find the last string that ends within the limit. If even the first one does not, it is a slice alone.
        last_within = int(np.searchsorted(offsets_N1, offsets_N1[start] + num_bytes, side="right")) - 1
        stop = max(last_within, start + 1)

        yield start, stop
        start = stop


def hashes_of(strings: pa.StringArray) -> NDArray[np.uint64]:
    """Return (N,) uint64 hashes: polynomials of the bytes, mixed so that all bits of a hash depend on all bytes."""
    hashes_N = np.zeros(len(strings), dtype=np.uint64)

    # A few strings at a time, because their bytes become 64-bit numbers: 16 times the memory of the strings.
    for start, stop in slices_of(strings, HASHED_AT_ONCE):
        hashes_N[start:stop] = _polynomials(strings.slice(start, stop - start))

    # A product carries low bits only upward. The shifts bring the high bits down, before and after.
    hashes_N ^= hashes_N >> _SHIFT
    hashes_N *= _MIX_FACTOR
    hashes_N ^= hashes_N >> _SHIFT
    return hashes_N


def _polynomials(strings: pa.StringArray) -> NDArray[np.uint64]:
    """Return (N,) uint64: the sum, modulo 2**64, of each byte plus 1 times a power of _HASH_FACTOR; 0 if empty."""
    text_B, offsets_N1 = bytes_of(strings)
    starts_N = offsets_N1[:-1]
    lengths_N = np.diff(offsets_N1)

    # powers[n] is the factor to the power of n + 1.
    powers = np.multiply.accumulate(np.full(lengths_N.max(initial=0), _HASH_FACTOR, dtype=np.uint64))

    # Add 1 to each byte; otherwise zero bytes at the end of a string would not affect the hash.
    place_in_string_B = np.arange(len(text_B)) - np.repeat(starts_N, lengths_N)
    terms_B = (text_B.astype(np.uint64) + np.uint64(1)) * powers[place_in_string_B]

    # `reduceat` would give an empty string the term at its start, so only the others are added up.
    sums_N = np.zeros(len(strings), dtype=np.uint64)
    is_string_N = lengths_N > 0
    sums_N[is_string_N] = np.add.reduceat(terms_B, starts_N[is_string_N])
    return sums_N
