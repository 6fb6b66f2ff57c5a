"""Lays out the copies of a rank's weights and moments in a few large blocks of host memory.

torch rounds every allocation of pinned memory up to a power of two (ATen/core/CachingHostAllocator.h), so 9 GB would
take 16 GB. Blocks whose sizes are powers of two are not rounded. Their sizes are the binary digits of the total, which
is rounded up to a multiple of the smallest block, so the waste is less than that block. A tensor that reaches the end
of a block continues in the next one: a slice of a parameter is then copied as two slices.

All sizes and offsets here are counts of float32 elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

ALIGNMENT = 16
"""Each copied tensor begins at a multiple of this: 64 bytes, the size of a cache line and of the widest vector load."""

WASTED_SHARE = 32
"""The blocks exceed the needed size by less than 1 / WASTED_SHARE of it, or by less than one SMALLEST_BLOCK."""

SMALLEST_BLOCK = 1 << 14  # 64 KiB

MOST_BLOCKS = 6
"""The maximum number of blocks: the needed size is rounded up to at most 64 smallest blocks, and no number up to 64 has
more than 6 binary ones."""


class Group(NamedTuple):
    """Tensors of equal length that are copied together: the weights of one parameter slice and their moments.

    length: of each tensor. tensors: the number of tensors.
    """

    length: int
    tensors: int


class Place(NamedTuple):
    """Where a part of a group is copied to.

    group: the group's index. start, length: the elements of each of its tensors. block: the block's index.
    offsets: for each tensor, where its part begins in the block.
    """

    group: int
    start: int
    length: int
    block: int
    offsets: tuple[int, ...]


def needed_elements(groups: list[Group]) -> int:
    """Return the total number of elements that the blocks need for copies of all groups, with each tensor aligned."""
    copied = sum(group.tensors * _aligned(group.length) for group in groups)

    # At the end of each block, the remainder may be too small for an aligned piece of every tensor of a group.
    most_tensors = max((group.tensors for group in groups), default=0)
    return copied + MOST_BLOCKS * ALIGNMENT * most_tensors


def block_sizes(needed: int) -> list[int]:
    """Return at most MOST_BLOCKS powers of two, the largest first, that together hold `needed` elements."""
    # The largest power of two that fits into `needed` at least WASTED_SHARE times.
    smallest = SMALLEST_BLOCK
    while 2 * smallest * WASTED_SHARE <= needed:
        smallest *= 2

    count = max(1, -(-needed // smallest))
    digits = range(count.bit_length() - 1, -1, -1)
    return [smallest << digit for digit in digits if count >> digit & 1]


def places_of(groups: list[Group], sizes: list[int]) -> Iterator[Place]:
    """Yield the place of each part of each group, in order.

    sizes: of the blocks. At most MOST_BLOCKS blocks with `needed_elements` in total always suffice.
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
