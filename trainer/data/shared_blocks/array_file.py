"""Stores plain arrays in one file that processes map into memory: opening it copies no array.

8 bytes     the length of the header in bytes, little-endian
header      JSON: {name: [NumPy's dtype string, number of elements, offset in the file]}
arrays      each at an offset that is a multiple of 64 bytes
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

ALIGNMENT = 64
LENGTH_BYTES = 8

Arrays = Mapping[str, NDArray[Any]]


def file_size(arrays: Arrays) -> int:
    """Return the bytes of the file that `write_arrays` would write."""
    _, end = _layout(arrays)
    return end


def write_arrays(path: str, arrays: Arrays) -> None:
    """Write one-dimensional arrays to a file. On OSError, part of the file may remain."""
    header, end = _layout(arrays)
    places = json.loads(header)
    with open(path, "wb") as file:
        file.write(len(header).to_bytes(LENGTH_BYTES, "little") + header)
        for name, array in arrays.items():
            file.seek(places[name][2])
            file.write(np.ascontiguousarray(array).view(np.uint8).data)
        file.truncate(end)


def map_arrays(path: str) -> dict[str, NDArray[Any]]:
    """Return the arrays of a file, read-only. They stay valid when the file is removed.

    Raises OSError if the file cannot be opened, and ValueError if it is incomplete.
    """
    # Python's mmap keeps a file descriptor open for each map, Arrow's does not. Hundreds of shards may be in memory,
    # and the usual limit is 1,024 descriptors per process.
    with pa.memory_map(path, "r") as file:
        memory = file.read_buffer()

    arrays_begin = LENGTH_BYTES + int.from_bytes(memory[:LENGTH_BYTES].to_pybytes(), "little")
    header = json.loads(memory[LENGTH_BYTES:arrays_begin].to_pybytes())
    arrays = {}
    for name, (kind, count, place) in header.items():
        arrays[name] = np.frombuffer(memory, np.dtype(kind), count, place)
    return arrays


def _layout(arrays: Arrays) -> tuple[bytes, int]:
    """Return the header, and the size of the file in bytes."""
    # The header contains the offsets, and these depend on its length. So reserve room that is enough for any offsets.
    room = LENGTH_BYTES + sum(len(name) + 64 for name in arrays) + 2
    place = _round_up(room)

    places = {}
    for name, array in arrays.items():
        places[name] = [array.dtype.str, len(array), place]
        place = _round_up(place + array.nbytes)
    return json.dumps(places).encode(), place


def _round_up(number: int) -> int:
    return -(-number // ALIGNMENT) * ALIGNMENT
