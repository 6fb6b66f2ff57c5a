"""Says when a run on a CPU shares its cores with other programs, which can make it many times slower.

The threads of one process split each operation between them and wait until the last one is done. If another program
holds a core, all threads wait for the one that did not get it, in every operation.
"""

from __future__ import annotations

import os

import torch

from trainer.logs import logger

SAMPLE_SECONDS = 0.15
"""How long the cores are watched. This process does nothing meanwhile."""

BUSY_CORES = 0.5
"""The cores' worth of other work from which it is worth a message."""


def warn_of_busy_cores(usable: int, ranks: int) -> None:
    """Log a line if other programs keep cores busy that this process's threads need. Never raises.

    usable: the cores that this machine's ranks may use. ranks: how many ranks it has.
    """
    threads = torch.get_num_threads()
    if "OMP_NUM_THREADS" in os.environ or threads == 1:
        return

    busy = busy_cores()
    better = threads_beside(busy, usable, ranks)
    if better >= threads:
        return
    logger.info(
        "Other programs keep %.1f of the %d cores busy. This run computes with %d threads, which wait for each other, "
        "so steps may take many times longer. Fewer threads are faster then: start again with OMP_NUM_THREADS=%d, as "
        "in `OMP_NUM_THREADS=%d clozeline train ...`.",
        busy,
        usable,
        threads,
        better,
        better,
    )


def threads_beside(busy: float, usable: int, ranks: int) -> int:
    """Return how many threads each rank can have without sharing a core with other programs, at least 1."""
    if busy < BUSY_CORES:
        return max(1, usable // ranks)
    return max(1, int(usable - busy) // ranks)


def busy_cores() -> float:
    """Return how many of the cores that this process may use are busy now, as a sum of shares; 0 if that is unknown.

    The process itself sleeps meanwhile, so this is what other programs use.
    """
    try:
        import psutil

        shares = psutil.cpu_percent(interval=SAMPLE_SECONDS, percpu=True)
        allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(len(shares))
        return sum(share for core, share in enumerate(shares) if core in allowed) / 100
    except Exception:  # a message about speed must not end a run, whatever a platform's psutil raises
        return 0.0
