"""The slots of this machine: how many jobs run in parallel, and how many threads or which GPU each one gets."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from schemas.host_limits import usable_cores


@dataclass(frozen=True)
class Slot:
    """Resources for one process. environment: the variables that set its number of threads and its GPU."""

    environment: dict[str, str]


def slots(workers: int | None) -> list[Slot]:
    """Return the slots of this machine: one per GPU or, without GPUs, one per core.

    workers: the number of slots instead. If there are more slots than GPUs, slots share GPUs.
    """
    # One thread per process, unless OMP_NUM_THREADS says otherwise. With more threads than cores, processes would wait
    # for each other. The number of threads also affects the rounding of sums.
    threads = os.environ.get("OMP_NUM_THREADS", "1")
    environment = {
        "OMP_NUM_THREADS": threads,
        "RAYON_NUM_THREADS": os.environ.get("RAYON_NUM_THREADS", threads),
    }

    devices = gpus()
    if not devices:
        return [Slot(environment) for _ in range(workers or usable_cores())]

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

    # Do not ask CUDA: that would allocate GPU memory in this process, which computes nothing.
    names = [path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*")]
    return sorted(names, key=int)
