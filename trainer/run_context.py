"""What a run holds from its first phase to its last: the claimed folder, its watchdog, its URL, stop requests.

`open_run` acquires these and releases them in reverse order, whatever ends the run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch.distributed as dist

from schemas import storage
from schemas.errors import ClozelineError
from trainer.checkpoint.remote_sync import RemoteRun
from trainer.checkpoint.run_dir import check_shared, claim
from trainer.config.schema import Recipe
from trainer.distributed.collectives import run_on_all_ranks, run_on_rank_0
from trainer.distributed.preemption import StopRequest
from trainer.distributed.stop_agreement import StopAgreement
from trainer.distributed.watchdog import RankLostError, Watchdog


@dataclass(frozen=True)
class RunContext:
    """What every phase of a run needs.

    run_recipe: the recipe as it was loaded. What a phase changes in it is in `phase.recipe` (trainer/config/phases.py).
    last_step: the step at which this process ends training, which `run.stop_at` may place before `run.max_steps`.
    stop: whether to stop early, agreed on by all ranks.
    remote: copies the run to its URL; None on ranks other than 0, and on all ranks if run.output is a local folder.
    """

    run_recipe: Recipe
    last_step: int
    stop: StopAgreement
    watchdog: Watchdog
    remote: RemoteRun | None


@contextlib.contextmanager
def open_run(run_recipe: Recipe, stop_request: StopRequest) -> Iterator[RunContext]:
    """Claim the run's folder and watch its ranks while the context lasts. A collective call.

    Raises UsageError or StorageError if the folder or URL cannot be used, and RankLostError if a rank died.
    """
    timeout = run_recipe.engine.timeout_seconds

    # `folder_resources` are closed after the watchdog: rank 0 may upload for hours after the other ranks have ended,
    # and the folder stays locked meanwhile.
    with contextlib.ExitStack() as folder_resources, watch_ranks(timeout) as watchdog:
        watchdog.at("opening the run's folder")
        claim_folder(run_recipe, folder_resources)

        watchdog.at("bringing the run from its URL")
        remote = open_remote(run_recipe)
        if remote is not None:
            folder_resources.callback(remote.close)

        with contextlib.closing(StopAgreement(stop_request, 2 * timeout)) as stop:
            yield RunContext(run_recipe, last_step_of(run_recipe), stop, watchdog, remote)


def last_step_of(run_recipe: Recipe) -> int:
    """Return the step at which training ends: run.stop_at if it is set, but at most run.max_steps."""
    run = run_recipe.run
    if not run.stop_at:
        return run.max_steps
    return min(run.stop_at, run.max_steps)


@contextlib.contextmanager
def watch_ranks(timeout: float) -> Iterator[Watchdog]:
    """Run a watchdog, and name the ranks that died if their loss breaks a collective call."""
    watchdog = Watchdog(dist.get_rank(), dist.get_world_size(), timeout)

    # The others must not take this rank's silence for a death when all ranks end together.
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


def claim_folder(run_recipe: Recipe, resources: contextlib.ExitStack) -> None:
    """Lock the run's folder until `resources` close, and check that every rank sees it. A collective call."""
    folder = run_recipe.run.folder

    def claim_until_closed() -> None:
        lock = claim(folder)
        resources.callback(lock.close)

    run_on_rank_0(claim_until_closed)

    rank = dist.get_rank()
    run_on_all_ranks(lambda: check_shared(folder, rank))


def open_remote(run_recipe: Recipe) -> RemoteRun | None:
    """Fetch newer checkpoints from the run's URL, and return on rank 0 what copies new ones there.

    Returns None if run.output is a local folder. A collective call.
    """
    run = run_recipe.run
    if storage.is_local(run.output):
        return None

    remote = RemoteRun(run.output, run.folder, run_recipe.checkpoint.keep, run_recipe.engine.timeout_seconds)
    run_on_rank_0(remote.fetch)

    is_rank_0 = dist.get_rank() == 0
    return remote if is_rank_0 else None
