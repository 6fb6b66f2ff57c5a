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
from trainer.checkpoint.layout import WEIGHTS_FILE
from trainer.checkpoint.offset_writer import WrittenPiece
from trainer.checkpoint.safetensors_io import TensorLayout, create, layout_of
from trainer.checkpoint.shared_writes import HeldBytes, cut_at_pieces, write_together
from trainer.checkpoint.snapshot import Snapshot
from trainer.checkpoint.tensor_files import TENSOR_FILES, values_of
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
            create(partial / file_name, snapshot.shapes)


def write_tensor_files(partial: Path, snapshot: Snapshot, nodes: list[int]) -> dict[str, list[WrittenPiece]]:
    """Write all tensor files and return, by file, what all ranks wrote, in file order. A collective call.

    nodes: the node, or folder, of each rank. Raises StorageError on every rank if one of them cannot write.
    """
    # All files hold tensors of the same names and shapes, so they share a layout and a plan.
    layout = layout_of(snapshot.shapes)
    header = layout.header
    held: dict[str, HeldBytes] = {}

    def locate_held_bytes() -> list[Range]:
        for file_name in TENSOR_FILES:
            held[file_name] = _held_bytes(layout, snapshot.slices, file_name)
        return held[WEIGHTS_FILE].ranges

    extents = assign_writers(run_on_all_ranks(locate_held_bytes), nodes, len(header))
    written_by_rank = run_on_all_ranks(lambda: _write_files(partial, extents, held, snapshot.device))

    # Rank 0 wrote the headers when it created the files. They are checked like everything else.
    written: dict[str, list[WrittenPiece]] = {}
    for file_name in TENSOR_FILES:
        pieces = []
        for begin, end in cut_at_pieces(0, len(header)):
            pieces.append(WrittenPiece(begin, end, zlib.crc32(header[begin:end]), rank=0))
        for written_by_one_rank in written_by_rank:
            pieces += written_by_one_rank[file_name]
        written[file_name] = sorted(pieces)
    return written


def _held_bytes(layout: TensorLayout, slices: list[ParameterSlice], file_name: str) -> HeldBytes:
    """Return this rank's elements of a file, with their offsets in it."""
    parts = []
    for part in slices:
        begin = layout.begins[part.name] + 4 * part.start  # bytes of float32
        parts.append((begin, values_of(part, file_name)))
    return HeldBytes(parts)


def _write_files(
    partial: Path,
    extents: list[Extent],
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
            written[file_name] = write_together(partial / file_name, extents, held_of_file, device)
        except Exception as error:
            errors.append(error)

    if errors:
        raise errors[0]
    return written
