"""What a run holds from its first phase to its last: the claimed folder, its watchdog, its URL, stop requests.

`open_run` acquires these and releases them in reverse order, whatever ends the run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch.distributed as dist

from schemas import storage
from schemas.errors import ClozelineError
from trainer.checkpoint.background import BackgroundSaves
from trainer.checkpoint.left_parts import send_what_is_left
from trainer.checkpoint.node_folders import NodeFolders, claim_folders
from trainer.checkpoint.remote_parts import RemotePartOfRun, bring_newest
from trainer.checkpoint.remote_sync import RemoteRun
from trainer.checkpoint.sharded import find_checkpoint
from trainer.checkpoint.state import FoundCheckpoint
from trainer.config.schema import Recipe
from trainer.distributed.collectives import check_ranks_agree, run_on_all_ranks, run_on_rank_0
from trainer.distributed.stop import StopAgreement, StopRequest
from trainer.distributed.watchdog import RankLostError, Watchdog
from trainer.profile import StepProfiler, profiling

if TYPE_CHECKING:
    from trainer.pace import Pace


@dataclass(frozen=True)
class RunContext:
    """What every phase of a run needs.

    run_recipe: the recipe as it was loaded. What a phase changes in it is in `phase.recipe` (trainer/config/phases.py).
    last_step: the step at which this process ends training, which `run.stop_at` may place before `run.max_steps`.
    stop: whether to stop early, agreed on by all ranks.
    folders: which ranks see the same folder.
    remote: copies the run to its URL; None on ranks that do not lead in their folder, and on all ranks if run.output is
    a local folder.
    saves: the thread that saves checkpoints while training continues.
    profiler: records some steps, or none.
    pace: measures the steps of a run with run.max_hours.
    """

    run_recipe: Recipe
    last_step: int
    stop: StopAgreement
    watchdog: Watchdog
    folders: NodeFolders
    remote: RemoteRun | None
    saves: BackgroundSaves
    profiler: StepProfiler = field(default_factory=StepProfiler)
    pace: Pace | None = None


@contextlib.contextmanager
def open_run(run_recipe: Recipe, stop_request: StopRequest, profile_steps: int = 0) -> Iterator[RunContext]:
    """Claim the run's folder and watch its ranks while the context lasts. A collective call.

    profile_steps: how many steps to record.

    Raises UsageError if the ranks differ in their recipes, data or code, UsageError or StorageError if the folder or
    URL cannot be used, and RankLostError if a rank died.
    """
    timeout = run_recipe.engine.timeout_seconds

    # `folder_resources` are closed after the watchdog: a rank that lost the others still copies its files, and the
    # folder stays locked until then.
    with contextlib.ExitStack() as folder_resources, watch_ranks(timeout) as watchdog:
        watchdog.at("comparing what the ranks begin with")
        check_ranks_agree(run_recipe)

        watchdog.at("opening the run's folder")
        is_remote = not storage.is_local(run_recipe.run.output)
        folders = claim_folders(run_recipe.run.folder, is_remote, folder_resources)

        watchdog.at("bringing the run from its URL")
        remote = open_remote(run_recipe, folders)
        if remote is not None:
            folder_resources.callback(remote.close)

        with (
            ending_together(watchdog, remote),
            contextlib.closing(StopAgreement(stop_request, 2 * timeout)) as stop,
            contextlib.closing(BackgroundSaves(run_recipe.checkpoint.background)) as saves,
            profiling(profile_steps, run_recipe.run.folder, dist.get_rank()) as profiler,
        ):
            last_step = last_step_of(run_recipe)
            yield RunContext(run_recipe, last_step, stop, watchdog, folders, remote, saves, profiler)


@contextlib.contextmanager
def ending_together(watchdog: Watchdog, remote: RemoteRun | None) -> Iterator[None]:
    """Let all ranks wait for the last copy to the URL, if they end together.

    Once one rank has exited, a launcher soon kills the others (torchrun after 30 seconds), which would cut off a copy.
    The watchdog ends the wait if the copy does not advance for engine.timeout_seconds.
    """
    try:
        yield
    except ClozelineError as error:
        if error.everywhere:
            close_remote(watchdog, remote)
        raise
    close_remote(watchdog, remote)


def close_remote(watchdog: Watchdog, remote: RemoteRun | None) -> None:
    """Wait until everything is at the URL. A collective call. Raises StorageError on every rank if that failed."""
    watchdog.at("copying to the run's URL")
    rank = dist.get_rank()

    # Rank 0 last: if nodes have separate folders, it publishes what the others have uploaded.
    run_on_all_ranks(lambda: remote.close() if remote is not None and rank > 0 else None)
    run_on_rank_0(lambda: remote.close() if remote is not None else None)
    run_on_rank_0(lambda: remote.check_published() if isinstance(remote, RemotePartOfRun) else None)


def last_step_of(run_recipe: Recipe) -> int:
    """Return the step at which training ends: run.stop_at if it is set, but at most run.max_steps."""
    run = run_recipe.run
    if not run.stop_at:
        return run.max_steps
    return min(run.stop_at, run.max_steps)


@contextlib.contextmanager
def watch_ranks(timeout: float) -> Iterator[Watchdog]:
    """Run a watchdog. Raises RankLostError, which names the ranks that died, if their loss breaks a collective call."""
    watchdog = Watchdog(dist.get_rank(), dist.get_world_size(), timeout)

    # When all ranks end together, the others must not mistake this rank's silence for its death.
    all_ranks_end = False
    try:
        yield watchdog
        all_ranks_end = True
    except ClozelineError as error:
        all_ranks_end = error.everywhere
        raise
    except RuntimeError as error:
        # torch raises a plain RuntimeError for a broken connection.
        lost = watchdog.lost()
        if not lost:
            raise
        message = f"Lost {', '.join(lost)}. The same command resumes from the last checkpoint."
        raise RankLostError(message) from error
    finally:
        watchdog.close(all_ranks_end)


def open_remote(run_recipe: Recipe, folders: NodeFolders) -> RemoteRun | None:
    """Return the object that copies a run folder to the run's URL, on the rank that leads there. A collective call.

    Returns None on other ranks, and on all ranks if run.output is a local folder. If all ranks share a folder, newer
    checkpoints are fetched from the URL here; otherwise by `newest_checkpoint`.
    """
    run = run_recipe.run
    if storage.is_local(run.output):
        return None

    rank = dist.get_rank()
    keep = run_recipe.checkpoint.keep
    timeout = run_recipe.engine.timeout_seconds
    remote = RemoteRun(run.output, run.folder, keep, timeout)
    if folders.several:
        remote = RemotePartOfRun(run.output, run.folder, keep, timeout, folders.of_ranks[rank])

    run_on_all_ranks(lambda: remote.fetch() if folders.leads(rank) else None)
    leader = remote if folders.leads(rank) else None
    if folders.several:
        send_what_is_left(leader if isinstance(leader, RemotePartOfRun) else None, folders.of_ranks[rank])
    return leader


def newest_checkpoint(context: RunContext) -> FoundCheckpoint | None:
    """Return the newest checkpoint that verifies, in the folder that this rank sees. A collective call.

    Raises CheckpointError on every rank if there are checkpoints but none verifies.
    """
    context.watchdog.at("looking for a checkpoint")
    if context.folders.several:
        bring_newest(context.remote if isinstance(context.remote, RemotePartOfRun) else None)
    return find_checkpoint(context.run_recipe.run.folder, context.folders)
