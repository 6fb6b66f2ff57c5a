"""What all ranks do or learn together, so that none goes on where another has failed. Every call here is collective."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from schemas.errors import ClozelineError

T = TypeVar("T")


def from_rank_0(act: Callable[[], T]) -> T:
    """What `act` returned on rank 0, on every rank; raises on every rank the ClozelineError that it raised there."""
    told: list[Any] = [_attempt(act)] if dist.get_rank() == 0 else [None]
    dist.broadcast_object_list(told)  # its pickles travel between the processes of one run and nowhere else
    return _one_for_all(told)[0]


def any_rank(flag: bool, device: torch.device | None) -> bool:
    """Whether `flag` is true on any rank; device: where this rank computes."""
    flags = torch.tensor(float(flag), device=device)
    dist.all_reduce(flags, dist.ReduceOp.MAX)
    return bool(flags)


def together(act: Callable[[], T]) -> list[T]:
    """What `act` returned on each rank, by rank; raises on every rank the first ClozelineError that any raised."""
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, _attempt(act))
    return _one_for_all(told)


def _attempt(act: Callable[[], Any]) -> tuple[Any, ClozelineError | None]:
    try:
        return act(), None
    except ClozelineError as error:
        return None, error


def _one_for_all(told: list[tuple[Any, ClozelineError | None]]) -> list[Any]:
    for _, error in told:
        if error is not None:
            error.everywhere = True
            raise error
    return [value for value, _ in told]
