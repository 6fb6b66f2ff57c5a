"""What a run holds from its first phase to its last: the claimed folder, its watchdog, its URL, stop requests.

`open_run` acquires these and releases them in reverse order, whatever ends the run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch.distributed as dist

from schemas import storage
from schemas.errors import ClozelineError, StorageError
from trainer.checkpoint.background import BackgroundSaves
from trainer.checkpoint.format import FoundCheckpoint
from trainer.checkpoint.remote import RunUrl
from trainer.checkpoint.resume import find_checkpoint
from trainer.checkpoint.run_folder import NodeFolders, claim_folders
from trainer.checkpoint.write import prune
from trainer.config.schema import Recipe
from trainer.distributed.collectives import check_ranks_agree, run_on_all_ranks, run_on_rank_0
from trainer.distributed.stop import StopAgreement, StopRequest
from trainer.distributed.watchdog import RankLostError, Watchdog
from trainer.length import Hours, with_fixed_length, with_steps
from trainer.logs import log_file
from trainer.profile import NOTHING, Recording, StepProfiler, profiling


@dataclass
class RunContext:
    """What every phase of a run needs.

    run_recipe: the recipe as it was loaded, with the number of steps that run.max_epochs or run.max_hours makes, if
    they are set. What a phase changes in it is in `phase.recipe` (trainer/config/phases.py).
    last_step: the step at which this process ends training, which `run.stop_at` may place before `run.max_steps`.
    stop: whether to stop early, agreed on by all ranks.
    folders: which ranks see the same folder.
    url: the run's URL; None if run.output is a local folder.
    saves: the thread that saves checkpoints while training continues.
    profiler: records some steps; None if no step is recorded.
    hours: measures the steps of a run with run.max_hours, None for any other run.
    """

    run_recipe: Recipe
    last_step: int
    stop: StopAgreement
    watchdog: Watchdog
    folders: NodeFolders
    url: RunUrl | None
    saves: BackgroundSaves
    profiler: StepProfiler | None = None
    hours: Hours | None = None

    @property
    def known_length(self) -> int | None:
        """The last step of this process, None as long as run.max_hours is yet to make it.

        Until then run.max_steps is only the bound: millions of steps, and hundreds of hours.
        """
        is_open = self.hours is not None and self.hours.speed is None
        return None if is_open else self.last_step

    def set_length(self, steps: int) -> None:
        """Set the number of steps of a run with run.max_hours. Raises UsageError if its schedule does not fit."""
        self.run_recipe = with_steps(self.run_recipe, steps)
        self.last_step = last_step_of(self.run_recipe)


@contextlib.contextmanager
def open_run(run_recipe: Recipe, stop_request: StopRequest, recording: Recording = NOTHING) -> Iterator[RunContext]:
    """Claim the run's folder and watch its ranks while the context lasts. A collective call.

    recording: which steps to profile.

    Raises UsageError if the ranks differ in their recipes, data or code, UsageError or StorageError if the folder or
    URL cannot be used, and RankLostError if a rank died.
    """
    timeout = run_recipe.engine.timeout_seconds

    # `folder_resources` are closed after the watchdog: a rank that lost the others still copies its files, and the
    # folder stays locked until then.
    with contextlib.ExitStack() as folder_resources, watch_ranks(timeout) as watchdog:
        watchdog.at("comparing what the ranks begin with")
        check_ranks_agree(run_recipe)
        run_recipe = with_fixed_length(run_recipe)

        watchdog.at("opening the run's folder")
        is_remote = not storage.is_local(run_recipe.run.output)
        folders = claim_folders(run_recipe.run.folder, is_remote, folder_resources)

        watchdog.at("bringing the run from its URL")
        url = open_url(run_recipe, folders)

        with (
            ending_together(watchdog, url),
            contextlib.closing(StopAgreement(stop_request, 2 * timeout)) as stop,
            BackgroundSaves(run_recipe.checkpoint.background) as saves,
            profiling(recording, run_recipe.run.folder, dist.get_rank()) as profiler,
        ):
            last_step = last_step_of(run_recipe)
            yield RunContext(run_recipe, last_step, stop, watchdog, folders, url, saves, profiler)


@contextlib.contextmanager
def ending_together(watchdog: Watchdog, url: RunUrl | None) -> Iterator[None]:
    """Let all ranks wait for the last copy to the URL, if they end together.

    Once one rank has exited, a launcher soon kills the others (torchrun after 30 seconds), which would cut off a copy.
    """
    try:
        yield
    except ClozelineError as error:
        # A store that refuses must not hide why the run ends.
        if error.everywhere and url is not None:
            watchdog.at("copying to the run's URL")
            with contextlib.suppress(StorageError):
                run_on_rank_0(url.finish)
        raise
    if url is not None:
        watchdog.at("copying to the run's URL")
        run_on_rank_0(url.finish)


def last_step_of(run_recipe: Recipe) -> int:
    """Return the step at which training ends: run.stop_at if it is set, but at most run.max_steps."""
    run = run_recipe.run
    return min(run.stop_at or run.max_steps, run.max_steps)


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


def open_url(run_recipe: Recipe, folders: NodeFolders) -> RunUrl | None:
    """Return the run's URL, or None if run.output is a local folder. A collective call.

    Raises StorageError on every rank if a machine cannot write there.
    """
    run = run_recipe.run
    if storage.is_local(run.output):
        return None
    url = RunUrl(run.output, run.folder, run_recipe.checkpoint.keep)
    run_on_all_ranks(lambda: url.check() if folders.leads(dist.get_rank()) else None)
    if dist.get_rank() == 0:
        log_file.after_last_line = url.send_log
    return url


def newest_checkpoint(context: RunContext) -> FoundCheckpoint | None:
    """Return the newest checkpoint that verifies, in the folder that this rank sees. A collective call.

    Raises CheckpointError on every rank if there are checkpoints but none verifies.
    """
    context.watchdog.at("looking for a checkpoint")
    run = context.run_recipe.run.folder
    url = context.url
    found = find_checkpoint(run, context.folders, url)
    if found is not None and url is not None:
        step = found.state.step
        run_on_rank_0(lambda: url.begin_from(step))
        leads = context.folders.leads(dist.get_rank())
        keep = context.run_recipe.checkpoint.keep
        run_on_all_ranks(lambda: prune(run, keep, step) if leads else None)
    return found
