"""Columns of strings as arrays of bytes.

An Arrow column of strings has their UTF-8 end to end in one buffer, and in a second buffer the offsets at which each
begins. Both can be read and made as NumPy arrays, so no string becomes a Python object.

Shape suffixes: B bytes of all strings, N strings, N1 one more, for the end of the last string.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas.ragged import offsets_of


def strings_of(text_B: NDArray[np.uint8], lengths_N: NDArray[Any]) -> pa.StringArray:
    """Return the strings that are end to end in `text_B`, given their lengths in bytes."""
    offsets_N1 = offsets_of(np.asarray(lengths_N)).astype(np.int32)
    return pa.StringArray.from_buffers(
        length=len(offsets_N1) - 1,
        value_offsets=pa.py_buffer(offsets_N1),
        data=pa.py_buffer(text_B),
    )


def offsets_of_strings(strings: pa.StringArray) -> NDArray[np.int32]:
    """Return (N + 1,) int32: where each string begins in its buffer, and where the last one ends.

    The first offset is not 0 if the column is a slice of a longer one.
    """
    _, offsets, _ = strings.buffers()
    offsets_of_buffer = np.frombuffer(offsets, np.int32)

    first = strings.offset
    last = first + len(strings)
    return offsets_of_buffer[first : last + 1]


def bytes_of_strings(strings: pa.StringArray) -> NDArray[np.uint8]:
    """Return (B,) uint8: the bytes of all strings, end to end."""
    _, _, text = strings.buffers()
    if text is None:
        return np.zeros(0, dtype=np.uint8)

    offsets_N1 = offsets_of_strings(strings)
    text_of_buffer = np.frombuffer(text, np.uint8)
    return text_of_buffer[offsets_N1[0] : offsets_N1[-1]]


def slices_of_strings(strings: pa.StringArray, num_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of consecutive slices of at most `num_bytes` each, or of a single longer string."""
    offsets_N1 = offsets_of_strings(strings).astype(np.int64)

    start = 0
    while start < len(strings):
        # Find the last string that ends within the limit. If even the first one does not, it is a slice alone.
        limit = offsets_N1[start] + num_bytes
        last_within = int(np.searchsorted(offsets_N1, limit, side="right")) - 1
        stop = max(last_within, start + 1)

        yield start, stop
        start = stop
