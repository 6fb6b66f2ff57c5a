"""The file of a rank in a checkpoint: written by that rank, read by any.

It is a safetensors file. A tensor is named KIND/PARAMETER/START: KIND is `weights` or the name of a moment, and the
tensor holds elements START, START + 1, ... of the flattened parameter. The file's metadata has the shapes of all whole
parameters, so any number of ranks can read what others have written.

Nothing here needs DeepSpeed, because `clozeline export` works without it.

Suffixes: N float32 elements.
"""

from __future__ import annotations

import hashlib
import json
import os
from bisect import bisect_right
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from schemas.errors import CheckpointError
from trainer.checkpoint.format import ManifestEntry, write_errors_of
from trainer.distributed.watchdog import progress

if TYPE_CHECKING:
    from trainer.distributed.zero import ParameterSlice

WEIGHTS = "weights"

Shapes = dict[str, tuple[int, ...]]
"""The shape of each whole parameter, by name, in the model's order."""

_CHUNK = 1 << 18  # elements hashed and written at once: 1 MB, which stays in a core's cache between the two


def rank_file(rank: int) -> str:
    """Return the name of the file that a rank writes."""
    return f"rank-{rank:05d}.safetensors"


# Writing


def write_rank_file(path: Path, slices: list[ParameterSlice], shapes: Shapes) -> ManifestEntry:
    """Write what a rank holds into its file, sync it, and return its entry in the manifest. shapes: of all parameters.

    The hash is of what was meant to be written, so a write that the disk loses is found when the checkpoint is read.
    Raises StorageError.
    """
    tensors = {}
    for part in slices:
        for kind, values_N in {WEIGHTS: part.weights, **part.moments}.items():
            tensors[f"{kind}/{part.name}/{part.start}"] = values_N

    sha256 = hashlib.sha256()
    with write_errors_of(path), path.open("wb", buffering=0) as file:

        def write(data: bytes | memoryview) -> None:
            sha256.update(data)
            while data:
                data = memoryview(data)[os.write(file.fileno(), data) :]
            progress()

        write(_header(tensors, shapes))
        for values_N in tensors.values():
            for start in range(0, values_N.numel(), _CHUNK):
                # One chunk at a time leaves the device, so that a save without a copy needs no memory.
                write(values_N[start : start + _CHUNK].cpu().numpy().data.cast("B"))
        os.fsync(file.fileno())
        return {"path": path.name, "bytes": path.stat().st_size, "sha256": sha256.hexdigest()}


def _header(tensors: dict[str, Tensor], shapes: Shapes) -> bytes:
    """Return the header of a safetensors file: the length of a JSON text in 8 bytes, and the text.

    The text tells where each tensor lies in the data that follows. We write it ourselves because the safetensors
    library needs all tensors on the host at once.
    """
    entries: dict[str, object] = {"__metadata__": {"shapes": json.dumps(shapes)}}

    end = 0
    for name, values_N in tensors.items():
        begin = end
        end = begin + values_N.nbytes
        entries[name] = {"dtype": "F32", "shape": [values_N.numel()], "data_offsets": [begin, end]}

    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)  # so that the elements are aligned
    return len(text).to_bytes(8, "little") + text


# Reading


class RankFiles:
    """All ranks' files of a checkpoint, read as if each parameter were one flattened tensor.

    folder: of the checkpoint. shapes: of the whole parameters, by name, in the model's order.
    """

    def __init__(self, folder: Path):
        """Open the files. Raises CheckpointError if one of them is not of this format."""
        self.folder = folder
        self.shapes: Shapes = {}
        self._files = []
        # For each kind and parameter, the first element of each slice, and the number of the file that holds it.
        self._slices: dict[str, list[tuple[int, int]]] = {}
        for number, path in enumerate(sorted(folder.glob("rank-*.safetensors"))):
            try:
                file = safe_open(path, framework="pt")
                shapes = json.loads(file.metadata()["shapes"])
                self.shapes = {name: tuple(shape) for name, shape in shapes.items()}
                for key in file.keys():  # noqa: SIM118 (it is no dict)
                    parameter, start = key.rsplit("/", 1)
                    self._slices.setdefault(parameter, []).append((int(start), number))
            except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                raise CheckpointError(f"{path} is not the file of a rank ({error}).") from error
            self._files.append(file)

        for slices in self._slices.values():
            slices.sort()

    def read(self, name: str, start: int, count: int, kind: str = WEIGHTS) -> Tensor:
        """Return elements `start` to `start + count` of a flattened parameter as (count,) float32.

        kind: WEIGHTS or the name of a moment. Raises CheckpointError if the files do not hold them.
        """
        slices = self._slices.get(f"{kind}/{name}", [])
        found: list[Tensor] = []
        position = start
        index = bisect_right(slices, (start, len(self._files))) - 1
        while position < start + count and 0 <= index < len(slices):
            begin, number = slices[index]
            tensor = self._files[number].get_slice(f"{kind}/{name}/{begin}")
            values_N = tensor[position - begin : start + count - begin]
            if values_N.dtype != torch.float32 or values_N.numel() == 0:
                break
            found.append(values_N)
            position += values_N.numel()
            index += 1

        if position < start + count:
            raise CheckpointError(f"The files of {self.folder} do not hold all of {kind} {name} in float32.")
        return found[0] if len(found) == 1 else torch.cat(found)
