"""Lays out a checkpoint's safetensors files so that each rank can write its part, and reads parts of them.

The format (huggingface/safetensors) is

    8 bytes     length of the JSON text, little-endian
    JSON text   name -> {"dtype", "shape", "data_offsets": [begin, end] in the data}, padded with spaces
    data        the elements of all tensors, end to end

All tensors are float32 here. The header depends only on names and shapes, so every rank can compute where each element
lies, and no rank ever holds more than its part of a file. Any program that reads safetensors can read the result.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from schemas.errors import CheckpointError

_LENGTH = 8  # bytes that hold the length of the JSON text
_ELEMENT = 4  # bytes of a float32
_MAX_JSON = 100_000_000  # bytes; the format's own limit

Shapes = dict[str, tuple[int, ...]]
"""The shape of each tensor, by name, in file order."""

# Errors that a malformed header causes: bad JSON, missing keys, values of wrong types, nesting that is too deep.
_MALFORMED = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


@dataclass(frozen=True)
class TensorLayout:
    """The byte layout of a file.

    header: the bytes before the data.
    begins: the offset of each tensor's first byte in the file, by name.
    size: of the file in bytes.
    """

    header: bytes
    begins: dict[str, int]
    size: int


def layout_of(shapes: Shapes, metadata: dict[str, str] | None = None) -> TensorLayout:
    """Return the layout of a file of float32 tensors with these names and shapes, in this order.

    metadata: the content of the header's key `__metadata__`.
    """
    entries: dict[str, dict[str, object]] = {}
    if metadata is not None:
        entries["__metadata__"] = dict(metadata)
    offsets: dict[str, int] = {}
    data_size = 0
    for name, shape in shapes.items():
        begin = data_size
        end = begin + _ELEMENT * prod(shape)
        entries[name] = {
            "dtype": "F32",
            "shape": list(shape),
            "data_offsets": [begin, end],
        }
        offsets[name] = begin
        data_size = end

    # Exported files have metadata. Their headers are byte for byte what the safetensors library writes.
    separators = (", ", ": ") if metadata is None else (",", ":")
    text = json.dumps(entries, separators=separators).encode()
    text += b" " * (-len(text) % 8)  # so that the elements are aligned
    header = len(text).to_bytes(_LENGTH, "little") + text

    begins = {name: len(header) + offset for name, offset in offsets.items()}
    return TensorLayout(header, begins, len(header) + data_size)


def create(path: Path, shapes: Shapes) -> None:
    """Create a file of full size with the header, and zeros for the elements, which are written later."""
    layout = layout_of(shapes)
    with path.open("wb") as file:
        file.write(layout.header)
        file.truncate(layout.size)


class TensorFile:
    """A file open for reading. Elements are addressed by a tensor's name and their position in the flattened tensor.

    path: the file. shapes: the shape of each tensor, by name, in the order of the header.
    """

    def __init__(self, path: Path):
        """Open and validate a file. Raises CheckpointError if it is not a safetensors file of float32 tensors."""
        self.path = path
        self._file = path.open("rb")
        try:
            entries, data_begin = self._read_header()
            self.shapes: Shapes = {name: tuple(entry["shape"]) for name, entry in entries.items()}
            _check_entries(entries, self.path.stat().st_size - data_begin)
            self._begins = {name: data_begin + entry["data_offsets"][0] for name, entry in entries.items()}
        except _MALFORMED as error:
            self._file.close()
            reason = "its header is nested too deeply" if isinstance(error, RecursionError) else error
            raise CheckpointError(f"{path} is not a safetensors file of float32 tensors ({reason}).") from error

    def __enter__(self) -> TensorFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.close()

    def read(self, name: str, start: int, count: int) -> Tensor:
        """Return elements `start` to `start + count` of a tensor as (count,) float32.

        Raises CheckpointError if the file ends before them.
        """
        expected_bytes = _ELEMENT * count
        self._file.seek(self._begins[name] + _ELEMENT * start)

        data = bytearray(self._file.read(expected_bytes))  # a tensor must not share read-only memory
        if len(data) != expected_bytes:
            raise CheckpointError(f"{self.path} ends inside {name}: {len(data)} of {expected_bytes} bytes are there.")
        return torch.from_numpy(np.frombuffer(data, dtype=np.float32))

    def _read_header(self) -> tuple[dict[str, Any], int]:
        """Return the entries of all tensors, and the offset of the data in the file. Raises one of _MALFORMED."""
        length = int.from_bytes(self._file.read(_LENGTH), "little")
        entries = json.loads(self._file.read(min(length, _MAX_JSON)))
        entries.pop("__metadata__", None)
        return entries, _LENGTH + length


def _check_entries(entries: dict[str, Any], data_size: int) -> None:
    """Raise ValueError if the entries do not describe float32 tensors that fill `data_size` bytes end to end."""
    ranges = []
    for name, entry in entries.items():
        begin, end = _checked_range(name, entry)
        ranges.append((begin, end, name))

    position = 0
    for begin, end, name in sorted(ranges):
        if begin != position:
            raise ValueError(
                f"{name} begins at byte {begin} of the data, expected {position}: tensors overlap or leave a gap"
            )
        position = end

    if position != data_size:
        raise ValueError(f"{data_size} bytes of data, expected {position}")


def _checked_range(name: str, entry: dict[str, Any]) -> tuple[int, int]:
    """Return the (begin, end) of a tensor in the data. Raises ValueError if its entry is inconsistent."""
    shape = entry["shape"]
    offsets = entry["data_offsets"]
    begin, end = offsets

    for number in [*shape, begin, end]:
        # Not isinstance(), because JSON's true would pass as the number 1.
        if type(number) is not int or number < 0:
            raise ValueError(f"shape {shape} or offsets {offsets} of {name} are not whole numbers from 0")
    if entry["dtype"] != "F32":
        raise ValueError(f"{name} is of type {entry['dtype']}, expected F32")

    expected_bytes = _ELEMENT * prod(shape)
    if end - begin != expected_bytes:
        raise ValueError(f"{name} of shape {shape} has {end - begin} bytes, expected {expected_bytes}")
    return begin, end
