"""Reads every file of a checkpoint back before it is published, by all ranks side by side.

A file system may lose or change a write without an error, so each file that ranks wrote together is compared with the
CRC-32 that its writers kept (shared_writes.py):

    1. One rank, the reader, reads all of the file. It compares each piece and computes the SHA-256 for the manifest.
       The files are dealt to the ranks in turn, because hashing takes longest of all.
    2. The reader may have found in its node's page cache what its node wrote. A rank of another node reads those pieces
       once more. On a single node, another rank reads once more what the reader itself wrote.

So every byte is read by a rank that did not write it, if there are several ranks. Files that rank 0 wrote alone
(state.json, evaluation.json) are only hashed.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from pathlib import Path

import torch.distributed as dist

from schemas.errors import StorageError
from trainer.checkpoint.disk_errors import read_errors_of
from trainer.checkpoint.manifest import ManifestEntry, describe_file
from trainer.checkpoint.shared_writes import WrittenPiece
from trainer.distributed.watchdog import progress


def check_files(
    partial: Path,
    names: list[str],
    written: dict[str, list[WrittenPiece]],
    nodes: list[int],
) -> list[ManifestEntry]:
    """Read back this rank's share of the files and return the manifest's entries of those that it read whole.

    names: all files of the checkpoint, in the same order on every rank.
    written: what all ranks wrote, by file, in file order. Files that are not in it were written by rank 0 alone.
    nodes: the node of each rank.

    Raises StorageError if a file cannot be read, or holds other bytes than were written.
    """
    rank = dist.get_rank()
    order = hashing_order(nodes)
    several_nodes = len(set(nodes)) > 1
    entries: list[ManifestEntry] = []

    for number, name in enumerate(names):
        file = partial / name
        reader = order[number % len(order)]
        pieces = written.get(name)

        if pieces is None:
            if rank == reader:
                with read_errors_of(file):
                    entries.append(describe_file(partial, file))
            continue

        # A rank may be a second reader of pieces of any file, also of those that another rank reads whole.
        seconds = second_readers(pieces, reader, nodes)
        mine = [piece for piece, second in zip(pieces, seconds, strict=True) if second == rank]
        read_back(file, mine, several_nodes)

        if rank == reader:
            sha256 = read_back(file, pieces, several_nodes)
            size = _checked_size(file, pieces[-1].end)
            entries.append({"path": name, "bytes": size, "sha256": sha256})
    return entries


def _checked_size(file: Path, expected: int) -> int:
    with read_errors_of(file):
        size = file.stat().st_size
    if size != expected:
        raise StorageError(f"{file} has {size:,} bytes, but {expected:,} were written.")
    return size


def hashing_order(nodes: list[int]) -> list[int]:
    """Return all ranks, taking one of each node in turn. Example: nodes [0, 0, 1, 1] give ranks [0, 2, 1, 3]."""

    def turn(rank: int) -> tuple[int, int]:
        rank_in_node = nodes[:rank].count(nodes[rank])
        return rank_in_node, nodes[rank]

    return sorted(range(len(nodes)), key=turn)


def second_readers(pieces: list[WrittenPiece], reader: int, nodes: list[int]) -> list[int | None]:
    """Return, for each piece of a file that `reader` reads whole, the rank that reads it once more, or None.

    With several nodes that is a rank of another node, for what was written on the reader's node. With one node it is
    another rank, for what the reader itself wrote.
    """
    several_nodes = len(set(nodes)) > 1
    if several_nodes:
        others = [rank for rank, node in enumerate(nodes) if node != nodes[reader]]
    else:
        others = [rank for rank in range(len(nodes)) if rank != reader]

    chosen: list[int | None] = []
    for number, piece in enumerate(pieces):
        # With one node, the ranks share a page cache, and the best check left is another process.
        written_by_reader = piece.rank == reader
        written_on_its_node = nodes[piece.rank] == nodes[reader]
        needs_second = written_on_its_node if several_nodes else written_by_reader

        # Others take turns. There are no others if the run has a single rank.
        second = others[number % len(others)] if needs_second and others else None
        chosen.append(second)
    return chosen


def read_back(path: Path, pieces: list[WrittenPiece], from_server: bool) -> str:
    """Read pieces of a file, compare each with what was written, and return the SHA-256 of all of them together.

    from_server: drop this node's cache of the file first, because other nodes wrote some of it.

    Raises StorageError that names the file and the byte range of the first piece that differs.
    """
    sha256 = hashlib.sha256()
    with read_errors_of(path), path.open("rb", buffering=0) as file:
        # The cache shows what this node wrote, even if another node's write has replaced it on the server.
        if from_server:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

        for piece in pieces:
            data = _read_at(file.fileno(), piece.begin, piece.end)
            if zlib.crc32(data) != piece.crc:
                raise StorageError(
                    f"{path.name} of {path.parent} differs from what rank {piece.rank} wrote in bytes {piece.begin:,} "
                    f"to {piece.end:,}: the file system lost or changed a write."
                )
            sha256.update(data)
            progress()
    return sha256.hexdigest()


def _read_at(handle: int, begin: int, end: int) -> bytes:
    """Return bytes `begin` to `end`, or fewer if the file is shorter; then the checksum differs."""
    parts = []
    position = begin
    while position < end:
        # The system may return less than was requested.
        part = os.pread(handle, end - position, position)
        if not part:
            break
        parts.append(part)
        position += len(part)
    return b"".join(parts)
