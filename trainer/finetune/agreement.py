"""Reads the user's files on every rank, and makes all ranks fail together if one of them fails.

Every rank reads the files because every rank needs the examples. Without these functions, eight ranks would print the
same error eight times, and a file that is missing on one machine would leave the other ranks waiting for its rank.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TypeVar

from schemas.errors import ClozelineError, DataError

T = TypeVar("T")

TIMEOUT_SECONDS = 600.0
"""How long a rank may go without progress before the watchdog ends its process."""


def read_on_all_ranks(read: Callable[[], T]) -> T:
    """Return what `read` returned on this rank. A collective call, which joins the process group if there are several.

    If `read` fails on any rank, every rank raises the error of the first rank that failed.
    """
    # A single process reports errors in the files before it loads torch and DeepSpeed, which takes seconds.
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return read()

    from trainer.distributed.process_group import start_distributed
    from trainer.run_context import watch_ranks

    start_distributed(TIMEOUT_SECONDS)
    with watch_ranks(TIMEOUT_SECONDS) as watchdog:
        watchdog.at("reading the task's files")
        return succeed_on_all_ranks(read)


def succeed_on_all_ranks(act: Callable[[], T]) -> T:
    """Return what `act` returned on this rank. A collective call.

    If `act` raises a ClozelineError on any rank, every rank raises the error of the first rank that failed. The message
    names the ranks with that error, unless all ranks have it.
    """
    from trainer.distributed.collectives import run_on_all_ranks

    returned: list[T] = []

    def attempt() -> ClozelineError | None:
        try:
            returned.append(act())
        except ClozelineError as error:
            return error
        return None

    errors = run_on_all_ranks(attempt)
    error = common_error(errors)
    if error is not None:
        raise error
    return returned[0]


def common_error(errors: list[ClozelineError | None]) -> ClozelineError | None:
    """Return the error that all ranks raise, given the error of each rank; None if no rank has one."""
    first = next((error for error in errors if error is not None), None)
    if first is None:
        return None

    ranks = [rank for rank, error in enumerate(errors) if str(error) == str(first)]
    if len(ranks) < len(errors):
        noun = "rank" if len(ranks) == 1 else "ranks"
        first = type(first)(f"{noun} {listed(ranks)}: {first}")

    first.everywhere = True
    return first


def agreed(identity: Callable[[], dict[str, str]], names: Mapping[str, str]) -> dict[str, str]:
    """Check that `identity` returns the same hashes of the inputs on all ranks, and return them. A collective call.

    names: for each hash, the name of its input in messages.
    Raises DataError on every rank if the hashes of two ranks differ. The message groups the ranks that agree.
    """
    from trainer.distributed.collectives import run_on_all_ranks

    identities = run_on_all_ranks(identity)
    for key in identities[0]:
        ranks_by_hash: dict[str, list[int]] = {}
        for rank, hashes in enumerate(identities):
            ranks_by_hash.setdefault(hashes[key], []).append(rank)

        if len(ranks_by_hash) > 1:
            groups = "; ".join(listed(ranks) for ranks in ranks_by_hash.values())
            error = DataError(
                f"{names[key]} differs between ranks. Ranks that agree: {groups}. Copy the same files to every machine."
            )
            error.everywhere = True
            raise error
    return identities[0]


def listed(ranks: list[int]) -> str:
    """Return rank numbers as a comma-separated list for a message."""
    return ", ".join(str(rank) for rank in ranks)
