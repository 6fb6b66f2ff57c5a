"""Files that all ranks write together and then check together.

Every rank writes its extents (blocks.py) and keeps a CRC-32 of each piece that it handed to the system. Before a
checkpoint is published each file is read back: one rank reads all of it for the manifest's SHA-256 and compares every
piece, and what that rank's own node wrote is read once more by a rank of another node (of the same node when there is
one node). So every byte has been read by a rank that did not write it. CRC-32 is enough to find lost writes and costs
a seventh of a SHA-256.

Suffixes: N elements of float32.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import zlib
from bisect import bisect_right
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from schemas.errors import StorageError
from trainer.checkpoint import layout as checkpoints
from trainer.checkpoint.write_plan import BLOCK, Extent, Range
from trainer.distributed.watchdog import progress

PIECE = 16 * BLOCK
"""Bytes that are written, read and compared at once."""
ROUND = 64
"""Shared blocks that are exchanged at once: what a rank receives in a round is at most so many MiB."""


class WrittenPiece(NamedTuple):
    """Bytes `begin` to `end` of a file, as `rank` handed them to the system."""

    begin: int
    end: int
    crc: int
    rank: int


class HeldBytes:
    """What this rank holds of a file, by the place of its bytes in the file."""

    def __init__(self, parts: list[tuple[int, Tensor]]):
        """parts: (first byte in the file, (N,) values), of which float32 copies are written."""
        self._parts = sorted(parts, key=lambda part: part[0])
        self._begins = [begin for begin, _ in self._parts]

    @property
    def ranges(self) -> list[Range]:
        return [(begin, begin + 4 * values_N.numel()) for begin, values_N in self._parts]

    def read(self, begin: int, end: int) -> Tensor:
        """(N,) float32 on this rank's device: the elements of bytes `begin` to `end`, all of which it holds."""
        found = []
        for first, values_N in self._parts[bisect_right(self._begins, begin) - 1 :]:
            if first >= end:
                break
            start = max(begin - first, 0) // 4
            stop = (end - first) // 4
            found.append(values_N[start:stop].detach().float())
        return torch.cat(found)


def write_together(path: Path, extents: list[Extent], held: HeldBytes, device: torch.device) -> list[WrittenPiece]:
    """Write this rank's extents of a file. A collective call when blocks are shared between nodes.

    Returns what was written. Raises the first error of this rank, a StorageError when a write failed, only after its
    part of every exchange: the other ranks would wait in the next one forever.
    """
    rank = dist.get_rank()
    file = _Sink(path, rank)

    for blocks in _rounds(extents):
        received = _exchange(blocks, held, device, file)
        with file.keeping_error():
            for begin, values_N in _assembled(blocks, held, received):
                file.write(begin, values_N)

    with file.keeping_error():
        for extent in extents:
            if extent.block is None and extent.writer == rank:
                for begin in range(extent.begin, extent.end, PIECE):
                    file.write(begin, held.read(begin, min(begin + PIECE, extent.end)))
    return file.close()


def _rounds(extents: list[Extent]) -> Iterator[list[Extent]]:
    """The extents of shared blocks, ROUND blocks at a time."""
    by_block = [list(group) for block, group in groupby(extents, key=lambda e: e.block) if block is not None]
    for first in range(0, len(by_block), ROUND):
        yield [extent for block in by_block[first : first + ROUND] for extent in block]


def _exchange(extents: list[Extent], held: HeldBytes, device: torch.device, file: _Sink) -> dict[int, Tensor]:
    """Send what other ranks write of this rank's bytes and return what this rank writes of theirs, by first byte.

    A rank that cannot read its bytes sends zeros and keeps the error in `file`, so the save fails in the end.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    moving = [extent for extent in extents if extent.holder != extent.writer]
    sent = sorted((extent.writer, extent.begin, extent.end) for extent in moving if extent.holder == rank)
    coming = sorted((extent.holder, extent.begin, extent.end) for extent in moving if extent.writer == rank)

    outgoing_N: Tensor | None = None
    with file.keeping_error():
        outgoing = [held.read(begin, end).to(device) for _, begin, end in sent]
        outgoing_N = torch.cat(outgoing) if outgoing else None
    if outgoing_N is None:
        outgoing_N = torch.zeros(sum(end - begin for _, begin, end in sent) // 4, device=device)

    incoming_N = torch.empty(sum(end - begin for _, begin, end in coming) // 4, device=device)
    dist.all_to_all_single(incoming_N, outgoing_N, _counts(coming, ranks), _counts(sent, ranks))

    lengths = [(end - begin) // 4 for _, begin, end in coming]
    return {begin: values_N for (_, begin, _), values_N in zip(coming, incoming_N.split(lengths), strict=True)}


def _counts(moves: list[tuple[int, int, int]], ranks: int) -> list[int]:
    """Elements that go to or come from each rank."""
    counts = [0] * ranks
    for other, begin, end in moves:
        counts[other] += (end - begin) // 4
    return counts


def _assembled(extents: list[Extent], held: HeldBytes, received: dict[int, Tensor]) -> Iterator[tuple[int, Tensor]]:
    """(first byte, elements) of the shared blocks that this rank writes, each block whole."""
    rank = dist.get_rank()
    mine = [extent for extent in extents if extent.writer == rank]
    for _, group in groupby(mine, key=lambda e: e.block):
        block = list(group)
        values = [received[e.begin] if e.begin in received else held.read(e.begin, e.end) for e in block]
        yield block[0].begin, torch.cat([values_N.cpu() for values_N in values])


class _Sink:
    """Writes at places of a file and keeps the first error until `close`, since other ranks wait for this one.

    Opened for writing only: an NFS client reads the pages around a write only when it may read the file.
    """

    def __init__(self, path: Path, rank: int):
        self._path, self._rank = path, rank
        self._written: list[WrittenPiece] = []
        self._error: Exception | None = None
        self._handle: int | None = None

    @contextlib.contextmanager
    def keeping_error(self) -> Iterator[None]:
        """Keep an exception of the block, if it is the first one, for `close` to raise."""
        try:
            yield
        except Exception as error:
            self._error = self._error or error

    def write(self, begin: int, values_N: Tensor) -> None:
        """Write elements from byte `begin` on; nothing once there was an error. Raises StorageError."""
        if self._error is not None:
            return
        values: Any = values_N.cpu().contiguous().numpy()
        data = memoryview(values).cast("B")
        self._written.append(WrittenPiece(begin, begin + len(data), zlib.crc32(data), self._rank))

        with checkpoints.writing(self._path):
            if self._handle is None:
                self._handle = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
            done = 0
            while done < len(data):
                done += os.pwrite(self._handle, data[done:], begin + done)
        progress()

    def close(self) -> list[WrittenPiece]:
        """Return what was written, which is on the disk now. Raises the first error, a StorageError for a write."""
        if self._handle is not None:
            with self.keeping_error(), checkpoints.writing(self._path):
                try:
                    os.fsync(self._handle)
                finally:
                    os.close(self._handle)  # where NFS reports a full disk
        if self._error is not None:
            raise self._error
        return self._written


def hashing_order(nodes: list[int]) -> list[int]:
    """All ranks, in turn from every node: the order in which they take files to hash."""
    place = {rank: nodes[:rank].count(node) for rank, node in enumerate(nodes)}
    return sorted(range(len(nodes)), key=lambda rank: (place[rank], nodes[rank]))


def second_readers(pieces: list[WrittenPiece], reader: int, nodes: list[int]) -> list[int | None]:
    """For each piece of a file that `reader` reads whole, the rank that reads it once more, or None.

    That is a rank of another node for what was written on the reader's node, and with one node another rank for what
    the reader itself wrote.
    """
    elsewhere = [rank for rank, node in enumerate(nodes) if node != nodes[reader]]
    others = elsewhere or [rank for rank in range(len(nodes)) if rank != reader]
    chosen: list[int | None] = []
    for number, piece in enumerate(pieces):
        again = nodes[piece.rank] == nodes[reader] if elsewhere else piece.rank == reader
        chosen.append(others[number % len(others)] if again and others else None)
    return chosen


def read_back(path: Path, pieces: list[WrittenPiece], from_server: bool) -> str:
    """Read pieces of a file, compare each with what was written, and return the SHA-256 of them all.

    from_server: other nodes wrote some of them, so what this node has cached is dropped first.
    Raises StorageError that names the file and the byte range of the first piece that differs.
    """
    sha256 = hashlib.sha256()
    with checkpoints.reading(path), path.open("rb", buffering=0) as file:
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
    parts = []
    while begin < end:
        part = os.pread(handle, end - begin, begin)
        if not part:
            break  # the file is shorter than what was written, and so the checksum differs
        parts.append(part)
        begin += len(part)
    return b"".join(parts)
