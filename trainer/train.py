"""The run: phase by phase from the newest checkpoint on.

Everything that begins, begins from the newest checkpoint that verifies: a run started again, the next phase, and a run
that goes back because steps went wrong.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch.distributed as dist

from schemas import storage
from schemas.errors import ClozelineError
from trainer.anomaly_guard import AnomalyGuard
from trainer.build_model import build_initial_model, tokens_at_peak
from trainer.checkpoint import run_dir as run_folder
from trainer.checkpoint import sharded as saving
from trainer.checkpoint.layout import TrainingState
from trainer.checkpoint.remote_sync import RemoteRun
from trainer.checkpoint.resume import Found, announce, resume, write_history
from trainer.config.phases import Phase, phase_after, phases_of
from trainer.config.schema import Recipe
from trainer.data.build import build_stream, open_folders
from trainer.data.dataset import PairFolder
from trainer.distributed.collectives import run_on_all_ranks, run_on_rank_0
from trainer.distributed.preemption import StopRequest
from trainer.distributed.stop_agreement import StopAgreement
from trainer.distributed.watchdog import RankLostError, Watchdog
from trainer.engine import build_engine, device_of_rank, free_former_engine, share_of, start_distributed
from trainer.evaluate import open_evaluation
from trainer.loop import Loop
from trainer.metrics.log import MetricsLog
from trainer.metrics.monitors import Tell, monitors_of, name_run


class AnomalyError(ClozelineError):
    """Steps went wrong again and again, and going back did not help."""

    everywhere = True


@dataclass(frozen=True)
class Rollback:
    """A run has gone back to the checkpoint of step `to` so many `times`, and leaves out steps of data there."""

    to_step: int = -1
    times: int = 0
    skipped_batches: int = 0

    def again(self, to: int, bad: int) -> Rollback:
        """Once more, because steps up to `bad` went wrong."""
        before = self if self.to_step == to else Rollback(to)
        return Rollback(to, before.times + 1, before.skipped_batches + bad - to)


def pretrain(recipe: Recipe, stop: StopRequest) -> None:
    """Run a recipe from its newest checkpoint, or from the start, to run.stop_at or run.max_steps.

    Raises PreemptedError on every rank, once all is saved, when one of them was asked to stop.
    """
    start_distributed(recipe.engine.timeout_seconds)
    last = min(recipe.run.stop_at or recipe.run.max_steps, recipe.run.max_steps)
    phases, returned, begin, bad = phases_of(recipe), Rollback(), 0, None
    with contextlib.ExitStack() as held:
        watchdog, remote = held.enter_context(held_folder(recipe))
        agreement = StopAgreement(stop, 2 * recipe.engine.timeout_seconds)
        held.callback(agreement.close)
        while bad is not None or begin < last:
            watchdog.at("looking for a checkpoint")
            found = saving.find_checkpoint(recipe.run.folder)
            begin = found[1].step if found else 0
            if bad is not None:
                returned = roll_back(recipe, returned.again(begin, bad), bad)
            phase = phase_after(phases, begin)
            left_out = returned.skipped_batches if returned.to_step == begin else 0
            bad = run_phase(recipe, phase, min(phase.last_step, last), found, left_out, remote, agreement, watchdog)
            free_former_engine()
            begin = max(begin, min(phase.last_step, last))
    if dist.get_rank() == 0:
        print(f"{recipe.run.output}: step {begin} of {recipe.run.max_steps} is saved.", flush=True)


@contextlib.contextmanager
def held_folder(recipe: Recipe) -> Iterator[tuple[Watchdog, RemoteRun | None]]:
    """The run's folder is ours, ranks that are lost are named, and a URL follows it, while this lasts."""
    run = recipe.run.folder
    rank = dist.get_rank()
    with contextlib.ExitStack() as held:
        watchdog = Watchdog(rank, dist.get_world_size(), recipe.engine.timeout_seconds)
        left = False
        try:
            watchdog.at("opening the run's folder")
            run_on_rank_0(lambda: held.callback(run_folder.claim(run).close) and None)
            run_on_all_ranks(lambda: run_folder.check_shared(run, rank))

            watchdog.at("bringing the run from its URL")
            remote = open_remote(recipe)
            if remote is not None:
                held.callback(remote.close)
            yield watchdog, remote
            left = True
        except ClozelineError as error:
            left = error.everywhere
            raise
        except RuntimeError as error:  # torch reports a broken connection this way
            lost = watchdog.lost()
            if not lost:
                raise
            message = f"Lost {', '.join(lost)}. The same command resumes from the last checkpoint."
            raise RankLostError(message) from error
        finally:
            watchdog.close(left)


def open_remote(recipe: Recipe) -> RemoteRun | None:
    """What rank 0 copies the run to its URL with, after it has brought what is newer there. A collective call."""
    run = recipe.run
    if storage.is_local(run.output):
        return None
    remote = RemoteRun(run.output, run.folder, recipe.checkpoint.keep, recipe.engine.timeout_seconds)
    run_on_rank_0(remote.fetch)
    return remote if dist.get_rank() == 0 else None


def roll_back(recipe: Recipe, returned: Rollback, bad: int) -> Rollback:
    """Tell of it. Raises AnomalyError when the run has been there too often."""
    told = f"{recipe.run.output}: {recipe.anomaly.max_skips} steps in a row up to step {bad} made no update"
    if returned.times > recipe.anomaly.max_rollbacks:
        raise AnomalyError(
            f"{told}, and going back to step {returned.to_step} {recipe.anomaly.max_rollbacks} times did not help. "
            "Lower optimizer.lr, or see [anomaly] for what counts as a bad step; the same command resumes from there."
        )
    if dist.get_rank() == 0:
        print(
            f"{told}. Going back to step {returned.to_step}; {returned.skipped_batches} steps of data are left out.",
            flush=True,
        )
    return returned


def run_phase(
    recipe: Recipe,
    phase: Phase,
    last: int,
    found: Found | None,
    left_out: int,
    remote: RemoteRun | None,
    stop: StopAgreement,
    watchdog: Watchdog,
) -> int | None:
    """Steps of one phase from a checkpoint to `last`. Returns None, or the step up to which the run is lost."""
    watchdog.at("opening the data")
    folders = open_folders(phase.recipe)
    share = share_of(phase.recipe, dist.get_rank(), dist.get_world_size(), folders)
    stream = build_stream(phase.recipe, folders, share, device_of_rank())
    evaluation = open_evaluation(phase.recipe, folders, share)
    watchdog.at("building the engine")
    run_on_rank_0(lambda: name_run(recipe.run.folder, recipe.deepspeed))
    engine = build_engine(build_initial_model(recipe, folders, dist.get_rank()), phase.recipe, share)
    watchdog.at("loading the checkpoint")
    state = resume(engine, recipe, phase, folders, found)
    state = state.model_copy(update={"skipped_batches": state.skipped_batches + left_out})
    if found is not None:
        announce(phase, state, found)
    tell = monitors_of(engine)
    metrics = open_metrics(phase.recipe, folders, recipe, state, tell)
    guard = AnomalyGuard(engine, recipe.anomaly, state.anomaly.model_copy(), phase.recipe.optimizer.clip)
    try:
        return Loop(recipe, phase, engine, stream, evaluation, guard, metrics, remote, stop, watchdog).run(state, last)
    finally:
        stream.close()
        if evaluation is not None:
            evaluation.close()
        engine.destroy()
        if metrics is not None:
            with contextlib.suppress(OSError):  # told of when the line was logged
                metrics.close()


def open_metrics(
    recipe: Recipe, folders: list[PairFolder], run: Recipe, state: TrainingState, tell: Tell
) -> MetricsLog | None:
    """Open the run's metrics up to the state on rank 0, and write beside them what an export needs.

    `recipe` is the phase's. Raises StorageError on every rank when rank 0 cannot write. A collective call.
    """
    opened: list[MetricsLog] = []

    def write_and_open() -> None:
        run_folder.describe_run(run, folders[0])
        write_history(run.run.folder, state.changes)
        at_peak = tokens_at_peak(recipe, folders, dist.get_world_size())
        opened.append(MetricsLog(run.run.folder, state.step, run.run.max_steps, at_peak, tell))

    run_on_rank_0(write_and_open)
    return opened[0] if opened else None
