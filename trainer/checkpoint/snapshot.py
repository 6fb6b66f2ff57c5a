"""What a rank writes into a checkpoint, as the engine holds it or as a copy in host memory.

A copy lets training change the weights while the checkpoint is written. The memory for it is allocated at the first
save and reused by every later one: allocating gigabytes of new pages takes longer than the copy itself, and pinned
memory, which a GPU copies into at full speed, takes even longer.

torch rounds every allocation of pinned memory up to a power of two (ATen/core/CachingHostAllocator.h), so 9 GB would
take 16 GB. So the copies lie in a few large blocks whose sizes are powers of two: the binary digits of the total, which
is rounded up to a multiple of the smallest block. A tensor that reaches the end of a block continues in the next one: a
slice of a parameter is then copied as two slices.

Suffixes: N float32 elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from deepspeed import DeepSpeedEngine
from deepspeed.accelerator import get_accelerator
from torch import Tensor

from schemas.host_limits import available_bytes
from trainer.checkpoint.rank_files import Shapes
from trainer.checkpoint.state import TrainingState
from trainer.distributed.collectives import nodes_of_ranks, run_on_all_ranks
from trainer.distributed.deepspeed_internals import full_shape_of, loss_scaler_state
from trainer.distributed.zero import (
    ParameterSlice,
    named_parameters,
    parameter_slices,
    updates_made,
)

SHARE_OF_MEMORY = 0.8
"""The share of a machine's available memory that the copies of all its ranks may take together."""

ALIGNMENT = 16
"""Each copied tensor begins at a multiple of this: 64 bytes, the size of a cache line and of the widest vector load."""

WASTED_SHARE = 32
"""The blocks exceed the needed size by less than 1 / WASTED_SHARE of it, or by less than one SMALLEST_BLOCK."""

SMALLEST_BLOCK = 1 << 14  # 64 KiB

MOST_BLOCKS = 6
"""The maximum number of blocks: the needed size is rounded up to at most 64 smallest blocks, and no number up to 64 has
more than 6 binary ones."""

_ELEMENT = 4  # bytes of a float32


@dataclass(frozen=True)
class Snapshot:
    """Everything that one rank needs to write a checkpoint.

    state: with the optimizer's counts. shapes: of all weights. slices: what this rank writes. device: where they are.
    """

    state: TrainingState
    shapes: Shapes
    slices: list[ParameterSlice]
    device: torch.device


def snapshot_of(engine: DeepSpeedEngine, state: TrainingState) -> Snapshot:
    """Return a snapshot of the engine. Its tensors are views of the optimizer's own tensors, not copies."""
    counts = {"updates": updates_made(engine), "loss_scale": loss_scale_of(engine)}
    # Slices that all ranks hold (stage 0) are marked as written on one rank only.
    slices = [part for part in parameter_slices(engine) if part.written]
    device = torch.device(engine.device or "cpu")
    saved_state = state.model_copy(update=counts)
    return Snapshot(saved_state, shapes_of(engine), slices, device)


def shapes_of(engine: DeepSpeedEngine) -> Shapes:
    """Return the full shape of every parameter by name."""
    return {name: full_shape_of(parameter) for name, parameter in named_parameters(engine)}


def loss_scale_of(engine: DeepSpeedEngine) -> dict[str, float]:
    """Return the state of the fp16 loss scaler, or an empty dict without fp16."""
    if not engine.fp16_enabled():
        return {}
    return loss_scaler_state(engine)


class HostMemory:
    """Memory for copies of one rank's snapshots. It holds one copy at a time."""

    def __init__(self) -> None:
        self._blocks: list[Tensor] = []
        self._is_refused = False

    def is_ready(self, snapshot: Snapshot) -> bool:
        """Return whether every rank has memory for its copy, after allocating what is missing.

        A collective call. If one rank cannot get its memory, all ranks free theirs, and none tries again.
        """
        if self._is_refused:
            return False
        if not all(run_on_all_ranks(lambda: self._has_room_for(snapshot))):
            nodes = nodes_of_ranks()
            sizes = run_on_all_ranks(lambda: (copied_bytes(snapshot), available_bytes()))
            self._is_refused = not fits(nodes, sizes) or not all(run_on_all_ranks(lambda: self._allocate(snapshot)))
        if self._is_refused:
            self._blocks = []
        return not self._is_refused

    def _has_room_for(self, snapshot: Snapshot) -> bool:
        return sum(block.numel() for block in self._blocks) >= needed_elements(groups_of(snapshot))

    def _allocate(self, snapshot: Snapshot) -> bool:
        """Allocate memory for a copy. Returns False if that fails, as it may for pinned memory."""
        self._blocks = []
        sizes = block_sizes(needed_elements(groups_of(snapshot)))
        is_pinned = snapshot.device.type != "cpu"
        try:
            self._blocks = [torch.empty(size, dtype=torch.float32, pin_memory=is_pinned) for size in sizes]
        except (RuntimeError, MemoryError):
            return False
        return True

    def copy(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with copies of its tensors. Call `is_ready` first. Earlier copies are overwritten.

        The copies run on the device after the work that was queued before, and one synchronization waits for them all.
        """
        assert self._blocks, "`is_ready` has not allocated them"
        sizes = [block.numel() for block in self._blocks]
        slices = []
        for place in places_of(groups_of(snapshot), sizes):
            slices.append(self._copy_part(snapshot.slices[place.group], place))
        _wait_for_device(snapshot.device)
        return replace(snapshot, slices=slices, device=torch.device("cpu"))

    def _copy_part(self, part: ParameterSlice, place: Place) -> ParameterSlice:
        """Start to copy some elements of a slice's weights and moments, and return a slice of the copies."""
        copies = []
        for values_N, offset in zip((part.weights, *part.moments.values()), place.offsets, strict=True):
            copied_N = self._blocks[place.block][offset : offset + place.length]
            copied_N.copy_(values_N[place.start : place.start + place.length], non_blocking=True)
            copies.append(copied_N)

        moments = dict(zip(part.moments, copies[1:], strict=True))
        return replace(part, start=part.start + place.start, weights=copies[0], moments=moments)


# Where copies lie. Sizes and offsets are counts of float32 elements.


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


def groups_of(snapshot: Snapshot) -> list[Group]:
    """Return the sizes of the tensors that a copy of each slice consists of: weights and moments."""
    return [Group(part.weights.numel(), 1 + len(part.moments)) for part in snapshot.slices]


def copied_bytes(snapshot: Snapshot) -> int:
    """Return the bytes of host memory that a copy needs on this rank."""
    return _ELEMENT * sum(block_sizes(needed_elements(groups_of(snapshot))))


def fits(nodes: list[int], sizes: list[tuple[int, int]]) -> bool:
    """Return whether the copies of all ranks fit into SHARE_OF_MEMORY of their machines' available memory.

    nodes: the node of each rank. sizes: for each rank, the bytes that it needs and the bytes available on its machine.
    """
    needed_on: dict[int, int] = {}
    for node, (needed, _) in zip(nodes, sizes, strict=True):
        needed_on[node] = needed_on.get(node, 0) + needed

    pairs = zip(nodes, sizes, strict=True)
    return all(needed_on[node] <= SHARE_OF_MEMORY * available for node, (_, available) in pairs)


def _wait_for_device(device: torch.device) -> None:
    if device.type != "cpu":
        accelerator: Any = get_accelerator()
        accelerator.synchronize()
