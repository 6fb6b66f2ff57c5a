"""Copies in host memory: every value arrives, tensors lie aligned, and the memory is used again."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from tests.trainer.one_rank import group_of_one
from trainer.checkpoint import snapshot as snapshots
from trainer.checkpoint.snapshot import HostMemory, Snapshot, copied_bytes
from trainer.checkpoint.state import TrainingState
from trainer.distributed.zero import ParameterSlice

LENGTHS = [300_001, 5, 1, 70_000, 33_333, 16, 250_000]


def snapshot_with(lengths: list[int], seed: int, device: str = "cpu") -> Snapshot:
    """A snapshot of random values. Every third slice has one moment, and slices begin anywhere in their parameters."""
    torch.manual_seed(seed)
    slices = []
    for index, length in enumerate(lengths):
        names = ("exp_avg",) if index % 3 == 2 else ("exp_avg", "exp_avg_sq")
        moments = {name: torch.randn(length) for name in names}
        slices.append(ParameterSlice(f"weight{index}", 7 * index, torch.randn(length), moments, True))
    state = TrainingState(step=1, tokens=1, seconds=1.0, identity={})
    return Snapshot(state, {}, slices, torch.device(device))


def test_a_copy_holds_the_same_values_and_memory_is_used_again() -> None:
    """Also for a smaller snapshot than the one that the memory was allocated for."""
    first = snapshot_with(LENGTHS, seed=0)
    second = snapshot_with([5, 260_000, 1, 16, 70_000], seed=1)
    memory = HostMemory()
    addresses = set()
    with group_of_one():
        for snapshot in (first, second, first):
            assert memory.is_ready(snapshot)
            copy = memory.copy(snapshot)
            addresses |= {part.weights.untyped_storage().data_ptr() for part in copy.slices}

            for found, expected in zip(copy.slices, snapshot.slices, strict=True):
                assert (found.name, found.start) == (expected.name, expected.start)
                assert found.weights.dtype == torch.float32 and torch.equal(found.weights, expected.weights)
                assert all(torch.equal(found.moments[name], expected.moments[name]) for name in expected.moments)

    assert len(addresses) == 1
    copied = sum(part.weights.nbytes * (1 + len(part.moments)) for part in first.slices)
    assert copied == copied_bytes(first)


@pytest.mark.parametrize("failure", [0, 2])
def test_memory_for_copies_from_a_gpu_is_pinned_where_that_is_possible(
    monkeypatch: pytest.MonkeyPatch, failure: int
) -> None:
    """Its first bytes to its last, and no longer than it is there. Where it cannot be pinned, it takes copies, too, and
    CUDA's error does not stay for the next kernel, which would raise it."""
    pinned: dict[int, int] = {}
    pending: list[int] = []

    def register(address: int, size: int, flags: int) -> int:
        if failure == 0:
            pinned[address] = size
        else:
            pending.append(failure)
        return failure

    def ones(*_: object, device: torch.device) -> None:
        """As every kernel does, raise the pending error and clear it."""
        assert device.type == "cuda" and pending.pop() == failure
        raise RuntimeError("CUDA error: out of memory")

    cudart = SimpleNamespace(cudaHostRegister=register, cudaHostUnregister=lambda address: pinned.pop(address))
    monkeypatch.setattr(snapshots.torch.cuda, "cudart", lambda: cudart)
    monkeypatch.setattr(snapshots.torch, "ones", ones)
    snapshot = snapshot_with(LENGTHS, seed=0, device="cuda")
    larger = snapshot_with([*LENGTHS, 50], seed=0, device="cuda")
    memory = HostMemory()
    with group_of_one():
        for one in (snapshot, snapshot, larger):
            assert memory.is_ready(one)
            assert list(pinned.values()) == ([copied_bytes(one)] if failure == 0 else [])
            assert pending == []
    memory.free()
    assert pinned == {}


@pytest.mark.gpu
def test_a_copy_from_a_gpu_lies_in_pinned_memory() -> None:
    snapshot = snapshot_with(LENGTHS, seed=0, device="cuda")
    on_gpu = [replace(part, weights=part.weights.cuda()) for part in snapshot.slices]
    memory = HostMemory()
    with group_of_one():
        assert memory.is_ready(snapshot)
        copy = memory.copy(replace(snapshot, slices=on_gpu))
    for found, expected in zip(copy.slices, snapshot.slices, strict=True):
        assert found.weights.is_pinned() and torch.equal(found.weights, expected.weights)
    memory.free()
