"""The loop of one phase: read, step, judge, measure, log, save."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch.distributed as dist
from deepspeed import DeepSpeedEngine

from schemas.errors import CheckpointError, PreemptedError, StorageError
from schemas.randomness import key
from trainer.anomaly import AnomalyHistory
from trainer.anomaly_guard import AnomalyGuard
from trainer.checkpoint import layout as checkpoints
from trainer.checkpoint import sharded as saving
from trainer.checkpoint.layout import TrainingState
from trainer.checkpoint.remote_sync import RemoteRun
from trainer.config.phases import Phase
from trainer.config.schema import Recipe
from trainer.data.loader import Stream
from trainer.distributed.collectives import any_rank, run_on_rank_0
from trainer.distributed.replica_check import check_replicas
from trainer.distributed.stop_agreement import StopAgreement
from trainer.distributed.watchdog import Watchdog
from trainer.evaluate import Evaluation, Figures, due
from trainer.metrics.interval import Interval
from trainer.metrics.log import Meter, MetricsLog
from trainer.metrics.presentation import keep_running
from trainer.metrics.report import write_report
from trainer.optim.lr_schedule import learning_rate, set_learning_rate
from trainer.step import StepResult, check_masked, count_batch, seed_dropout, take_step


class Progress:
    """How far a run is: counts over its resumes, and the interval since the last logged line."""

    def __init__(self, state: TrainingState):
        self._state = state
        self.meter = Meter(state.tokens, state.seconds)
        self.interval = state.interval.model_copy()

    def add(self, step: StepResult) -> None:
        """Count a step."""
        self.meter.add(int(step.counts.tokens))
        self.interval.add(step)

    def state_at(self, step: int, history: AnomalyHistory) -> TrainingState:
        """Return the state to save after `step`."""
        now = {
            "step": step,
            "tokens": self.meter.tokens,
            "seconds": self.meter.seconds,
            "anomaly": history,
            "interval": self.interval.model_copy(),
        }
        return self._state.model_copy(update=now)


@dataclass
class Loop:
    """What the steps of one phase are taken with."""

    recipe: Recipe
    phase: Phase
    engine: DeepSpeedEngine
    stream: Stream
    evaluation: Evaluation | None
    guard: AnomalyGuard
    metrics: MetricsLog | None
    remote: RemoteRun | None
    stop: StopAgreement
    watchdog: Watchdog

    def run(self, state: TrainingState, last: int) -> int | None:
        """Train from `state` to `last`.

        Saves a checkpoint every checkpoint.every steps, at the last step, and when a stop was requested.

        Returns None, or the step at which too many in a row have made no update.
        Raises PreemptedError after saving if a stop was requested.
        """
        self.stop.training_begins()
        self.make_up(state)
        progress = Progress(state)
        saved = state.step  # step 0 of a new run is not, but it has its own case below
        measured: Figures = {}

        for step in range(state.step + 1, last + 1):
            done = self.step(step, state.skipped_batches)
            if done is None:
                if saved < step - 1 or step == 1:
                    self.save(progress.state_at(step - 1, self.guard.history), measured, must=True)
                raise self.preempted(step - 1)

            progress.add(done)
            found = self.measure(step)
            cut_short = found is None
            measured = found or {}
            progress.meter.skip(measured.get("eval_seconds") or 0.0)
            self.log(step, done, progress, measured)

            if self.guard.wants_rollback:
                return step
            if step % self.recipe.anomaly.replica_check_every == 0:
                check_replicas(self.engine, step)

            must_save = step == last or cut_short
            # between bad steps is no place to come back to
            due_to_save = step % self.recipe.checkpoint.every == 0 and not self.guard.history.consecutive_skips
            if must_save or due_to_save:
                state_now = progress.state_at(step, self.guard.history)
                saved = step if self.save(state_now, measured, must_save) else saved
            if cut_short:
                raise self.preempted(step)
        return None

    def preempted(self, step: int) -> PreemptedError:
        run = self.recipe.run
        return PreemptedError(
            f"{run.output}: asked to stop; step {step} of {run.max_steps} is saved. The same command resumes from it."
        )

    def step(self, step: int, left_out: int) -> StepResult | None:
        """Take one step. Returns None when the ranks agreed to stop before its update was made."""
        phase, run = self.phase, self.recipe.run
        self.watchdog.at(f"step {step}, reading data")
        batches = self.stream.batch(step - 1 - phase.steps_before + left_out)
        set_learning_rate(self.engine.optimizer, self.rate(step))

        self.watchdog.at(f"step {step}, counting")
        counts = count_batch(self.engine, batches, self.stop.stop_requested)
        if counts.stop:
            return None
        check_masked(counts, step)

        seed_dropout(key(run.seed, "dropout", step, dist.get_rank()) >> 1)  # torch takes 63 bits
        return take_step(self.engine, batches, counts, self.guard, partial(self.leaves_step, step))

    def leaves_step(self, step: int, micro_batch: int, micro_batches: int) -> bool:
        """Return whether a step ends before this micro-batch, counted from 0, because a stop was requested."""
        self.watchdog.at(f"step {step}, computing")
        return self.stop.leaves_step(micro_batch, micro_batches)

    def rate(self, step: int) -> float:
        phase, own = self.phase, self.phase.recipe
        return learning_rate(step - phase.schedule_before, own.optimizer, own.schedule, phase.schedule_steps)

    def measure(self, step: int) -> Figures | None:
        """Return the held-out pairs' figures, where they are due; None when a signal came first."""
        if self.evaluation is None or not due(self.recipe, self.phase, step):
            return {}
        return self.evaluation.measure(self.engine, partial(self.asked, step))

    def asked(self, step: int) -> bool:
        """Whether any rank was asked to stop, between two batches of an evaluation."""
        self.watchdog.at(f"step {step}, evaluating")
        return any_rank(self.stop.stop_requested, self.engine.device)

    def make_up(self, state: TrainingState) -> None:
        """The evaluation of the checkpoint that the run resumes from, when a signal came before its end."""
        path = checkpoints.checkpoint_path(self.recipe.run.folder, state.step)
        if not due(self.recipe, self.phase, state.step) or checkpoints.read_evaluation(str(path)):
            return
        figures = self.measure(state.step)
        if figures is None:
            raise self.preempted(state.step)

        def write() -> None:
            checkpoints.add_evaluation(path, figures)
            if self.metrics is not None:
                self.metrics.amend(state.step, figures)

        run_on_rank_0(write)
        self.publish(state)

    def log(self, step: int, done: StepResult, progress: Progress, measured: Figures) -> None:
        """Log the means since the last logged line, if this step ends an interval or was evaluated."""
        if self.metrics is not None:
            self.metrics.advance()
            if done.fault is not None:
                print(f"Step {step} made no update: {done.fault}.", flush=True)

        run = self.recipe.run
        ends_interval = step == 1 or step % run.log_every == 0 or step == run.max_steps
        if not ends_interval and not due(self.recipe, self.phase, step):
            return
        means = progress.interval.means()
        progress.interval = Interval()

        if self.metrics is not None:
            rates = progress.meter.read(self.stream.stalled)
            try:
                self.metrics.log(means | {"step": step, "lr": self.rate(step)} | rates | measured)
            except (OSError, StorageError) as error:
                # The line is kept, and written with a later one once there is room again.
                reason = error.strerror if isinstance(error, OSError) else error
                print(f"{run.output}: metrics.jsonl cannot be written: {reason}. Training continues.", flush=True)

    def save(self, state: TrainingState, measured: Figures, must: bool) -> bool:
        """Save a checkpoint and return whether that worked.

        A save that fails loses nothing: training continues to the next one, unless this one `must` be.
        """
        run = self.recipe.run.folder
        self.watchdog.at(f"step {state.step}, saving")
        check_replicas(self.engine, state.step)
        worked = True
        try:
            saving.save_checkpoint(self.engine, run, state, self.recipe.checkpoint.keep, measured)
        except (CheckpointError, StorageError) as error:
            worked = False
            reason = f"{error} Older checkpoints of {run} are as they were. Free disk space or check the disk"
            if must:
                failure = StorageError(f"Step {state.step} could not be saved: {reason}, and start again.")
                failure.everywhere = True
                raise failure from error
            if dist.get_rank() == 0:
                print(f"Step {state.step} was not saved, and training continues: {reason}.", flush=True)
        self.publish(state)
        return worked

    def publish(self, state: TrainingState) -> None:
        """Let others see how far the run is: its report, and the URL that follows it."""
        if self.metrics is not None:
            with keep_running("report.html"):
                write_report(self.recipe.run.folder, state.resumed_at, state.changes)
        if self.remote is not None:
            self.remote.follow()
