"""Writes the tensor files of a checkpoint by all ranks together: each rank writes the elements that it holds.

One rank creates the files, with their headers and full sizes. Then every rank computes the same plan of which rank
writes which bytes (write_plan.py), and follows it (shared_writes.py).

Suffixes: N float32 elements.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import torch

from trainer.checkpoint.disk_errors import write_errors_of
from trainer.checkpoint.offset_writer import WrittenPiece
from trainer.checkpoint.safetensors_io import TensorLayout, create
from trainer.checkpoint.shared_writes import HeldBytes, cut_at_pieces, write_together
from trainer.checkpoint.snapshot import Snapshot
from trainer.checkpoint.tensor_files import TENSOR_FILES, layouts_of, shapes_in, values_of
from trainer.checkpoint.write_plan import Extent, Range, assign_writers
from trainer.distributed.collectives import run_on_all_ranks
from trainer.distributed.zero import ParameterSlice


def create_tensor_files(partial: Path, snapshot: Snapshot) -> None:
    """Create the tensor files without their elements. One rank per folder calls this. Raises StorageError.

    The other ranks write into existing files. If each rank created them, one could truncate what another has written.
    """
    with write_errors_of(partial):
        partial.mkdir(exist_ok=True)
        for file_name in TENSOR_FILES:
            create(partial / file_name, shapes_in(file_name, snapshot.shapes, snapshot.moment_shapes))


def write_tensor_files(partial: Path, snapshot: Snapshot, nodes: list[int]) -> dict[str, list[WrittenPiece]]:
    """Write all tensor files and return, by file, what all ranks wrote, in file order. A collective call.

    nodes: the node, or folder, of each rank. Raises StorageError on every rank if one of them cannot write.
    """
    layouts = layouts_of(snapshot)
    held: dict[str, HeldBytes] = {}

    def locate_held_bytes() -> dict[str, list[Range]]:
        for file_name in TENSOR_FILES:
            held[file_name] = _held_bytes(layouts[file_name], snapshot.slices, file_name)
        return {file_name: held[file_name].ranges for file_name in _files_with_own_layout(layouts)}

    ranges_by_rank = run_on_all_ranks(locate_held_bytes)
    plans = _plans_of(layouts, ranges_by_rank, nodes)
    written_by_rank = run_on_all_ranks(lambda: _write_files(partial, plans, held, snapshot.device))

    # Rank 0 wrote the headers when it created the files. They are checked like everything else.
    written: dict[str, list[WrittenPiece]] = {}
    for file_name in TENSOR_FILES:
        header = layouts[file_name].header
        pieces = []
        for begin, end in cut_at_pieces(0, len(header)):
            pieces.append(WrittenPiece(begin, end, zlib.crc32(header[begin:end]), rank=0))
        for written_by_one_rank in written_by_rank:
            pieces += written_by_one_rank[file_name]
        written[file_name] = sorted(pieces)
    return written


def _files_with_own_layout(layouts: dict[str, TensorLayout]) -> list[str]:
    """Return the files that do not share the layout object of an earlier file."""
    names = list(layouts)
    return [name for place, name in enumerate(names) if all(layouts[name] is not layouts[one] for one in names[:place])]


def _plans_of(
    layouts: dict[str, TensorLayout], ranges_by_rank: list[dict[str, list[Range]]], nodes: list[int]
) -> dict[str, list[Extent]]:
    """Return the plan of each file. Files that share a layout hold the same tensors, so they share a plan."""
    plans: dict[str, list[Extent]] = {}
    for planned in _files_with_own_layout(layouts):
        held = [ranges[planned] for ranges in ranges_by_rank]
        extents = assign_writers(held, nodes, len(layouts[planned].header))
        plans |= {name: extents for name, file_layout in layouts.items() if file_layout is layouts[planned]}
    return plans


def _held_bytes(file_layout: TensorLayout, slices: list[ParameterSlice], file_name: str) -> HeldBytes:
    """Return this rank's elements of a file, with their offsets in it."""
    parts = []
    for part in slices:
        values_N = values_of(part, file_name)
        if values_N is not None:
            begin = file_layout.begins[part.name] + 4 * part.start  # bytes of float32
            parts.append((begin, values_N))
    return HeldBytes(parts)


def _write_files(
    partial: Path,
    plans: dict[str, list[Extent]],
    held: dict[str, HeldBytes],
    device: torch.device,
) -> dict[str, list[WrittenPiece]]:
    """Write this rank's part of each file, and return what it wrote, by file.

    A rank that fails on one file still takes part in the exchanges for the other files, because the other ranks wait
    for it there. It raises its first error after the last file.
    """
    written: dict[str, list[WrittenPiece]] = {}
    errors: list[Exception] = []
    for file_name, held_of_file in held.items():
        try:
            written[file_name] = write_together(partial / file_name, plans[file_name], held_of_file, device)
        except Exception as error:
            errors.append(error)

    if errors:
        raise errors[0]
    return written
