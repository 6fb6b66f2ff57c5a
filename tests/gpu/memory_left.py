"""Says what a piece of work left in a GPU's memory, and whose it is: torch's allocator's, the driver's, or a process's.

Free memory is a figure of the whole device. Besides tensors it falls with what the driver keeps for a process (loaded
kernels, their stack, cuBLAS handles) and with what other processes allocate. The driver may return some of it later.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from trainer.micro_batches import free_memory

MOST_BLOCKS = 10
MOST_FRAMES = 8

STATS = (
    "allocated_bytes.all.current",
    "active_bytes.all.current",
    "inactive_split_bytes.all.current",
    "reserved_bytes.all.current",
    "segment.all.current",
    "num_ooms",
)
"""Of torch.cuda.memory_stats, those that the table shows."""


class Memory(NamedTuple):
    """A GPU's memory at one time. free: as trainer.micro_batches counts it. facts: bytes by name.

    blocks: the tensors in torch's allocator, by address: size in bytes, and the lines of code that allocated it, known
    if it was allocated in `recorded_allocations`.
    """

    free: int
    facts: dict[str, int]
    blocks: dict[int, tuple[int, list[str]]]


@contextlib.contextmanager
def recorded_allocations() -> Iterator[None]:
    """Let torch's allocator record the Python code that allocates each block while the context lasts."""
    torch.cuda.memory._record_memory_history(context="alloc", stacks="python")
    try:
        yield
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)


def memory_now(device: torch.device) -> Memory:
    """Return the memory of a GPU after everything that was queued."""
    torch.cuda.synchronize(device)
    stats = torch.cuda.memory_stats(device)
    free, total = torch.cuda.mem_get_info(device)
    facts = {name: stats.get(name, 0) for name in STATS}
    facts["used on the device"] = total - free
    facts["used outside of torch's allocator"] = total - free - stats.get("reserved_bytes.all.current", 0)
    return Memory(free_memory(device), facts, dict(blocks_of(torch.cuda.memory_snapshot())))


def blocks_of(snapshot: Any) -> list[tuple[int, tuple[int, list[str]]]]:
    """Return the blocks of a snapshot that are in use."""
    found = []
    for segment in snapshot:
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] != "inactive":
                frames = [f"{frame['filename']}:{frame['line']} {frame['name']}" for frame in block.get("frames", [])]
                found.append((block.get("address", address), (block["size"], frames)))
            address += block["size"]
    return found


def what_is_left(before: Memory, after: Memory) -> str:
    """Return a table of the differences, the new blocks with what allocated them, and who uses the GPU."""
    lines = [f"{before.free - after.free:+,} bytes less are free:"]
    for name, value in after.facts.items():
        lines.append(f"  {name:36} {before.facts[name]:>18,} -> {value:>18,} ({value - before.facts[name]:+,})")

    new = [block for address, block in after.blocks.items() if address not in before.blocks]
    lines.append(f"{len(new)} new blocks of torch's allocator, {sum(size for size, _ in new):,} bytes:")
    for size, frames in sorted(new, reverse=True)[:MOST_BLOCKS]:
        lines += [f"  {size:,} bytes", *(f"    {frame}" for frame in frames[:MOST_FRAMES])]
    return "\n".join([*lines, "nvidia-smi:", users_of_gpus()])


def users_of_gpus() -> str:
    """Return what nvidia-smi says of memory and of the processes that use it."""
    queries = ("--query-gpu=name,memory.used,memory.total", "--query-compute-apps=pid,name,used_memory")
    said = []
    for query in queries:
        try:
            words = ["nvidia-smi", query, "--format=csv,noheader"]
            said.append(subprocess.run(words, capture_output=True, text=True, timeout=20).stdout.strip())
        except (OSError, subprocess.TimeoutExpired) as error:
            said.append(str(error))
    return "\n".join(f"  {line}" for line in "\n".join(said).splitlines())
