"""Runs an action on one rank or on all, and shares results and errors, so that no rank continues where another failed.

Every function here that communicates is a collective call: all ranks must make it, in the same order. Calls of another
thread are not ordered with those of the main thread, so that thread needs its own process group (`collectives_over`).
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch.distributed as dist

from schemas.errors import ClozelineError, StorageError

T = TypeVar("T")

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""Linux only: a random id of the running kernel, the same in all containers of a machine."""


_this_thread = threading.local()


class RankFailedError(ClozelineError):
    """A rank failed with an exception that is not a ClozelineError, which means a bug."""


class Outcome(NamedTuple):
    """What an action on one rank returned, or the error that it raised."""

    value: Any
    error: ClozelineError | None


@contextlib.contextmanager
def collectives_over(group: Any) -> Iterator[None]:
    """Make this thread's collective calls use `group`, a process group of all ranks, while the block lasts."""
    _this_thread.group = group
    try:
        yield
    finally:
        _this_thread.group = None


def group_of_thread() -> Any:
    """Return the group for this thread's collective calls; None is the default group."""
    return getattr(_this_thread, "group", None)


def run_on_rank_0(act: Callable[[], T]) -> T:
    """Return on every rank what `act` returned on rank 0.

    Raises on every rank the ClozelineError that `act` raised there, StorageError for an OSError, and RankFailedError
    for any other exception.
    """
    outcomes: list[Any] = [None]
    if dist.get_rank() == 0:
        outcomes = [_attempt(act)]

    # Outcomes are sent as pickles, which is safe because they stay between the processes of one run.
    if dist.get_world_size() > 1:
        dist.broadcast_object_list(outcomes, group=group_of_thread())
    return _values_or_first_error(outcomes)[0]


def run_on_all_ranks(act: Callable[[], T]) -> list[T]:
    """Return what `act` returned on each rank, in the order of ranks.

    Raises on every rank the error of the first rank that has one, translated as in `run_on_rank_0`.
    """
    outcomes: list[Any] = [_attempt(act)]
    if dist.get_world_size() > 1:
        (own_outcome,) = outcomes
        outcomes = [None] * dist.get_world_size()
        dist.all_gather_object(outcomes, own_outcome, group=group_of_thread())
    return _values_or_first_error(outcomes)


def nodes_of_ranks() -> list[int]:
    """Return the node of each rank, numbered from 0 in the order of their first ranks.

    Ranks are on one node if they have the same host name and the same running kernel, and so share a page cache. Where
    that is too coarse, as for several containers on one host that mount a network file system separately, set
    CLOZELINE_NODE to the node's name in each process.
    """
    names = run_on_all_ranks(_node_name)
    numbers: dict[str, int] = {}
    return [numbers.setdefault(name, len(numbers)) for name in names]


def _node_name() -> str:
    given_name = os.environ.get("CLOZELINE_NODE")
    if given_name:
        return given_name

    boot_id = BOOT_ID.read_text().strip() if BOOT_ID.exists() else ""
    return f"{socket.gethostname()} {boot_id}"


def _attempt(act: Callable[[], Any]) -> Outcome:
    """Run `act` and catch every exception: a rank that skipped the collective call would leave the others waiting."""
    try:
        return Outcome(act(), None)
    except ClozelineError as error:
        return Outcome(None, error)
    except OSError as error:
        path = f"{error.filename}: " if error.filename else ""
        reason = error.strerror or error
        return Outcome(None, StorageError(f"Rank {dist.get_rank()}: {path}{reason}. Check that disk."))
    except Exception as error:
        # A bug. The traceback is printed on the rank where it happened; all ranks report which rank that was.
        traceback.print_exc()
        return Outcome(None, RankFailedError(f"Rank {dist.get_rank()} failed with {type(error).__name__}: {error}"))


def _values_or_first_error(outcomes: list[Outcome]) -> list[Any]:
    for outcome in outcomes:
        if outcome.error is not None:
            outcome.error.everywhere = True
            raise outcome.error
    return [outcome.value for outcome in outcomes]
