"""How much memory and how many cores and GPUs this process can use: the machine's, within limits of control groups.

Containers, Slurm steps and services are control groups. Each group above a process limits it, and they may be nested.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")
DEVICES = Path("/dev")
"""Where Linux reports the memory of the machine, the limits of control groups, and devices."""

ASSUMED_BYTES = 4 << 30  # if the system does not say


# Memory


@dataclass(frozen=True)
class _MemoryFiles:
    """Names of a version of control groups: its controller, its files, and the lines of memory.stat that can be freed.

    A group above its memory.high is not killed, but hardly runs. Page cache that was read twice is "active".
    """

    controller: str
    limits: tuple[str, ...]
    usage: str
    freeable: tuple[str, ...]


_MEMORY_FILES = (
    _MemoryFiles(
        "", ("memory.max", "memory.high"), "memory.current", ("inactive_file", "active_file", "slab_reclaimable")
    ),
    _MemoryFiles(
        "memory", ("memory.limit_in_bytes",), "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")
    ),
)


def available_bytes() -> int:
    """Return the bytes that can still be allocated without swapping.

    Page cache that the system frees when memory is needed counts as available.
    """
    return max(0, min([_available_on_machine(), *_available_in_groups()]))


def _available_on_machine() -> int:
    kilobytes = _numbers_in(PROC / "meminfo").get("MemAvailable:")
    if kilobytes is not None:
        return 1024 * kilobytes
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # Windows has no sysconf, macOS not this name
        return ASSUMED_BYTES


def _available_in_groups() -> Iterator[int]:
    for files in _MEMORY_FILES:
        for group in _groups_of_process(files.controller):
            used = _text_of(group / files.usage)
            limits = [_text_of(group / name) for name in files.limits]
            numbers = [int(limit) for limit in limits if limit.isdecimal()]  # not "max"
            if numbers and used.isdecimal():
                stat = _numbers_in(group / "memory.stat")
                freeable = sum(stat.get(name, 0) for name in files.freeable)
                yield min(numbers) - max(0, int(used) - freeable)


# Cores


def allowed_cores() -> int:
    """Return the number of cores that this process may run on. Slurm and containers may allow fewer than exist."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def core_quota() -> float | None:
    """Return how many cores' worth of time the groups of this process get, None if no group limits it.

    A container may run on all 64 cores of a machine and get the time of 1.5.
    """
    limits = [_text_of(group / "cpu.max").partition(" ")[::2] for group in _groups_of_process("")]
    for group in _groups_of_process("cpu"):
        limits.append((_text_of(group / "cpu.cfs_quota_us"), _text_of(group / "cpu.cfs_period_us")))

    # A group without a limit has "max" or -1 as its time.
    quotas = [int(time) / int(period) for time, period in limits if time.isdecimal() and period.isdecimal()]
    return min(quotas, default=None)


def usable_cores() -> int:
    """Return how many threads of this process can compute all the time, at least 1."""
    quota = core_quota()
    return allowed_cores() if quota is None else max(1, min(allowed_cores(), int(quota)))


def ranks_on_this_machine() -> int:
    """Return the number of ranks here: torchrun's LOCAL_WORLD_SIZE, DeepSpeed's LOCAL_SIZE, or else all ranks."""
    for name in ("LOCAL_WORLD_SIZE", "LOCAL_SIZE", "WORLD_SIZE"):
        if name in os.environ:
            return int(os.environ[name])
    return 1


def usable_gpus() -> list[str]:
    """Return the NVIDIA GPUs that processes started here may use, as CUDA_VISIBLE_DEVICES names them.

    CUDA is not asked, because that allocates GPU memory in this process.
    """
    if os.environ.get("DS_ACCELERATOR", "cuda") != "cuda":
        return []
    found = [str(number) for number in range(_count_gpus())]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None or not found:
        return found
    # As CUDA does: up to the first name of no GPU, and none if one is named twice.
    names = list(takewhile(lambda name: name in found or name.startswith(("GPU-", "MIG-")), _names(visible)))
    return names if len(set(names)) == len(names) else []


def _names(listed: str) -> Iterator[str]:
    for name in listed.split(","):
        yield str(int(name)) if name.strip().isdecimal() else name.strip()


def _count_gpus() -> int:
    if shutil.which("nvidia-smi") is None:  # some containers have GPUs without it
        return len(list(DEVICES.glob("nvidia[0-9]*")))
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout
    return sum(line.startswith("GPU ") for line in listed.splitlines())


# Control groups


def _groups_of_process(controller: str) -> Iterator[Path]:
    """Yield the folders of the group that this process is in and of those above it.

    controller: of version 1, such as "memory"; empty for version 2, which has one tree for all of them.
    """
    top = CGROUP / controller
    own = top / _paths_of_groups().get(controller, "").lstrip("/")
    # A container may see its own group as the top of the tree, and a path that exists only outside of it.
    for group in {own, *own.parents, top}:
        if group == top or top in group.parents:
            yield group


def _paths_of_groups() -> dict[str, str]:
    """Return the path of this process's group for each controller; version 2 has one path and an empty name."""
    paths = {}
    for line in _text_of(PROC / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        paths |= dict.fromkeys(controllers.split(","), path)
    return paths


def _text_of(path: Path) -> str:
    """Return a small file's text, empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _numbers_in(path: Path) -> dict[str, int]:
    """Return the numbers of a file whose lines begin with a name and a whole number."""
    lines = [line.split() for line in _text_of(path).splitlines()]
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdecimal()}
