"""What all ranks do or learn together, so that none continues where another failed. Every call here is collective."""

from __future__ import annotations

import os
import socket
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from schemas.errors import ClozelineError, StorageError

T = TypeVar("T")


class RankFailedError(ClozelineError):
    """A rank ended with an exception that no rank can act on."""


def run_on_rank_0(act: Callable[[], T]) -> T:
    """Return on every rank what `act` returned on rank 0.

    Raises on every rank the ClozelineError that `act` raised there, StorageError for an OSError, and RankFailedError
    for any other exception.
    """
    told: list[Any] = [_attempt(act)] if dist.get_rank() == 0 else [None]
    dist.broadcast_object_list(told)  # its pickles travel between the processes of one run and nowhere else
    return _one_for_all(told)[0]


def any_rank(flag: bool, device: torch.device | None) -> bool:
    """Whether `flag` is true on any rank; device: where this rank computes."""
    flags = torch.tensor(float(flag), device=device)
    dist.all_reduce(flags, dist.ReduceOp.MAX)
    return bool(flags)


def run_on_all_ranks(act: Callable[[], T]) -> list[T]:
    """Return what `act` returned on each rank, by rank.

    Raises on every rank the first error, as `run_on_rank_0` does.
    """
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, _attempt(act))
    return _one_for_all(told)


def _attempt(act: Callable[[], Any]) -> tuple[Any, ClozelineError | None]:
    """Catch every exception: a rank that left a collective call would leave the others waiting in it."""
    try:
        return act(), None
    except ClozelineError as error:
        return None, error
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        return None, StorageError(f"Rank {dist.get_rank()}: {place}{error.strerror or error}. Check that disk.")
    except Exception as error:
        traceback.print_exc()  # a fault of ours; the other ranks report which rank had it
        return None, RankFailedError(f"Rank {dist.get_rank()} failed with {type(error).__name__}: {error}")


def _one_for_all(told: list[tuple[Any, ClozelineError | None]]) -> list[Any]:
    for _, error in told:
        if error is not None:
            error.everywhere = True
            raise error
    return [value for value, _ in told]


def nodes_of_ranks() -> list[int]:
    """The node of each rank, by rank, numbered from 0 in order of their first rank. A collective call.

    Ranks are on one node when they share a kernel, and so its page cache, and a host name. CLOZELINE_NODE names the
    node of a process where that says too much: several containers of one host that mount a store separately.
    """
    names = run_on_all_ranks(_node_name)
    numbers: dict[str, int] = {}
    return [numbers.setdefault(name, len(numbers)) for name in names]


def _node_name() -> str:
    named = os.environ.get("CLOZELINE_NODE")
    if named:
        return named

    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{socket.gethostname()} {boot.read_text().strip() if boot.exists() else ''}"
