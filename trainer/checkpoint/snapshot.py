"""What a rank writes into a checkpoint, as the engine holds it or as a copy in host memory.

A copy lets training change the weights while the checkpoint is written. Its memory is allocated at the first save and
used again by every later one, because allocating gigabytes of new pages takes longer than the copy itself.

On a GPU the memory is pinned, so that it is copied into at full speed: by cudaHostRegister, because torch rounds what
it allocates as pinned memory up to a power of two (ATen/core/CachingHostAllocator.h), so 9 GB would take 16 GB.

Suffixes: N float32 elements.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import Any

import torch
from deepspeed import DeepSpeedEngine
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

_ELEMENT = 4  # bytes of a float32
_PORTABLE = 1  # cudaHostRegisterPortable: pinned for every CUDA context


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
    loss_scale = loss_scaler_state(engine) if engine.fp16_enabled() else {}
    counts = {"updates": updates_made(engine), "loss_scale": loss_scale}
    # Slices that all ranks hold (stage 0) are marked as written on one rank only.
    slices = [part for part in parameter_slices(engine) if part.written]
    device = torch.device(engine.device or "cpu")
    saved_state = state.model_copy(update=counts)
    return Snapshot(saved_state, shapes_of(engine), slices, device)


def shapes_of(engine: DeepSpeedEngine) -> Shapes:
    """Return the full shape of every parameter by name."""
    return {name: full_shape_of(parameter) for name, parameter in named_parameters(engine)}


class HostMemory:
    """Memory for copies of one rank's snapshots. It holds one copy at a time."""

    def __init__(self) -> None:
        self._memory_N: Tensor | None = None
        self._is_pinned = False

    def is_ready(self, snapshot: Snapshot) -> bool:
        """Return whether every rank has memory for its copy, after allocating what is missing. A collective call."""
        needed = copied_bytes(snapshot)
        if all(run_on_all_ranks(lambda: self._memory_N is not None and self._memory_N.nbytes >= needed)):
            return True

        self.free()
        nodes = nodes_of_ranks()
        sizes = run_on_all_ranks(lambda: (needed, available_bytes()))
        return fits(nodes, sizes) and all(run_on_all_ranks(lambda: self._allocate(needed, snapshot.device)))

    def _allocate(self, needed: int, device: torch.device) -> bool:
        """Allocate memory for a copy. Returns False if the system refuses."""
        try:
            self._memory_N = torch.empty(needed // _ELEMENT, dtype=torch.float32)
        except (RuntimeError, MemoryError):
            return False

        # Memory that cannot be pinned still takes copies, more slowly.
        if device.type == "cuda" and needed > 0:
            cudart: Any = torch.cuda.cudart()
            failure = cudart.cudaHostRegister(self._memory_N.data_ptr(), needed, _PORTABLE)
            self._is_pinned = int(failure) == 0
            if not self._is_pinned:
                clear_cuda_error(device)
        return True

    def free(self) -> None:
        """Give the memory back to the system. No copy may be in use."""
        if self._memory_N is not None and self._is_pinned:
            cudart: Any = torch.cuda.cudart()
            cudart.cudaHostUnregister(self._memory_N.data_ptr())
        self._is_pinned = False
        self._memory_N = None

    def copy(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with copies of its tensors. Call `is_ready` first. Earlier copies are overwritten.

        The copies run on the device after the work that was queued before, and one synchronization waits for them all.
        """
        assert self._memory_N is not None, "`is_ready` has not allocated it"
        begin = 0
        slices = []
        for part in snapshot.slices:
            copies = {}
            for name, values_N in {"": part.weights, **part.moments}.items():
                copies[name] = self._memory_N[begin : begin + values_N.numel()]
                copies[name].copy_(values_N, non_blocking=True)
                begin += values_N.numel()
            slices.append(replace(part, weights=copies.pop(""), moments=copies))

        if snapshot.device.type != "cpu":
            torch.accelerator.synchronize()
        return replace(snapshot, slices=slices, device=torch.device("cpu"))


def clear_cuda_error(device: torch.device) -> None:
    """Clear the error that a failed call of the CUDA runtime leaves, which the next kernel would raise as its own.

    torch offers no cudaGetLastError, but calls it after each kernel that it starts. So a tiny kernel takes the error.
    """
    with contextlib.suppress(RuntimeError):
        torch.ones(1, device=device)


def copied_bytes(snapshot: Snapshot) -> int:
    """Return the bytes of host memory that a copy needs on this rank."""
    tensors = [values_N for part in snapshot.slices for values_N in (part.weights, *part.moments.values())]
    return _ELEMENT * sum(values_N.numel() for values_N in tensors)


def fits(nodes: list[int], sizes: list[tuple[int, int]]) -> bool:
    """Return whether the copies of all ranks fit into SHARE_OF_MEMORY of their machines' available memory.

    nodes: the node of each rank. sizes: for each rank, the bytes that it needs and the bytes available on its machine.
    """
    needed_on: dict[int, int] = {}
    for node, (needed, _) in zip(nodes, sizes, strict=True):
        needed_on[node] = needed_on.get(node, 0) + needed

    pairs = zip(nodes, sizes, strict=True)
    return all(needed_on[node] <= SHARE_OF_MEMORY * available for node, (_, available) in pairs)
