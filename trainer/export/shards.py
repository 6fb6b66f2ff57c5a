"""Writes an export's weights piece by piece, from a checkpoint's file into one or several safetensors files.

Both are float32, and each exported tensor consists of consecutive rows of one of ours. So bytes are copied, and a large
tensor is never in memory as a whole. Like transformers, this splits weights of more than `max_bytes` between tensors,
in the order of the model:

    model.safetensors                               if all weights fit into one file
    model-00001-of-00002.safetensors, ...           otherwise, together with
    model.safetensors.index.json                    which says which file holds which tensor
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO

from torch import Tensor

from trainer.checkpoint.safetensors_io import Shapes, TensorFile, layout_of
from trainer.models.hf_names import constant_tensors, hf_parts, their_dimensions
from trainer.models.shape import EncoderShape

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
METADATA = {"format": "pt"}
"""The header's metadata, which tells transformers that the file holds PyTorch weights."""

PIECE = 1 << 24
"""Elements that are copied at once: 64 MiB."""

_ELEMENT = 4  # bytes of a float32


@dataclass(frozen=True)
class Source:
    """Where an exported tensor comes from: elements `start` to `start + prod(shape)` of the flattened tensor `ours`."""

    ours: str
    start: int
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class Constant:
    """A small tensor of the export that no checkpoint holds."""

    values: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    @property
    def elements(self) -> int:
        return self.values.numel()


Shard = dict[str, Source | Constant]
"""The tensors of one file, by transformers' names."""


def sources_of(shapes: Shapes, shape: EncoderShape, names: dict[str, str] | None = None) -> Shard:
    """Return where each exported tensor lies in a checkpoint with these shapes.

    names: from the exported part's parameter names to those in the checkpoint; None to export the whole model.

    A tied projection onto the vocabulary is not listed: transformers ties it to the embeddings, too.
    """
    sources: Shard = {}
    for name, ours in (names or dict(zip(shapes, shapes, strict=True))).items():
        rows, *rest = shapes[ours]
        for parts in hf_parts(name, rows, shape):
            for part in parts:
                dimensions = their_dimensions(part.name, (part.rows, *rest), shape)
                sources[part.name] = Source(ours, part.start * prod(rest), dimensions)
    for name, values in constant_tensors(shape).items():
        sources[name] = Constant(values)
    return sources


def cut_into_shards(sources: Mapping[str, Source | Constant], max_bytes: int) -> list[Shard]:
    """Return the tensors of each file. A file has at most `max_bytes` of weights, unless a single tensor is larger."""
    shards: list[Shard] = [{}]
    size = 0
    for name, source in sources.items():
        tensor_bytes = _ELEMENT * source.elements
        if shards[-1] and size + tensor_bytes > max_bytes:
            shards.append({})
            size = 0
        shards[-1][name] = source
        size += tensor_bytes
    return shards


def write_weights(
    weights: Path, folder: Path, shape: EncoderShape, max_bytes: int, names: dict[str, str] | None = None
) -> None:
    """Write a checkpoint's weights into a folder, under transformers' names. Raises OSError.

    names: as for `sources_of`.
    """
    with TensorFile(weights) as file:
        shards = cut_into_shards(sources_of(file.shapes, shape, names), max_bytes)
        if len(shards) == 1:
            _write_shard(file, shards[0], folder / SINGLE_FILE)
            return

        file_of_tensor: dict[str, str] = {}
        for number, shard in enumerate(shards, start=1):
            name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
            _write_shard(file, shard, folder / name)
            file_of_tensor |= dict.fromkeys(shard, name)

    elements = sum(source.elements for shard in shards for source in shard.values())
    index = {
        "metadata": {"total_parameters": elements, "total_size": _ELEMENT * elements},
        "weight_map": dict(sorted(file_of_tensor.items())),
    }
    (folder / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _write_shard(file: TensorFile, shard: Shard, path: Path) -> None:
    """Write one file, with its tensors sorted by name, as the safetensors library does."""
    names = sorted(shard)
    layout = layout_of({name: shard[name].shape for name in names}, METADATA)
    with path.open("wb") as target:
        target.write(layout.header)
        for name in names:
            _copy(file, shard[name], target)


def _copy(file: TensorFile, source: Source | Constant, target: IO[bytes]) -> None:
    if isinstance(source, Constant):
        target.write(source.values.numpy().data)
        return

    end = source.start + source.elements
    for start in range(source.start, end, PIECE):
        values_N = file.read(source.ours, start, min(PIECE, end - start))
        target.write(values_N.numpy().data)
