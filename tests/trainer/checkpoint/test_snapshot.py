"""Copies in few blocks of host memory: little is wasted, nothing overlaps, and every value arrives."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from tests.trainer.one_rank import group_of_one
from trainer.checkpoint.snapshot import (
    ALIGNMENT,
    MOST_BLOCKS,
    SMALLEST_BLOCK,
    Group,
    HostMemory,
    Snapshot,
    block_sizes,
    copied_bytes,
    needed_elements,
    places_of,
)
from trainer.checkpoint.state import TrainingState
from trainer.distributed.zero import ParameterSlice

BERT_BASE = [30522 * 768, *[768 * 768, 768] * 48, *[768 * 3072] * 24]
SIZES = {
    "BERT-base": BERT_BASE,
    "an eighth of it": [length // 8 + 1 for length in BERT_BASE],
    "one tensor a little above a power of two": [2**27 + 1],
    "one tensor a little below it": [2**27 - 1],
    "one tensor of 64 GB": [16_000_000_000],
}


def random_lengths(seed: int) -> list[int]:
    """Up to 60 tensors, from empty ones to some of millions of elements."""
    generator = random.Random(seed)
    return [int(10 ** generator.uniform(-1, 6.7)) for _ in range(generator.randint(1, 60))]


def groups_of_lengths(lengths: list[int], seed: int) -> list[Group]:
    """Weights with two moments, and sometimes with one."""
    generator = random.Random(seed)
    return [Group(length, generator.choice([2, 3, 3])) for length in lengths]


@pytest.mark.parametrize("lengths", [*SIZES.values(), *map(random_lengths, range(40))], ids=len)
def test_blocks_are_few_and_waste_little(lengths: list[int]) -> None:
    groups = groups_of_lengths(lengths, seed=1)
    copied = sum(group.length * group.tensors for group in groups)
    sizes = block_sizes(needed_elements(groups))

    assert len(sizes) <= MOST_BLOCKS and sizes == sorted(sizes, reverse=True)
    assert all(size.bit_count() == 1 for size in sizes), "torch rounds up what is no power of two"
    assert sum(sizes) >= copied
    if copied > 64 * SMALLEST_BLOCK:
        assert sum(sizes) < 1.1 * copied


@pytest.mark.parametrize("seed", range(40))
def test_parts_cover_each_element_once_and_lie_apart(seed: int) -> None:
    groups = groups_of_lengths(random_lengths(seed), seed)
    sizes = block_sizes(needed_elements(groups))
    ends = [0] * len(groups)
    ranges: list[tuple[int, int, int]] = []

    for place in places_of(groups, sizes):
        assert place.start == ends[place.group] and place.length > 0
        ends[place.group] += place.length
        assert len(place.offsets) == groups[place.group].tensors
        assert all(offset % ALIGNMENT == 0 for offset in place.offsets)
        ranges += [(place.block, offset, offset + place.length) for offset in place.offsets]

    assert ends == [group.length for group in groups]
    assert all(end <= sizes[block] for block, _, end in ranges)
    ranges.sort()
    for (block, _, end), (next_block, begin, _) in pairwise(ranges):
        assert block < next_block or end <= begin


def snapshot_with(lengths: list[int], seed: int) -> Snapshot:
    """A snapshot of random values. Every third slice has one moment, and slices begin anywhere in their parameters."""
    torch.manual_seed(seed)
    slices = []
    for index, length in enumerate(lengths):
        names = ("exp_avg",) if index % 3 == 2 else ("exp_avg", "exp_avg_sq")
        moments = {name: torch.randn(length) for name in names}
        slices.append(ParameterSlice(f"weight{index}", 7 * index, torch.randn(length), moments, True))
    state = TrainingState(step=1, tokens=1, seconds=1.0, identity={})
    return Snapshot(state, {}, slices, torch.device("cpu"))


def joined(snapshot: Snapshot, like: Snapshot) -> list[ParameterSlice]:
    """The slices of a copy, joined where a block ended."""
    found = []
    for part in like.slices:
        copies = [copied for copied in snapshot.slices if copied.name == part.name]
        starts = [copied.start for copied in copies]
        lengths = [copied.weights.numel() for copied in copies]
        assert starts == [part.start + sum(lengths[:index]) for index in range(len(copies))]

        weights_N = torch.cat([copied.weights for copied in copies])
        moments = {name: torch.cat([copied.moments[name] for copied in copies]) for name in part.moments}
        found.append(replace(part, weights=weights_N, moments=moments))
    return found


def test_a_copy_holds_the_same_values_and_memory_is_used_again() -> None:
    """Also for a smaller snapshot than the one that the blocks were allocated for."""
    first = snapshot_with([300_001, 5, 1, 70_000, 33_333, 16, 250_000], seed=0)
    second = snapshot_with([5, 260_000, 1, 16, 70_000], seed=1)
    memory = HostMemory()
    addresses = set()
    with group_of_one():
        for snapshot in (first, second, first):
            assert memory.is_ready(snapshot)
            copy = memory.copy(snapshot)
            addresses |= {part.weights.untyped_storage().data_ptr() for part in copy.slices}

            for found, expected in zip(joined(copy, snapshot), snapshot.slices, strict=True):
                assert found.weights.dtype == torch.float32 and torch.equal(found.weights, expected.weights)
                assert all(torch.equal(found.moments[name], expected.moments[name]) for name in expected.moments)
            assert all(part.weights.data_ptr() % (4 * ALIGNMENT) == 0 for part in copy.slices)

    blocks = block_sizes(copied_bytes(first) // 4)
    assert len(addresses) <= len(blocks), "no block was allocated for the later copies"
    assert len(copy.slices) > len(first.slices), "a slice that meets the end of a block is cut"
