"""Saves the checkpoints of one phase, in the background where that is possible, and publishes the run's progress."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch.distributed as dist
from deepspeed import DeepSpeedEngine

from schemas import storage
from schemas.errors import CheckpointError, StorageError
from schemas.urls import advice_on_limit
from trainer.checkpoint.format import EVALUATION, add_evaluation, checkpoint_path, location
from trainer.checkpoint.snapshot import Snapshot, snapshot_of
from trainer.checkpoint.state import TrainingState
from trainer.checkpoint.write import prune, write_snapshot
from trainer.distributed.collectives import RankFailedError, run_on_rank_0
from trainer.distributed.replica_check import check_replicas
from trainer.logs import logger
from trainer.metrics.log import Figures
from trainer.metrics.presentation import keep_running
from trainer.metrics.run_page import write_report
from trainer.run_context import RunContext


@dataclass
class Saver:
    """Saves the training state of one engine.

    writes_report: whether this rank writes report.html and evaluation.json; rank 0 does.
    saved_step: the step of the newest checkpoint, at the run's URL if it has one; None in a run that has none yet.
    """

    context: RunContext
    engine: DeepSpeedEngine
    writes_report: bool
    saved_step: int | None = None

    def __post_init__(self) -> None:
        # The step of the newest checkpoint that an evaluation can be added to: on this disk, or at the URL alone.
        self._published: int | None = None
        # Evaluations that wait until the checkpoint of their step is written, by step.
        self._evaluations: dict[int, Figures] = {}

    def begin(self, step: int) -> None:
        """Note that training begins from the checkpoint of `step`, or without one if it is 0."""
        self._published = self.saved_step = step if step > 0 else None

    def save(self, state: TrainingState, must_save: bool) -> None:
        """Save a checkpoint of the weights after `state.step`. A collective call.

        With `must_save`, the checkpoint exists on return, at the run's URL too, or StorageError is raised. Otherwise
        it is written in the background if checkpoint.background is set, and a failure is only logged: training
        continues, and older checkpoints are unchanged. It is left out while the one before is still being uploaded.
        """
        step = state.step
        self.context.watchdog.at(f"step {step}, saving")
        check_replicas(self.engine, step)
        is_remote = self.context.url is not None
        if is_remote and not must_save and self.context.saves.is_busy():
            logger.info("Step %d is not saved: the checkpoint before it is still on its way to the URL.", step)
            return
        self.wait(step)
        self.context.watchdog.at(f"step {step}, saving")

        snapshot = snapshot_of(self.engine, state)
        copy = None if must_save else self.context.saves.copy(snapshot)
        if copy is None:
            self._write(snapshot, must_save)
        else:
            self.context.saves.start(f"saving step {step}", partial(self._write, copy, must_save))

    def wait(self, step: int) -> None:
        """Wait until the save in progress, if there is one, has ended. step: where training is."""
        self.context.watchdog.at(f"step {step}, waiting for the last checkpoint")
        self.context.saves.wait()
        self._write_evaluation()

    def add_evaluation(self, step: int, figures: Figures) -> None:
        """Add an evaluation of the weights after `step` to their checkpoint, once that is written, if it is."""
        self._evaluations[step] = figures
        if not self.context.saves.is_running:
            self._write_evaluation()

    def _write_evaluation(self) -> None:
        """Write the evaluation of the newest checkpoint, and remove those that are no longer the best. Logs errors."""
        step = self._published
        if step is None or not self.writes_report:
            return
        figures = self._evaluations.pop(step, None)
        # Of steps that were not saved, nothing is kept.
        self._evaluations = {later: waiting for later, waiting in self._evaluations.items() if later > step}
        if figures is None:
            return

        run = self.context.run_recipe.run
        with keep_running(EVALUATION):
            if self.context.url is not None and self.context.folders.several:
                url = storage.join(location(self.context.url.url, step), EVALUATION)
                storage.publish(url, json.dumps(figures).encode())
            else:
                add_evaluation(checkpoint_path(run.folder, step), figures)
                prune(run.folder, self.context.run_recipe.checkpoint.keep, step)

    def write_report(self) -> None:
        if self.writes_report:
            with keep_running("report.html"):
                write_report(self.context.run_recipe.run.folder)

    def _write(self, snapshot: Snapshot, must_save: bool) -> None:
        """Write, publish and upload a checkpoint, in the main thread or in another one. A collective call."""
        run = self.context.run_recipe.run
        step = snapshot.state.step
        try:
            folder = write_snapshot(snapshot, run.folder, self.context.folders)
            if not self.context.folders.several:
                run_on_rank_0(lambda: prune(run.folder, self.context.run_recipe.checkpoint.keep, step))
        except (CheckpointError, StorageError) as error:
            advice = advice_on_limit(error) or "Free disk space or check the disk"
            reason = f"{error} Older checkpoints in {run.folder} are unchanged. {advice}"
            if must_save:
                failure = StorageError(f"Step {step} could not be saved: {reason}, and start again.")
                failure.everywhere = True
                raise failure from error
            logger.info("Step %d was not saved, and training continues: %s.", step, reason)
            return
        except RankFailedError as error:
            # A bug, which is raised on all ranks. Training can continue, and the next save may succeed.
            if must_save:
                raise
            logger.error("Step %d was not saved, and training continues: %s", step, error)
            return

        if not self.context.folders.several:
            self._published = step
        if self.context.url is None:
            self.saved_step = step
        self.write_report()
        self._upload(folder, step, must_save)

    def _upload(self, folder: Path, step: int, must_save: bool) -> None:
        """Copy a checkpoint to the run's URL, if there is one. A collective call."""
        url = self.context.url
        if url is None:
            return
        folders = self.context.folders
        try:
            url.send(folder, step)
            self._published = self.saved_step = step
        except StorageError as error:
            if must_save:
                advice = "resumes from the newest checkpoint there" if folders.several else "sends it from here"
                failure = StorageError(f"Step {step} is not at {url.url}: {error} The same command {advice}.")
                failure.everywhere = True
                raise failure from error
            logger.warning("%s Training continues, and the next checkpoint tries again.", error)
        finally:
            if folders.several and folders.leads(dist.get_rank()):
                shutil.rmtree(folder, ignore_errors=True)
