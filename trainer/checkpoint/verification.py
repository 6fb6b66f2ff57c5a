"""All ranks together read a checkpoint back before it is published, and verify a checkpoint before it is loaded.

A file system may lose or change a write without an error, so what the ranks wrote is compared with the CRC-32 that each
writer recorded (offset_writer.py). Files are read in blocks, which are assigned to ranks in turn:

    1. One rank, the reader, reads a block. It compares each piece and computes the block's SHA-256 for the manifest.
       If possible, the reader has not written to the block, and with several nodes, neither has its node.
    2. If the reader's node wrote some of the block, the reader may have seen only its own page cache. So a rank of
       another node reads those pieces again. On a single node, another rank reads what the reader itself wrote.

So every byte is read by a rank that did not write it, if there are several ranks, and all ranks read about the same
amount. Files that rank 0 wrote alone (state.json, evaluation.json) are only hashed.

When a run looks for its newest checkpoint, the hashed ranges of the manifest are assigned to ranks in turn. If any byte
of a file is wrong, the run resumes from an older checkpoint.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import torch.distributed as dist

from schemas.errors import StorageError
from trainer.checkpoint.disk_errors import read_errors_of
from trainer.checkpoint.manifest import Entry, ManifestEntry, describe_file, entry_of, fault_of_ranges, ranges_of
from trainer.checkpoint.offset_writer import WrittenPiece
from trainer.checkpoint.shared_writes import PIECE
from trainer.distributed.collectives import run_on_all_ranks, run_on_rank_0
from trainer.distributed.watchdog import progress


class CheckedShare(NamedTuple):
    """What one rank has read back.

    entries: of the files that rank 0 wrote alone. blocks: (file, block number, SHA-256) of blocks of the other files.
    """

    entries: list[ManifestEntry]
    blocks: list[tuple[str, int, str]]


def check_files(
    partial: Path,
    names: list[str],
    written: dict[str, list[WrittenPiece]],
    nodes: list[int],
) -> CheckedShare:
    """Read back this rank's share of the files and return the hashes of what it read.

    names: all files of the checkpoint, in the same order on every rank.
    written: what all ranks wrote, by file, in file order. Files that are not in it were written by rank 0 alone.
    nodes: the node of each rank.

    Raises StorageError if a file cannot be read, or holds other bytes than were written.
    """
    rank = dist.get_rank()
    order = hashing_order(nodes)
    share = CheckedShare([], [])

    for number, name in enumerate(names):
        file = partial / name
        if name in written:
            share.blocks.extend(_check_blocks(file, written[name], nodes))
        elif rank == order[number % len(order)]:
            with read_errors_of(file):
                share.entries.append(describe_file(partial, file))
    return share


def _check_blocks(file: Path, pieces: list[WrittenPiece], nodes: list[int]) -> Iterator[tuple[str, int, str]]:
    """Read back this rank's share of a file's blocks, and yield (file, number, SHA-256) of those that it read whole."""
    rank = dist.get_rank()
    # Dropping the cache once per file is enough: after that, everything comes from the server.
    must_drop_cache = len(set(nodes)) > 1
    for number, group in groupby(pieces, key=lambda piece: piece.begin // PIECE):
        block = list(group)
        reader = reader_of(block, number, nodes)
        seconds = second_readers(block, reader, nodes)

        mine = [piece for piece, second in zip(block, seconds, strict=True) if second == rank]
        for read in [mine, block] if rank == reader else [mine]:
            if read:
                sha256 = read_back(file, read, must_drop_cache)
                must_drop_cache = False
        if rank == reader:
            yield file.name, number, sha256
            if block[-1] == pieces[-1]:
                _check_size(file, pieces[-1].end)


def merged_entries(shares: list[CheckedShare], written: dict[str, list[WrittenPiece]]) -> list[Entry]:
    """Return the manifest's entries of all files, sorted by name, from what all ranks have read back."""
    entries: list[Entry] = [entry for share in shares for entry in share.entries]
    hashes: dict[str, dict[int, str]] = {name: {} for name in written}
    for share in shares:
        for name, number, sha256 in share.blocks:
            hashes[name][number] = sha256

    for name, pieces in written.items():
        block_hashes = [sha256 for _, sha256 in sorted(hashes[name].items())]
        entries.append(entry_of(name, pieces[-1].end, block_hashes))
    return sorted(entries, key=lambda entry: entry["path"])


def fault_found_together(path: Path, readers: list[int]) -> str | None:
    """Return what is wrong with a checkpoint, or None, as `fault_of_checkpoint` does. A collective call.

    readers: the ranks that read it, which include rank 0.
    """
    ranges = run_on_rank_0(lambda: ranges_of(path))
    if isinstance(ranges, str):
        return ranges

    rank = dist.get_rank()
    mine = ranges[readers.index(rank) :: len(readers)] if rank in readers else []
    faults = run_on_all_ranks(lambda: fault_of_ranges(path, mine))
    return next((fault for fault in faults if fault is not None), None)


def _check_size(file: Path, expected: int) -> None:
    with read_errors_of(file):
        size = file.stat().st_size
    if size != expected:
        raise StorageError(f"{file} has {size:,} bytes, but {expected:,} were written.")


def reader_of(block: list[WrittenPiece], number: int, nodes: list[int]) -> int:
    """Return the rank that reads block `number` of a file. Ranks take turns, skipping those that wrote to the block.

    With several nodes, all ranks of a node that wrote to it are skipped. If no rank is left, the next in turn reads it.
    """
    order = hashing_order(nodes)
    turn = number % len(order)
    in_turn = [*order[turn:], *order[:turn]]
    if len(set(nodes)) > 1:
        writing_nodes = {nodes[piece.rank] for piece in block}
        others = [rank for rank in in_turn if nodes[rank] not in writing_nodes]
    else:
        writers = {piece.rank for piece in block}
        others = [rank for rank in in_turn if rank not in writers]
    return others[0] if others else in_turn[0]


def hashing_order(nodes: list[int]) -> list[int]:
    """Return all ranks, alternating between nodes. Example: nodes [0, 0, 1, 1] give ranks [0, 2, 1, 3]."""

    def turn(rank: int) -> tuple[int, int]:
        rank_in_node = nodes[:rank].count(nodes[rank])
        return rank_in_node, nodes[rank]

    return sorted(range(len(nodes)), key=turn)


def second_readers(pieces: list[WrittenPiece], reader: int, nodes: list[int]) -> list[int | None]:
    """Return, for each piece of a block that `reader` reads, the rank that reads it a second time, or None.

    With several nodes, pieces that the reader's node wrote are read again by a rank of another node. With one node,
    pieces that the reader itself wrote are read again by another rank.
    """
    several_nodes = len(set(nodes)) > 1
    if several_nodes:
        others = [rank for rank, node in enumerate(nodes) if node != nodes[reader]]
    else:
        others = [rank for rank in range(len(nodes)) if rank != reader]

    chosen: list[int | None] = []
    for number, piece in enumerate(pieces):
        # On one node, all ranks share a page cache, and reading in another process is the best check possible.
        written_by_reader = piece.rank == reader
        written_on_its_node = nodes[piece.rank] == nodes[reader]
        needs_second = written_on_its_node if several_nodes else written_by_reader

        # The other ranks take turns. A run with a single rank has no others.
        second = others[number % len(others)] if needs_second and others else None
        chosen.append(second)
    return chosen


def read_back(path: Path, pieces: list[WrittenPiece], from_server: bool) -> str:
    """Read pieces of a file, compare each with what was written, and return the SHA-256 of all of them together.

    from_server: drop this node's page cache of the file first, because other nodes wrote some of it.

    Raises StorageError that names the file, the writing rank and the bytes of the first piece that differs.
    """
    sha256 = hashlib.sha256()
    with read_errors_of(path), path.open("rb", buffering=0) as file:
        # The cache holds what this node wrote, even if another node's write has replaced it on the server.
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
    """Return bytes `begin` to `end`, or fewer if the file is shorter, in which case the checksum differs."""
    parts = []
    position = begin
    while position < end:
        # pread may return fewer bytes than requested.
        part = os.pread(handle, end - position, position)
        if not part:
            break
        parts.append(part)
        position += len(part)
    return b"".join(parts)
