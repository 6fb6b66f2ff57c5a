"""Waits until all ranks have reached the store through which they connect, and says who is missing.

torch waits for the ranks in one call, which says nothing and which no signal ends. Here a rank writes a key to the
store and looks for those of the others, so it can log what it waits for, and end when it is asked to stop. torch's own
wait then ends at once.
"""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from time import monotonic, sleep
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from schemas.errors import PreemptedError
from trainer.distributed.agreement import named
from trainer.distributed.heartbeats import address
from trainer.distributed.preemption import StopRequest
from trainer.logs import EVERY_RANK, logger

SAY_EVERY = 30.0
"""Seconds between two messages about the ranks that are missing."""

LOOK_EVERY = 0.1
CONNECT_SECONDS = 5.0
"""How long one try to reach the store may take. A signal ends the wait between two of them."""


def meet(stop: StopRequest | None, timeout: float) -> Any:
    """Wait until all ranks are there, and return the store, which must be kept until the process group exists.

    stop: ends the wait. timeout: in seconds; afterwards the process group says in its own way what is wrong.

    Raises PreemptedError if the process was asked to stop, and DistNetworkError if the store cannot be opened.
    """
    waiting = _Waiting(stop, monotonic() + timeout)
    store = _reach_store(waiting)

    rank, ranks = _rank_and_ranks()
    store.set(_key(rank), b"")
    missing = set(range(ranks)) - {rank}
    while missing and waiting.goes_on():
        missing = {other for other in missing if not store.check([_key(other)])}
        # One rank speaks for those that are there.
        if missing and rank == min(set(range(ranks)) - missing):
            waiting.say(sorted(missing))
        sleep(LOOK_EVERY if missing else 0)
    return store


class _Waiting:
    """How long this rank waits, and what it says meanwhile."""

    def __init__(self, stop: StopRequest | None, deadline: float):
        self._stop = stop
        self._deadline = deadline
        self._said_at = monotonic()

    def goes_on(self) -> bool:
        """Return whether there is time left. Raises PreemptedError if the process was asked to stop."""
        if self._stop is not None and self._stop.asked:
            rank, _ = _rank_and_ranks()
            error = PreemptedError(
                f"asked to stop while rank {rank} waited at {address()} for other ranks. There is nothing to save. The "
                "same command starts again."
            )
            error.everywhere = False
            raise error
        return monotonic() < self._deadline

    def say(self, missing: list[int]) -> None:
        """Log which ranks are missing, if it is time for that."""
        if monotonic() - self._said_at < SAY_EVERY:
            return
        self._said_at = monotonic()
        rank, ranks = _rank_and_ranks()
        logger.info("Waiting at %s for %s, as rank %d of %d.", address(), named(missing), rank, ranks, extra=EVERY_RANK)


def _reach_store(waiting: _Waiting) -> Any:
    """Open the store, in rank 0, or connect to it, in the others and wherever the launcher holds it.

    Raises DistNetworkError if nothing listens there until the wait is over.
    """
    rank, ranks = _rank_and_ranks()
    is_held_by_launcher = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    holds_store = rank == 0 and not is_held_by_launcher

    # torch's own tries print a stack trace each, so it only connects once something listens there.
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    while not holds_store and not _listens(host, port) and waiting.goes_on():
        waiting.say([0])
        sleep(LOOK_EVERY)

    # Several stores of one process share a server, so torch's own will be this one.
    timeout = timedelta(seconds=CONNECT_SECONDS)
    return TCPStore(
        host, port, ranks, is_master=holds_store, timeout=timeout, wait_for_workers=False, multi_tenant=True
    )


def _listens(host: str, port: int) -> bool:
    """Return whether a server accepts connections, after at most CONNECT_SECONDS."""
    try:
        socket.create_connection((host, port), timeout=CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


def _rank_and_ranks() -> tuple[int, int]:
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def _key(rank: int) -> str:
    return f"clozeline/met/{rank}"
