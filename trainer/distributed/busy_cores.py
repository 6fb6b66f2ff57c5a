"""Chooses the threads of a run on a CPU whose cores other programs use, too.

The threads of one process split each operation between them and wait until the last one is done. If another program
holds a core, all threads wait for the one that did not get it, in every operation, and a run is many times slower. So a
run takes one thread for each core that is free, unless OMP_NUM_THREADS says how many.

The number of threads shows in the last bits of losses, because a sum that is split is rounded otherwise. So a run
records it, and a resume where a rank has as many cores takes no more threads than the run began with.
"""

from __future__ import annotations

import os

import torch

from trainer.checkpoint.state import TrainingState
from trainer.distributed.collectives import run_on_all_ranks
from trainer.logs import logger

VARIABLE = "OMP_NUM_THREADS"

SAMPLE_SECONDS = 0.3
"""How long the cores are watched. This process does nothing meanwhile."""

BUSY_CORES = 0.5
"""The cores' worth of other work from which it is worth a message."""


def take_free_cores(usable: int, ranks: int) -> None:
    """Let this process compute with one thread for each free core of its share, and say so. A collective call.

    usable: the cores that this machine's ranks may use. ranks: how many ranks it has. All ranks take as many threads as
    the one with the fewest, because they wait for each other.
    """
    threads, busy = free_threads(usable, ranks)
    share = torch.get_num_threads()
    if not may_choose() or threads >= share:
        return
    torch.set_num_threads(threads)
    logger.info(
        "Other programs keep %.1f of the %d cores busy, so this run computes with %s instead of %d. %s=N sets another "
        "number.",
        busy,
        usable,
        threads_text(threads),
        share,
        VARIABLE,
    )


def warn_of_busy_cores(usable: int, ranks: int) -> None:
    """Log a line if `take_free_cores` would take fewer threads. A collective call.

    For a fine-tuning, which does not record its threads, and so must not change them before it continues.
    """
    threads, busy = free_threads(usable, ranks)
    share = torch.get_num_threads()
    if not may_choose() or threads >= share:
        return
    logger.info(
        "Other programs keep %.1f of the %d cores busy. This fine-tuning computes with %d threads, which wait for each "
        "other, so steps may take many times longer. Start it again with %s=%d, which is faster then.",
        busy,
        usable,
        share,
        VARIABLE,
        threads,
    )


def free_threads(usable: int, ranks: int) -> tuple[int, float]:
    """Return the threads for each rank on the machine with the fewest free cores, and how many cores are busy there."""
    # One rank of a machine looks while the others sleep in this call, so they do not count as other programs.
    looks = may_choose() and torch.get_num_threads() > 1 and os.environ.get("LOCAL_RANK", "0") == "0"

    def look() -> tuple[int, float]:
        busy = busy_cores() if looks else 0.0
        return threads_beside(busy, usable, ranks), busy

    return min(run_on_all_ranks(look))


def with_threads(state: TrainingState, share: int) -> TrainingState:
    """Return a run's state with its number of threads, and take no more than the run began with.

    share: the cores of a rank, if no other program used them.
    """
    now = torch.get_num_threads()
    if not state.threads or state.cores != share or not may_choose():
        return state.model_copy(update={"threads": now, "cores": share})

    if now > state.threads:
        torch.set_num_threads(state.threads)
        logger.info(
            "The run keeps the %s that it began with, so that losses stay the same to the last bit. %s=%d uses all "
            "free cores.",
            threads_text(state.threads),
            VARIABLE,
            now,
        )
    elif now < state.threads:
        logger.info("The run began with %s. With %d, losses differ in rounding.", threads_text(state.threads), now)
    return state


def may_choose() -> bool:
    """Return whether the user leaves the number of threads to the trainer."""
    return VARIABLE not in os.environ


def threads_text(threads: int) -> str:
    return "1 thread" if threads == 1 else f"{threads} threads"


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
