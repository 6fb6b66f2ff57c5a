"""Writes one file by all ranks together: each rank writes its extents (write_plan.py) at their offsets.

A file is written in three steps:

    1. Shared blocks, ROUND at a time: ranks exchange bytes in one all-to-all, and then the writer of each block writes
       the whole block.
    2. Every rank writes the rest of what it holds, without any communication.
    3. Every rank syncs and closes the file.

A rank that fails must not return early, because the others would wait in the next exchange forever. It keeps its first
error, writes nothing more, takes part in the remaining exchanges, and raises the error at the end.

Suffixes: N float32 elements.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.checkpoint.manifest import HASH_BLOCK
from trainer.checkpoint.offset_writer import OffsetWriter, WrittenPiece
from trainer.checkpoint.write_plan import Extent, Range
from trainer.distributed.collectives import group_of_thread

PIECE = HASH_BLOCK
"""The maximum bytes that are written, read back and compared at once. No piece crosses a multiple of this, so each lies
within one of the blocks that the manifest has hashes of. These are whole multiples of write_plan.BLOCK."""

ROUND = 64
"""Shared blocks that are exchanged at once. They have 1 MiB each, so a rank receives at most 64 MiB in a round."""

_ELEMENT = 4  # bytes of a float32


class HeldBytes:
    """The elements of a file that this rank holds, addressed by their byte offsets in the file."""

    def __init__(self, parts: list[tuple[int, Tensor]]):
        """parts: (first byte in the file, (N,) values) in any order. Other dtypes are read as float32."""
        self._parts = sorted(parts, key=lambda part: part[0])
        self._begins = [begin for begin, _ in self._parts]

    @property
    def ranges(self) -> list[Range]:
        return [(begin, begin + _ELEMENT * values_N.numel()) for begin, values_N in self._parts]

    def read(self, begin: int, end: int) -> Tensor:
        """Return the elements of bytes `begin` to `end` as (N,) float32 on their device. This rank must hold all."""
        # Parts are sorted and do not overlap: the last one that starts at or before `begin` contains it.
        pieces = []
        first_part = bisect_right(self._begins, begin) - 1

        for part_begin, values_N in self._parts[first_part:]:
            if part_begin >= end:
                break
            start = max(begin - part_begin, 0) // _ELEMENT
            stop = (end - part_begin) // _ELEMENT
            pieces.append(values_N[start:stop].detach().float())

        # A single piece is not copied, because training needs the memory bandwidth while a thread writes the file.
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def write_together(
    path: Path,
    extents: list[Extent],
    held: HeldBytes,
    device: torch.device,
) -> list[WrittenPiece]:
    """Write this rank's extents of a file, sync the file, and return what this rank wrote.

    extents: the plan for the whole file, the same on every rank.
    device: where tensors must be for the process group.

    A collective call if nodes share blocks. Raises this rank's first error (StorageError for a failed write), but only
    after the last exchange.
    """
    rank = dist.get_rank()
    file = OffsetWriter(path, rank)

    for round_of_extents in _rounds(extents):
        received = _exchange(round_of_extents, held, device, file)
        with file.keeping_error():
            for begin, values_N in _assembled_blocks(round_of_extents, held, received):
                file.write(begin, values_N)

    # There are no exchanges from here on, so ranks can proceed at their own pace.
    with file.keeping_error():
        for extent in extents:
            if extent.block is None and extent.writer == rank:
                _write_in_pieces(file, extent, held)
    return file.close()


def _write_in_pieces(file: OffsetWriter, extent: Extent, held: HeldBytes) -> None:
    """Write an extent that this rank holds, at most PIECE bytes at a time, so that copies in host memory stay small."""
    for begin, end in cut_at_pieces(extent.begin, extent.end):
        file.write(begin, held.read(begin, end))


def cut_at_pieces(begin: int, end: int) -> Iterator[Range]:
    """Cut bytes `begin` to `end` of a file at every multiple of PIECE."""
    while begin < end:
        cut = min((begin // PIECE + 1) * PIECE, end)
        yield begin, cut
        begin = cut


# The exchange of shared blocks


class _Transfer(NamedTuple):
    """Bytes that this rank sends to the rank `peer`, or receives from it."""

    peer: int
    begin: int
    end: int

    @property
    def elements(self) -> int:
        return (self.end - self.begin) // _ELEMENT


def _rounds(extents: list[Extent]) -> Iterator[list[Extent]]:
    """Yield the extents of shared blocks, ROUND blocks at a time."""
    shared = [extent for extent in extents if extent.block is not None]
    blocks = [list(group) for _, group in groupby(shared, key=lambda e: e.block)]

    for first in range(0, len(blocks), ROUND):
        blocks_of_round = blocks[first : first + ROUND]
        yield [extent for block in blocks_of_round for extent in block]


def _exchange(
    extents: list[Extent],
    held: HeldBytes,
    device: torch.device,
    file: OffsetWriter,
) -> dict[int, Tensor]:
    """Send the bytes that other ranks will write, and return those that this rank will write for others, by first byte.

    A collective call. A rank that cannot read its bytes sends zeros. The error is kept in `file`, so the save fails.
    """
    outgoing, incoming = _transfers(extents)

    # The peers expect the number of elements in the plan, even if this rank cannot read them.
    outgoing_N: Tensor | None = None
    with file.keeping_error():
        pieces = [held.read(begin, end).to(device) for _, begin, end in outgoing]
        if pieces:
            outgoing_N = torch.cat(pieces)
    if outgoing_N is None:
        outgoing_N = torch.zeros(sum(transfer.elements for transfer in outgoing), device=device)

    incoming_N = torch.empty(sum(transfer.elements for transfer in incoming), device=device)
    ranks = dist.get_world_size()
    elements_from_peers = _elements_by_peer(incoming, ranks)
    elements_to_peers = _elements_by_peer(outgoing, ranks)
    group = group_of_thread()
    dist.all_to_all_single(incoming_N, outgoing_N, elements_from_peers, elements_to_peers, group=group)

    values = incoming_N.split([transfer.elements for transfer in incoming])
    begins = [transfer.begin for transfer in incoming]
    return dict(zip(begins, values, strict=True))


def _transfers(extents: list[Extent]) -> tuple[list[_Transfer], list[_Transfer]]:
    """Return what this rank sends and what it receives, in the order of the all-to-all.

    all_to_all expects the data of peer 0 first, then that of peer 1, and so on. Both sides sort the transfers between
    two ranks by their offsets in the file, so no offsets need to be sent.
    """
    rank = dist.get_rank()
    outgoing: list[_Transfer] = []
    incoming: list[_Transfer] = []

    for begin, end, holder, writer, _ in extents:
        if holder == rank and writer != rank:
            outgoing.append(_Transfer(writer, begin, end))
        if writer == rank and holder != rank:
            incoming.append(_Transfer(holder, begin, end))
    return sorted(outgoing), sorted(incoming)


def _elements_by_peer(transfers: list[_Transfer], ranks: int) -> list[int]:
    """Return the number of elements that go to, or come from, each rank."""
    elements = [0] * ranks
    for transfer in transfers:
        elements[transfer.peer] += transfer.elements
    return elements


def _assembled_blocks(
    extents: list[Extent], held: HeldBytes, received: dict[int, Tensor]
) -> Iterator[tuple[int, Tensor]]:
    """Yield (first byte, float32 elements on the host) of each whole shared block that this rank writes."""
    rank = dist.get_rank()
    mine = [extent for extent in extents if extent.writer == rank]

    for _, group in groupby(mine, key=lambda e: e.block):
        block = list(group)
        values = []
        for extent in block:
            values_N = received.get(extent.begin)
            if values_N is None:
                values_N = held.read(extent.begin, extent.end)
            values.append(values_N.cpu())
        yield block[0].begin, torch.cat(values)
