"""Which rank writes which bytes of a file that all ranks write together.

NFS clients write whole pages: a client may read a page, change some bytes of it and send all of it back, so two nodes
that write different bytes of one page can undo each other's writes, and no error is reported (linux-nfs, 2024-06-18,
"nfs: add 'noextend' option for lock-less 'lost writes' prevention"). Files are therefore cut into blocks of 1 MiB,
aligned in the file, and a block is written by ranks of one node only. The ranks of a node share one page cache, so
they may share a block. Where a block holds bytes of several nodes, one rank writes all of it and receives the other
ranks' bytes through the process group.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple
from zlib import crc32

BLOCK = 1 << 20
"""Bytes; a multiple of every page size and of the usual stripe and transfer sizes of network file systems."""

Range = tuple[int, int]
"""(first byte, end) in a file."""


class Extent(NamedTuple):
    """Bytes `begin` to `end` of a file, held by one rank and written by another or by the same one.

    block: the block that the extent lies in when ranks of several nodes hold bytes of that block, else None.
    """

    begin: int
    end: int
    holder: int
    writer: int
    block: int | None


def assign_writers(held: list[list[Range]], nodes: list[int], header: int) -> list[Extent]:
    """Return the extents of a file in file order; they cover each byte once, and no block has writers of two nodes.

    held: the byte ranges that each rank holds, by rank. nodes: the node of each rank. header: the length of the
    file's header, which rank 0 has written and which `held` leaves out; a block with header bytes stays with rank 0.

    Raises ValueError when the ranges leave a gap or overlap.
    """
    runs = _runs_in_file_order(held, header)
    shared = _blocks_of_several_nodes([(0, header, 0), *runs], nodes)

    pieces = [(*piece, rank) for begin, end, rank in runs for piece in _cut((begin, end), shared)]
    holders: dict[int, set[int]] = defaultdict(set)
    for _, _, block, rank in pieces:
        if block is not None:
            # Rank 0 has already written the header, so it writes the rest of the header's blocks too.
            in_header = block * BLOCK < header
            holders[block].add(0 if in_header else rank)

    extents = []
    for begin, end, block, rank in pieces:
        writer = rank if block is None else _choice(block, sorted(holders[block]))
        extents.append(Extent(begin, end, rank, writer, block))
    return extents


def _choice(block: int, ranks: list[int]) -> int:
    """One of the ranks, by the block's number alone; with small partitions the first one would write everything."""
    return ranks[crc32(block.to_bytes(8, "little")) % len(ranks)]


def _runs_in_file_order(held: list[list[Range]], header: int) -> list[tuple[int, int, int]]:
    """(begin, end, rank) of what each rank holds without interruption."""
    ranges = sorted((begin, end, rank) for rank, mine in enumerate(held) for begin, end in mine if end > begin)
    runs: list[tuple[int, int, int]] = []
    at = header
    for begin, end, rank in ranges:
        if begin != at:
            raise ValueError(f"the ranks' parts of the file do not meet: one ends at byte {at}, the next is at {begin}")
        at = end
        if runs and runs[-1][2] == rank:
            runs[-1] = (runs[-1][0], end, rank)
        else:
            runs.append((begin, end, rank))
    return runs


def _blocks_of_several_nodes(runs: list[tuple[int, int, int]], nodes: list[int]) -> list[int]:
    """The sorted numbers of blocks inside which the node changes."""
    changes = {
        begin // BLOCK
        for (_, _, before), (begin, _, after) in pairwise(runs)
        if nodes[before] != nodes[after] and begin % BLOCK
    }
    return sorted(changes)


def _cut(run: Range, shared: list[int]) -> Iterator[tuple[int, int, int | None]]:
    """(begin, end, block) of a run's pieces inside and between shared blocks; block is None between them."""
    at, end = run
    for block in shared[bisect_left(shared, at // BLOCK) :]:
        first, last = block * BLOCK, (block + 1) * BLOCK
        if first >= end:
            break
        if at < first:
            yield at, first, None
            at = first
        yield at, min(end, last), block
        at = min(end, last)
    if at < end:
        yield at, end, None
