"""safetensors files that all ranks of a run write together, each its own elements at their own place.

What lies in such a file does not depend on how many ranks wrote it, no rank ever holds more than its part, and anything
that reads safetensors reads it. The format is 8 bytes of header length, a JSON header, the bytes of all tensors end to
end (huggingface/safetensors); all tensors are float32 here.
"""

from __future__ import annotations

import json
import os
from math import prod
from pathlib import Path
from types import TracebackType

import numpy as np
import torch
from torch import Tensor

from schemas.errors import CheckpointError

_MOST_HEADER = 100_000_000  # bytes; the format's own limit


def create(path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """A file for tensors of these names and shapes, its elements yet to be written."""
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 4 * prod(shape)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # so that elements are aligned
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)


class TensorFile:
    """An open file. Elements are told by a tensor's name and their place in it, flattened."""

    def __init__(self, path: Path, mode: str = "rb"):
        """Raises CheckpointError when the header is not one."""
        self.path, self._file = path, path.open(mode)
        try:
            length = int.from_bytes(self._file.read(8), "little")
            header = json.loads(self._file.read(min(length, _MOST_HEADER)))
            header.pop("__metadata__", None)
            self.shapes = {name: tuple(entry["shape"]) for name, entry in header.items()}
            self._begins = {name: 8 + length + entry["data_offsets"][0] for name, entry in header.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self._file.close()
            raise CheckpointError(f"{path} is not a safetensors file ({error}).") from error

    def __enter__(self) -> TensorFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    def write(self, name: str, start: int, values_N: Tensor) -> None:
        self._file.seek(self._begins[name] + 4 * start)
        self._file.write(values_N.detach().float().cpu().contiguous().numpy().data)

    def read(self, name: str, start: int, count: int) -> Tensor:
        """(count,) float32."""
        self._file.seek(self._begins[name] + 4 * start)
        return torch.from_numpy(np.frombuffer(bytearray(self._file.read(4 * count)), dtype=np.float32))

    def sync(self) -> None:
        """Everything written is on the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())
