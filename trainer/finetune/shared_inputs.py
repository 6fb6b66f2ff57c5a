"""Reads the user's files on every rank, and makes all ranks fail together if one of them fails.

Every rank reads the files because every rank needs the examples. Without these functions, eight ranks would print the
same error eight times, and a file that is missing on one machine would leave the other ranks waiting for its rank.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

from schemas.errors import DataError
from trainer.distributed.stop import StopRequest
from trainer.finetune.inputs import flattened

T = TypeVar("T")

TIMEOUT_SECONDS = 600.0
"""How long a rank may go without progress before the watchdog ends its process."""


def read_on_all_ranks(read: Callable[[], T], stop: StopRequest) -> T:
    """Return what `read` returned on this rank. A collective call, which joins the process group if there are several.

    stop: ends the wait for other ranks.

    If `read` fails on any rank, every rank raises the error of the first rank that failed.
    """
    # A single process reports errors in the files before it loads torch and DeepSpeed, which takes seconds.
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return read()

    from trainer.distributed.collectives import succeed_on_all_ranks
    from trainer.distributed.process_group import start_distributed
    from trainer.run_context import watch_ranks

    start_distributed(TIMEOUT_SECONDS, stop)
    with watch_ranks(TIMEOUT_SECONDS) as watchdog:
        watchdog.at("reading the task's files")
        return succeed_on_all_ranks(read)


def agreed(inputs: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Check that `inputs` returns the same on all ranks, and return it. A collective call.

    Raises DataError on every rank if the inputs or the code of two ranks differ. The message groups the ranks that
    agree.
    """
    from trainer.distributed.collectives import differences_of, facts_of_code, listed, run_on_all_ranks

    found = run_on_all_ranks(inputs)
    code = run_on_all_ranks(facts_of_code)
    values = [{key: repr(value) for key, value in flattened(of_rank).items()} for of_rank in found]
    facts = [of_rank | of_code for of_rank, of_code in zip(values, code, strict=True)]
    for key, ranks in differences_of(facts).items():
        groups = "; ".join(listed(of_value) for of_value in ranks.values())
        error = DataError(
            f"{key} differs between ranks. Ranks that agree: {groups}. Copy the same files to every machine."
        )
        error.everywhere = True
        raise error
    return found[0]
