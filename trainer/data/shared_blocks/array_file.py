"""Plain arrays in one file, which processes map into their memory: nothing is copied or parsed when it is opened.

8 bytes     the length of the header, little-endian
header      JSON: {name: [numpy's name of the type, number of elements, place in the file]}
arrays      each at a multiple of 64 bytes
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
    """Write one-dimensional arrays to a file. Raises OSError, which leaves part of the file."""
    header, end = _layout(arrays)
    places = json.loads(header)
    with open(path, "wb") as file:
        file.write(len(header).to_bytes(LENGTH_BYTES, "little") + header)
        for name, array in arrays.items():
            file.seek(places[name][2])
            file.write(np.ascontiguousarray(array).view(np.uint8).data)
        file.truncate(end)


def map_arrays(path: str) -> dict[str, NDArray[Any]]:
    """Return the arrays of a file, read-only. Their memory stays when the file is removed.

    Raises OSError if the file cannot be opened, and ValueError if it is not whole.
    """
    # Python's mmap keeps a descriptor for each map, Arrow's does not: many hundred shards may be in memory, and a
    # process has 1,024 descriptors unless told otherwise.
    with pa.memory_map(path, "r") as file:
        memory = file.read_buffer()

    arrays_begin = LENGTH_BYTES + int.from_bytes(memory[:LENGTH_BYTES].to_pybytes(), "little")
    header = json.loads(memory[LENGTH_BYTES:arrays_begin].to_pybytes())
    arrays = {}
    for name, (kind, count, place) in header.items():
        arrays[name] = np.frombuffer(memory, np.dtype(kind), count, place)
    return arrays


def _layout(arrays: Arrays) -> tuple[bytes, int]:
    """Return (the header, the size of the file)."""
    # Places depend on the header's length and are part of it, so the header gets room enough for any places.
    room = LENGTH_BYTES + sum(len(name) + 64 for name in arrays) + 2
    place = _round_up(room)

    places = {}
    for name, array in arrays.items():
        places[name] = [array.dtype.str, len(array), place]
        place = _round_up(place + array.nbytes)
    return json.dumps(places).encode(), place


def _round_up(number: int) -> int:
    return -(-number // ALIGNMENT) * ALIGNMENT
