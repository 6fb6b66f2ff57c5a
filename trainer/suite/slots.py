"""The slots of this machine: how many jobs run at a time, and which cores or which GPU each of them gets."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Slot:
    """Room for one process. environment: the variables that give it its cores or its GPU."""

    environment: dict[str, str]


def slots(workers: int | None) -> list[Slot]:
    """Return the slots of this machine: one for each GPU or, without any, one for each core.

    workers: how many there should be instead. If that is more than there are GPUs, several share one.
    """
    # One thread for each process, unless OMP_NUM_THREADS says otherwise. With more threads than cores, processes would
    # wait for each other; and sums that several threads add up depend on how many there are.
    threads = os.environ.get("OMP_NUM_THREADS", "1")
    environment = {
        "OMP_NUM_THREADS": threads,
        "RAYON_NUM_THREADS": os.environ.get("RAYON_NUM_THREADS", threads),
    }

    devices = gpus()
    if not devices:
        return [Slot(environment) for _ in range(workers or available_cores())]

    found = []
    for number in range(workers or len(devices)):
        device = devices[number % len(devices)]
        found.append(Slot(environment | {"CUDA_VISIBLE_DEVICES": device}))
    return found


def gpus() -> list[str]:
    """Return the NVIDIA GPUs that processes may use, as CUDA_VISIBLE_DEVICES names them."""
    if os.environ.get("DS_ACCELERATOR", "cuda") != "cuda":
        return []

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name for name in visible.split(",") if name not in ("", "-1")]

    # Asking CUDA itself would take memory of a GPU in this process, which computes nothing.
    names = [path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*")]
    return sorted(names, key=int)


def available_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
