"""Runs an action on one rank or on all, and shares results and errors, so that no rank continues where another failed.

Also compares what the ranks of a job begin with. Each rank reads its own command line, files and source code. If two
ranks differed in them, training would continue without an error, with a batch that is partly of other data, or with
weights that follow two learning rates.

Every function here that communicates is a collective call: all ranks must make it, in the same order. Calls of another
thread are not ordered with those of the main thread, so that thread needs its own process group (`collectives_over`).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import threading
import traceback
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist

from schemas.errors import ClozelineError, StorageError, UsageError
from schemas.manifest import read_manifest
from schemas.storage import is_local
from schemas.urls import advice_on_limit
from trainer.config.phases import phases_of
from trainer.config.record import PATH_KEYS, flatten, shown_value
from trainer.config.schema import Recipe

T = TypeVar("T")

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""Linux only: a random id of the running kernel, the same in all containers of a machine."""

MAX_NAMED = 6
"""The most differing keys that a message lists."""

SOURCES = Path(__file__).parents[2]
PACKAGES = ("trainer", "schemas")

_this_thread = threading.local()


class RankFailedError(ClozelineError):
    """A rank failed with an exception that is not a ClozelineError, which means a bug."""


Outcome = tuple[Any, ClozelineError | None]
"""What an action on one rank returned, and the error that it raised, one of which is None."""


@contextlib.contextmanager
def collectives_over(group: Any) -> Iterator[None]:
    """Make this thread's collective calls use `group`, a process group of all ranks, while the block lasts."""
    _this_thread.group = group
    try:
        yield
    finally:
        _this_thread.group = None


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
        dist.broadcast_object_list(outcomes, group=getattr(_this_thread, "group", None))
    return _values_or_first_error(outcomes)[0]


def run_on_all_ranks(act: Callable[[], T]) -> list[T]:
    """Return what `act` returned on each rank, in the order of ranks.

    Raises on every rank the error of the first rank that has one, translated as in `run_on_rank_0`.
    """
    outcomes: list[Any] = [_attempt(act)]
    if dist.get_world_size() > 1:
        (own_outcome,) = outcomes
        outcomes = [None] * dist.get_world_size()
        dist.all_gather_object(outcomes, own_outcome, group=getattr(_this_thread, "group", None))
    return _values_or_first_error(outcomes)


def succeed_on_all_ranks(act: Callable[[], T]) -> T:
    """Return what `act` returned on this rank. A collective call.

    If `act` raises an error on any rank, every rank raises that of the first rank that failed, translated as in
    `run_on_rank_0`. The message names the ranks with that error, unless all ranks have it.
    """
    value, own_error = _attempt(act)
    errors = run_on_all_ranks(lambda: own_error)
    first = next((error for error in errors if error is not None), None)
    if first is None:
        return value

    ranks = [rank for rank, error in enumerate(errors) if str(error) == str(first)]
    if len(ranks) < len(errors) and not str(first).startswith(f"Rank {ranks[0]}"):
        first = type(first)(f"{named(ranks)}: {first}")

    first.everywhere = True
    raise first


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
        return act(), None
    except ClozelineError as error:
        return None, error
    except OSError as error:
        path = f"{error.filename}: " if error.filename else ""
        reason = error.strerror or error
        advice = advice_on_limit(error) or "Check that disk"
        return None, StorageError(f"Rank {dist.get_rank()}: {path}{reason}. {advice}.")
    except Exception as error:
        # A bug. The traceback is printed on the rank where it happened; all ranks report which rank that was.
        traceback.print_exc()
        return None, RankFailedError(f"Rank {dist.get_rank()} failed with {type(error).__name__}: {error}")


def _values_or_first_error(outcomes: list[Outcome]) -> list[Any]:
    for _, error in outcomes:
        if error is not None:
            error.everywhere = True
            raise error
    return [value for value, _ in outcomes]


# What the ranks begin with


def check_ranks_agree(recipe: Recipe) -> None:
    """Check that all ranks have the same recipe, data and code. A collective call.

    Raises UsageError on every rank that names the keys that differ, with each value and its ranks.
    """
    if dist.get_world_size() == 1:
        return

    differences = differences_of(run_on_all_ranks(lambda: facts_of_run(recipe) | facts_of_code()))
    if differences:
        texts = [f"{key} is {_values_text(ranks)}" for key, ranks in differences.items()]
        more = f"; and {len(texts) - MAX_NAMED} more" if len(texts) > MAX_NAMED else ""
        raise UsageError(
            f"The ranks do not begin with the same: {'; '.join(texts[:MAX_NAMED])}{more}. Start all of them with the "
            "same recipe, --set flags, pairs and version of Clozeline."
        )


def facts_of_run(recipe: Recipe) -> dict[str, str]:
    """Return the recipe's values by full key, and the fingerprints of its pairs.

    Paths are left out: machines may see the same data at different ones, and have separate caches.
    """
    values = flatten(recipe.model_dump(exclude_none=True))
    facts = {key: shown_value(value) for key, value in values.items() if key.rpartition(".")[2] not in PATH_KEYS}

    folders = [folder for phase in phases_of(recipe) for folder in phase.recipe.data.folders]
    facts["data.pairs"] = ", ".join(_fingerprint(folder) for folder in folders)
    if recipe.evaluation.pairs is not None:
        facts["evaluation.pairs"] = _fingerprint(recipe.evaluation.pairs)

    # Whether ranks see the same local folder is tested when they claim it.
    facts["run.output"] = "a local folder" if is_local(recipe.run.output) else recipe.run.output
    return facts


def _fingerprint(folder: str) -> str:
    # A folder that no rank can read may belong to a phase that is over; otherwise opening it says what is wrong.
    try:
        return f"fingerprint {read_manifest(folder, 'pairs').fingerprint}"
    except (ClozelineError, OSError):
        return "not readable"


def facts_of_code() -> dict[str, str]:
    """Return a hash of the source files that a rank runs, and the versions of its main libraries."""
    digest = hashlib.sha256()
    for path in sorted(path for name in PACKAGES for path in (SOURCES / name).rglob("*.py")):
        digest.update(f"{path.relative_to(SOURCES)}\n".encode() + path.read_bytes())

    code = {"Clozeline's code (a hash of its files)": digest.hexdigest()[:12]}
    return code | {name: f"version {version(name)}" for name in ("torch", "deepspeed")}


def differences_of(facts: list[dict[str, str]]) -> dict[str, dict[str, list[int]]]:
    """Return the keys whose values differ between ranks, each with the ranks of each value.

    facts: of each rank. A key that a rank lacks has the value "unset" there.
    """
    differences = {}
    for key in dict.fromkeys(key for of_rank in facts for key in of_rank):
        ranks_by_value: dict[str, list[int]] = {}
        for rank, of_rank in enumerate(facts):
            ranks_by_value.setdefault(of_rank.get(key, shown_value(None)), []).append(rank)
        if len(ranks_by_value) > 1:
            differences[key] = ranks_by_value
    return differences


def _values_text(ranks_by_value: dict[str, list[int]]) -> str:
    """Return text such as `0.001 on ranks 0 to 6, but 1e-05 on rank 7`."""
    return ", but ".join(f"{value} on {named(ranks)}" for value, ranks in ranks_by_value.items())


def named(ranks: list[int]) -> str:
    """Return ranks for a message, such as `rank 3` or `ranks 0 to 7, 12`."""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {listed(ranks)}"


def listed(ranks: list[int]) -> str:
    """Return ascending rank numbers as a list in which three and more in a row are a range: `0 to 7, 12`."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])

    parts = [f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return ", ".join(parts)
