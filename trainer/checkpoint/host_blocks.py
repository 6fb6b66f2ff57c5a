"""Where the copies of a rank's weights and moments lie in host memory: in few large blocks.

torch rounds every allocation of pinned memory up to a power of two (ATen/core/CachingHostAllocator.h), so one of 9 GB
would take 16 GB. Blocks whose sizes are powers of two are not rounded. The largest are as large as they can be, the
smallest as small as a share of the whole, so what is taken exceeds what is needed by at most that share. A tensor that
meets the end of a block continues in the next one: a slice of a parameter is then copied as two slices.

All sizes and offsets here are counts of float32 elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

ALIGNMENT = 16
"""Each copied tensor begins at a multiple of this: 64 bytes, a cache line and what vector instructions load at once."""

WASTED_SHARE = 32
"""Blocks exceed what is needed by less than one part in this many, or by one block of SMALLEST_BLOCK."""

SMALLEST_BLOCK = 1 << 14  # 64 KiB

MOST_BLOCKS = 6
"""What is needed is rounded up to at most 64 of the smallest blocks, and no number up to 64 has more binary ones."""


class Group(NamedTuple):
    """Tensors of equal length that stay together: of one slice, the weights and the moments.

    length: of each tensor. tensors: how many there are.
    """

    length: int
    tensors: int


class Place(NamedTuple):
    """Where a part of a group is copied to.

    group: its number. start, length: which elements of each of its tensors. block: the number of the block.
    offsets: where the part of each tensor begins in the block.
    """

    group: int
    start: int
    length: int
    block: int
    offsets: tuple[int, ...]


def needed_elements(groups: list[Group]) -> int:
    """Return how many elements blocks must have together for the copies of all groups, each tensor aligned."""
    copied = sum(group.tensors * _aligned(group.length) for group in groups)

    # Before the end of each block a part may be left that is too small for one aligned piece of every tensor.
    most_tensors = max((group.tensors for group in groups), default=0)
    return copied + MOST_BLOCKS * ALIGNMENT * most_tensors


def block_sizes(needed: int) -> list[int]:
    """Return at most MOST_BLOCKS powers of two, the largest first, that together hold `needed` elements."""
    # The largest power of two of which `needed` has WASTED_SHARE or more.
    smallest = SMALLEST_BLOCK
    while 2 * smallest * WASTED_SHARE <= needed:
        smallest *= 2

    count = max(1, -(-needed // smallest))
    digits = range(count.bit_length() - 1, -1, -1)
    return [smallest << digit for digit in digits if count >> digit & 1]


def places_of(groups: list[Group], sizes: list[int]) -> Iterator[Place]:
    """Yield where each part of each group goes, in order.

    sizes: of the blocks. At most MOST_BLOCKS which together have `needed_elements` always suffice.
    """
    block = 0
    used = 0
    for number, group in enumerate(groups):
        start = 0
        while start < group.length:
            room = (sizes[block] - used) // group.tensors // ALIGNMENT * ALIGNMENT
            if room == 0:
                block += 1
                used = 0
                continue

            length = min(group.length - start, room)
            step = _aligned(length)
            offsets = tuple(used + index * step for index in range(group.tensors))
            yield Place(number, start, length, block, offsets)
            start += length
            used += group.tensors * step


def _aligned(length: int) -> int:
    return -(-length // ALIGNMENT) * ALIGNMENT
