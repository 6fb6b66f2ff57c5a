"""Chooses the threads of a rank that computes on a CPU.

Each rank gets its share of the cores, because ranks with more threads than cores slow each other down. The threads of
one process split each operation between them and wait until the last one is done. If another program holds a core, all
threads wait for the one that did not get it, in every operation, and a run is many times slower. So a run takes one
thread for each core that is free, and in a container whose quota of time is that of fewer cores, as many threads as the
quota has cores. OMP_NUM_THREADS overrides all of this.

The number of threads shows in the last bits of losses, because a sum that is split is rounded otherwise. So a run
records it, and a resume where a rank has as many cores takes no more threads than the run began with.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from schemas.host_limits import allowed_cores, core_quota, ranks_on_this_machine, usable_cores
from schemas.terminal import counted
from trainer.distributed.collectives import run_on_all_ranks
from trainer.logs import logger

VARIABLE = "OMP_NUM_THREADS"

SAMPLE_SECONDS = 0.3
"""How long the cores are watched. This process does nothing meanwhile."""

BUSY_CORES = 0.5
"""The cores' worth of other work from which it is worth a message."""


def may_choose() -> bool:
    """Return whether the user leaves the number of threads to the trainer, also by a value that is no number."""
    first = os.environ.get(VARIABLE, "").split(",")[0].strip()  # of a list, for levels of parallelism
    return not (first.isdecimal() and int(first) > 0)


def cores_of_rank() -> int:
    """Return this rank's share of the cores, at least 1."""
    return max(1, usable_cores() // ranks_on_this_machine())


def take_share_of_cores() -> None:
    """Let a rank on a CPU compute with one thread for each core of its share."""
    if device_kind() == "cpu" and may_choose():
        torch.set_num_threads(cores_of_rank())


def device_kind() -> str:
    """Return the kind of device that DeepSpeed trains on, such as "cpu" or "cuda"."""
    from deepspeed.accelerator import get_accelerator  # which takes seconds, and not every user of this module trains

    accelerator: Any = get_accelerator()
    return accelerator.device_name()


@contextmanager
def single_thread() -> Iterator[None]:
    """Let torch use one thread within the block, so that sums are rounded alike on all machines."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


# Free cores


def spare_busy_cores() -> None:
    """On a CPU, leave busy cores to other programs, and log what limits this rank's threads. A collective call."""
    if device_kind() != "cpu":
        return

    share = cores_of_rank()
    quota = core_quota()
    if may_choose() and quota is not None and quota < allowed_cores():
        logger.info(
            "This container or service gets the time of %g of %d cores, so the run computes with %s a rank. %s=N sets "
            "another number.",
            quota,
            allowed_cores(),
            counted(share, "thread"),
            VARIABLE,
        )

    is_of_torchrun = os.environ.get(VARIABLE) == "1" and "TORCHELASTIC_RUN_ID" in os.environ
    if is_of_torchrun and share > 1:
        logger.info(
            "%s is 1, as torchrun sets it for several ranks, so each rank computes with 1 of its %d cores. To use all "
            "of them: %s=%d torchrun ...",
            VARIABLE,
            share,
            VARIABLE,
            share,
        )
    take_free_cores(allowed_cores(), ranks_on_this_machine())


class Load(NamedTuple):
    """The threads of each rank that leave a machine's busy cores free; cores' worth of other work; cores in all."""

    threads: int
    busy: float
    cores: int


def take_free_cores(cores: int, ranks: int) -> None:
    """Let this process compute with one thread for each free core of its share, and log that. A collective call.

    cores: those that this machine's ranks may run on. ranks: how many ranks it has. All ranks take as many threads as
    the one with the fewest free cores, because they wait for each other.
    """
    share = torch.get_num_threads()

    # One rank of a machine looks while the others sleep in this call, so they do not count as other programs.
    looks = may_choose() and share > 1 and os.environ.get("LOCAL_RANK", "0") == "0"

    def look() -> Load:
        busy = busy_cores() if looks else 0.0
        return Load(max(1, int(cores - busy) // ranks), busy, cores)

    loads = [load for load in run_on_all_ranks(look) if load.busy >= BUSY_CORES and load.threads < share]
    if not loads or not may_choose():
        return

    fewest = min(loads)
    torch.set_num_threads(fewest.threads)
    logger.info(
        "Other programs keep %.1f of the %d cores busy, so this run computes with %s instead of %d. %s=N sets another "
        "number.",
        fewest.busy,
        fewest.cores,
        counted(fewest.threads, "thread"),
        share,
        VARIABLE,
    )


def busy_cores() -> float:
    """Return how many of the cores that this process may use are busy now, as a sum of shares; 0 if that is unknown.

    This process sleeps at that time, so this is what other programs use.
    """
    try:
        import psutil

        shares = psutil.cpu_percent(interval=SAMPLE_SECONDS, percpu=True)
        allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(len(shares))
        return sum(share for core, share in enumerate(shares) if core in allowed) / 100
    except Exception:  # a message about speed must not end a run, whatever a platform's psutil raises
        return 0.0


# The number that a run records


class Threads(NamedTuple):
    """What a run records. number: of a rank, 0 if none is recorded. cores: its share, without other programs."""

    number: int
    cores: int


def kept_threads(began: Threads, share: int) -> Threads:
    """Take no more threads than a run began with, and return what it records. share: this rank's share of the cores."""
    now = torch.get_num_threads()
    if not began.number or began.cores != share or not may_choose():
        return Threads(now, share)

    if now > began.number:
        torch.set_num_threads(began.number)
        logger.info(
            "The run keeps the %s that it began with, so that losses stay the same to the last bit. %s=%d uses all "
            "free cores.",
            counted(began.number, "thread"),
            VARIABLE,
            now,
        )
    elif now < began.number:
        logger.info("The run began with %s. With %d, losses differ in rounding.", counted(began.number, "thread"), now)
    return began
