"""Saves the checkpoints of one phase, in the background where that is possible, and publishes the run's progress."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from deepspeed import DeepSpeedEngine

from schemas.errors import CheckpointError, StorageError
from trainer.checkpoint.sharded import write_snapshot
from trainer.checkpoint.snapshot import Snapshot, snapshot_of
from trainer.checkpoint.state import TrainingState
from trainer.distributed.collectives import RankFailedError
from trainer.distributed.replica_check import check_replicas
from trainer.logs import logger
from trainer.metrics.presentation import keep_running
from trainer.metrics.report import write_report
from trainer.run_context import RunContext


@dataclass
class Saver:
    """Saves the training state of one engine.

    writes_report: whether this rank writes report.html; rank 0 does.
    saved_step: the step of the newest complete checkpoint, None in a run that has none yet.
    """

    context: RunContext
    engine: DeepSpeedEngine
    writes_report: bool
    saved_step: int | None = None

    def save(self, state: TrainingState, metrics: dict[str, Any], must_save: bool) -> None:
        """Save a checkpoint of the weights after `state.step`. A collective call.

        With `must_save`, the checkpoint exists on return, or StorageError is raised. Otherwise it is written in the
        background if checkpoint.background is set, and a failure is only logged: training continues, and older
        checkpoints are unchanged.

        metrics: the figures of an evaluation of these weights, or empty.
        """
        step = state.step
        self.wait(step)
        self.context.watchdog.at(f"step {step}, saving")
        check_replicas(self.engine, step)

        snapshot = snapshot_of(self.engine, state, metrics)
        copy = None if must_save else self.context.saves.copy(snapshot)
        if copy is None:
            self._write(snapshot, must_save)
        else:
            self.context.saves.start(f"saving step {step}", partial(self._write, copy, must_save))

    def wait(self, step: int) -> None:
        """Wait until the save in progress, if there is one, has ended. step: where training is."""
        self.context.watchdog.at(f"step {step}, waiting for the last checkpoint")
        self.context.saves.wait()

    def publish(self, state: TrainingState) -> None:
        """Make the run's progress visible: write its report, and copy what is new to its URL."""
        if self.writes_report:
            with keep_running("report.html"):
                write_report(self.context.run_recipe.run.folder, state.resumed_at, state.changes)
        if self.context.remote is not None:
            self.context.remote.follow()

    def _write(self, snapshot: Snapshot, must_save: bool) -> None:
        """Write and publish a checkpoint, in the main thread or in another one. A collective call."""
        run_folder = self.context.run_recipe.run.folder
        keep = self.context.run_recipe.checkpoint.keep
        step = snapshot.state.step
        try:
            write_snapshot(snapshot, run_folder, keep, self.context.folders)
            self.saved_step = step
        except (CheckpointError, StorageError) as error:
            reason = f"{error} Older checkpoints in {run_folder} are unchanged. Free disk space or check the disk"
            if must_save:
                failure = StorageError(f"Step {step} could not be saved: {reason}, and start again.")
                failure.everywhere = True
                raise failure from error
            logger.info("Step %d was not saved, and training continues: %s.", step, reason)
        except RankFailedError as error:
            # A bug, which is raised on all ranks. Training can continue, and the next save may succeed.
            if must_save:
                raise
            logger.error("Step %d was not saved, and training continues: %s", step, error)

        self.publish(snapshot.state)
