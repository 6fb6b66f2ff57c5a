"""safetensors files of a checkpoint: where their parts lie, and reading them.

What lies in such a file does not depend on how many ranks wrote it, no rank ever holds more than its part, and anything
that reads safetensors reads it. The format is 8 bytes of header length, a JSON header, the bytes of all tensors end to
end (huggingface/safetensors); all tensors are float32 here.
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

_MAX_HEADER = 100_000_000  # bytes; the format's own limit
_MALFORMED = (ValueError, KeyError, TypeError, AttributeError, RecursionError)  # what a header of another form raises


@dataclass(frozen=True)
class TensorLayout:
    """Where the parts of a file lie. header: its first bytes. begins: the first byte of each tensor. size: in bytes."""

    header: bytes
    begins: dict[str, int]
    size: int


def layout_of(shapes: dict[str, tuple[int, ...]]) -> TensorLayout:
    """The layout of a file of float32 tensors of these names and shapes, in this order."""
    entries: dict[str, dict[str, object]] = {}
    offsets: dict[str, int] = {}
    end = 0
    for name, shape in shapes.items():
        begin = end
        end = begin + 4 * prod(shape)
        offsets[name] = begin
        entries[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, end]}

    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)  # so that elements are aligned
    header = len(text).to_bytes(8, "little") + text
    begins = {name: len(header) + offset for name, offset in offsets.items()}
    return TensorLayout(header, begins, len(header) + end)


def create(path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """Write a file for tensors of these names and shapes, its elements yet to be written."""
    layout = layout_of(shapes)
    with path.open("wb") as file:
        file.write(layout.header)
        file.truncate(layout.size)


class TensorFile:
    """A file open for reading. Elements are addressed by a tensor's name and their place in it, flattened."""

    def __init__(self, path: Path):
        """Raises CheckpointError when the file is not a safetensors file of float32 tensors from end to end."""
        self.path = path
        self._file = path.open("rb")
        try:
            length = int.from_bytes(self._file.read(8), "little")
            header = json.loads(self._file.read(min(length, _MAX_HEADER)))
            header.pop("__metadata__", None)
            self.shapes = {name: tuple(entry["shape"]) for name, entry in header.items()}
            _check(header, self.path.stat().st_size - 8 - length)
            self._begins = {name: 8 + length + entry["data_offsets"][0] for name, entry in header.items()}
        except _MALFORMED as error:
            self._file.close()
            reason = "its header is nested too deeply" if isinstance(error, RecursionError) else error
            raise CheckpointError(f"{path} is not a safetensors file of float32 tensors ({reason}).") from error

    def __enter__(self) -> TensorFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    def read(self, name: str, start: int, count: int) -> Tensor:
        """(count,) float32. Raises CheckpointError when the file ends before them."""
        self._file.seek(self._begins[name] + 4 * start)
        data = bytearray(self._file.read(4 * count))
        if len(data) != 4 * count:
            raise CheckpointError(f"{self.path} ends inside {name}: {len(data)} of {4 * count} bytes are there.")
        return torch.from_numpy(np.frombuffer(data, dtype=np.float32))


def _check(header: dict[str, Any], body: int) -> None:
    """Raise ValueError when the entries do not describe float32 tensors that fill `body` bytes end to end."""
    ranges = []
    for name, entry in header.items():
        shape = entry["shape"]
        begin, end = entry["data_offsets"]
        if not all(type(number) is int and number >= 0 for number in [*shape, begin, end]):
            raise ValueError(f"shape {shape} or offsets {entry['data_offsets']} of {name} are not whole numbers from 0")
        if entry["dtype"] != "F32":
            raise ValueError(f"{name} is of type {entry['dtype']}, expected F32")
        if end - begin != 4 * prod(shape):
            raise ValueError(f"{name} of shape {shape} has {end - begin} bytes, expected {4 * prod(shape)}")
        ranges.append((begin, end, name))

    at = 0
    for begin, end, name in sorted(ranges):
        if begin != at:
            raise ValueError(
                f"{name} begins at byte {begin} of the data, expected {at}: tensors overlap or leave a gap"
            )
        at = end
    if at != body:
        raise ValueError(f"{body} bytes of data, expected {at}")
