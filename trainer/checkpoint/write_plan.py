"""Decides which rank writes which bytes of a file that all ranks write together.

Two nodes must not write to the same page of a file on NFS. A client writes whole pages: it may read a page, change some
of its bytes and send the whole page back. So two nodes that write different bytes of one page can undo each other's
writes without an error (linux-nfs, 2024-06-18, "nfs: add 'noextend' option for lock-less 'lost writes' prevention").
The ranks of one node share a page cache and may write to the same page.

A file is therefore cut into blocks of 1 MiB, aligned in the file, and each block is written by ranks of one node only:

    1. Each rank writes the bytes that it holds, unless they lie in a block that holds bytes of several nodes.
    2. Such a shared block is written by one rank. The other ranks send it their bytes through the process group.

The plan depends on the arguments alone, so every rank computes the same one.
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
"""A range of bytes in a file: (first byte, end), where the end is exclusive."""


class Extent(NamedTuple):
    """Bytes `begin` to `end` of a file. holder: the rank that has them. writer: the rank that writes them.

    block: the number of the shared block that contains the extent, or None if it is in no shared block.
    """

    begin: int
    end: int
    holder: int
    writer: int
    block: int | None


class _Run(NamedTuple):
    """Bytes `begin` to `end` of a file, all held by one rank."""

    begin: int
    end: int
    rank: int


class _Piece(NamedTuple):
    """The part of a `_Run` inside one shared block, or between shared blocks if `block` is None."""

    begin: int
    end: int
    rank: int
    block: int | None


def assign_writers(held: list[list[Range]], nodes: list[int], header: int) -> list[Extent]:
    """Return the extents of a file in file order. They cover each byte once, and no block is written by two nodes.

    held: the byte ranges that each rank holds, by rank.
    nodes: the node of each rank.
    header: the length of the file's header in bytes, which rank 0 has already written and which `held` leaves out.

    Raises ValueError if the ranges leave a gap or overlap.
    """
    runs = _runs_in_file_order(held, header)

    # The header counts as held by rank 0: no other node may write into a block that contains some of it.
    shared_blocks = _blocks_of_several_nodes([_Run(0, header, 0), *runs], nodes)

    pieces: list[_Piece] = []
    for run in runs:
        pieces.extend(_cut(run, shared_blocks))

    # The writer of a shared block is one of the ranks that hold bytes of it, so that its own bytes need not be sent.
    candidates: dict[int, set[int]] = defaultdict(set)
    for _, _, rank, block in pieces:
        if block is not None:
            # Rank 0 has already written the header, so it writes the rest of the header's blocks too.
            in_header = block * BLOCK < header
            candidates[block].add(0 if in_header else rank)

    writer_of_block = {block: _choice(block, sorted(ranks)) for block, ranks in candidates.items()}

    extents = []
    for begin, end, holder, block in pieces:
        writer = holder if block is None else writer_of_block[block]
        extents.append(Extent(begin, end, holder, writer, block))
    return extents


def _choice(block: int, ranks: list[int]) -> int:
    """Return one of the ranks, chosen by a hash of the block's number.

    With small partitions, most blocks hold bytes of all ranks. If the first rank were always chosen, it would have to
    write nearly everything.
    """
    return ranks[crc32(block.to_bytes(8, "little")) % len(ranks)]


def _runs_in_file_order(held: list[list[Range]], header: int) -> list[_Run]:
    """Join adjacent ranges of the same rank. Raises ValueError if the ranges leave a gap or overlap."""
    # Plain tuples for speed: a large model at stage 3 has one range per parameter and rank.
    ranges: list[tuple[int, int, int]] = []
    for rank, ranges_of_rank in enumerate(held):
        ranges += [(begin, end, rank) for begin, end in ranges_of_rank if end > begin]
    ranges.sort()

    runs: list[_Run] = []
    position = header
    for begin, end, rank in ranges:
        if begin != position:
            raise ValueError(
                f"the ranks' parts of the file do not meet: one ends at byte {position}, the next begins at {begin}"
            )
        position = end

        # ZeRO stages 1 and 2 give a rank many consecutive parameters, so joining their ranges leaves few extents.
        if runs and runs[-1].rank == rank:
            runs[-1] = _Run(runs[-1].begin, end, rank)
        else:
            runs.append(_Run(begin, end, rank))
    return runs


def _blocks_of_several_nodes(runs: list[_Run], nodes: list[int]) -> list[int]:
    """Return the sorted numbers of the blocks inside which the node changes. `runs` must be in file order."""
    blocks: set[int] = set()
    for (_, _, rank_before), (begin, _, rank_after) in pairwise(runs):
        # If the node changes exactly at a block boundary, each of the two blocks belongs to one node.
        node_changes = nodes[rank_before] != nodes[rank_after]
        if node_changes and begin % BLOCK != 0:
            blocks.add(begin // BLOCK)
    return sorted(blocks)


def _cut(run: _Run, shared_blocks: list[int]) -> Iterator[_Piece]:
    """Yield the pieces of a `_Run` inside and between the shared blocks, in file order."""
    # A run may begin inside a shared block, so the search starts with the block that holds its first byte.
    position, run_end, rank = run
    candidate = bisect_left(shared_blocks, position // BLOCK)

    while candidate < len(shared_blocks):
        block = shared_blocks[candidate]
        block_begin = block * BLOCK
        block_end = block_begin + BLOCK
        if block_begin >= run_end:
            break
        candidate += 1

        # The part between the previous shared block and this one.
        if position < block_begin:
            yield _Piece(position, block_begin, rank, None)
            position = block_begin

        end = min(run_end, block_end)
        yield _Piece(position, end, rank, block)
        position = end

    if position < run_end:
        yield _Piece(position, run_end, rank, None)
