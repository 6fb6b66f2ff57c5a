"""The loop of one phase: read, step, judge, measure, log, save."""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass
from functools import partial

import torch.distributed as dist
from deepspeed import DeepSpeedEngine

from schemas.errors import CheckpointError, PreemptedError, StorageError
from schemas.randomness import key
from trainer import checkpoints, saving
from trainer.agreement import any_rank
from trainer.checkpoints import TrainingState
from trainer.evaluation import Evaluation, Figures, due
from trainer.guard import Guard
from trainer.metrics import Meter, Metrics
from trainer.phases import Phase
from trainer.recipe_sections import Recipe
from trainer.remote_run import RemoteRun
from trainer.replicas import check_replicas
from trainer.report import write_report
from trainer.schedules import learning_rate, set_learning_rate
from trainer.signals import StopRequest
from trainer.steps import Step, count, take_step
from trainer.stream.batches import Stream
from trainer.watchdog import Watchdog


@dataclass
class Loop:
    """What the steps of one phase are taken with."""

    recipe: Recipe
    phase: Phase
    engine: DeepSpeedEngine
    stream: Stream
    evaluation: Evaluation | None
    guard: Guard
    metrics: Metrics | None
    remote: RemoteRun | None
    stop: StopRequest
    watchdog: Watchdog

    def run(self, state: TrainingState, last: int) -> int | None:
        """Step from `state` to `last`, saving every checkpoint.every steps, at the end, and when asked to stop.

        Returns None, or the step at which too many in a row have made no update.
        """
        recipe, run = self.recipe, self.recipe.run
        self.make_up(state)
        meter = Meter(state.tokens, state.seconds)
        for step in range(state.step + 1, last + 1):
            done, fault, stopping = self.step(step, state.left_out)
            meter.add(done.tokens)
            found = self.measure(step, stopping)
            measured, cut_short = found or {}, found is None
            stopping = stopping or cut_short
            meter.skip(measured.get("eval_seconds") or 0.0)
            self.log(step, done, fault, meter, measured)
            if self.guard.lost:
                return step
            if step % recipe.trouble.replicas_every == 0:
                check_replicas(self.engine, step)
            must = step == last or stopping
            # between bad steps is no place to come back to
            if must or (step % recipe.checkpoint.every == 0 and not self.guard.history.in_a_row):
                counted = {
                    "step": step,
                    "tokens": meter.tokens,
                    "seconds": meter.seconds,
                    "trouble": self.guard.history,
                }
                self.save(state.model_copy(update=counted), measured, must)
            if stopping and (cut_short or step < min(run.stop_at or run.max_steps, run.max_steps)):
                raise self.preempted(step)
        return None

    def preempted(self, step: int) -> PreemptedError:
        run = self.recipe.run
        return PreemptedError(
            f"{run.output}: asked to stop; step {step} of {run.max_steps} is saved. The same command goes on."
        )

    def step(self, step: int, left_out: int) -> tuple[Step, str | None, bool]:
        """(what the step summed, why it made no update, whether a rank was asked to stop)."""
        phase, run = self.phase, self.recipe.run
        self.watchdog.at(f"step {step}, reading data")
        batches = self.stream.batch(step - 1 - phase.before + left_out)
        set_learning_rate(self.engine.optimizer, self.rate(step))
        self.watchdog.at(f"step {step}, counting")
        counts = count(self.engine, batches, self.stop.asked)
        self.watchdog.at(f"step {step}, computing")
        done, fault = take_step(
            self.engine, batches, counts, self.guard, key(run.seed, "dropout", step, dist.get_rank())
        )
        return done, fault, counts.stop

    def rate(self, step: int) -> float:
        phase, own = self.phase, self.phase.recipe
        return learning_rate(step - phase.schedule_before, own.optimizer, own.schedule, phase.schedule_steps)

    def measure(self, step: int, stopping: bool) -> Figures | None:
        """The held-out pairs' figures, where they are due; None when a signal came first."""
        if self.evaluation is None or not due(self.recipe, self.phase, step):
            return {}
        return None if stopping else self.evaluation.measure(self.engine, partial(self.asked, step))

    def asked(self, step: int) -> bool:
        """Whether any rank was asked to stop, between two batches of an evaluation."""
        self.watchdog.at(f"step {step}, evaluating")
        return any_rank(self.stop.asked, self.engine.device)

    def make_up(self, state: TrainingState) -> None:
        """The evaluation of the checkpoint that the run goes on from, when a signal came before its end."""
        path = checkpoints.checkpoint_path(self.recipe.run.folder, state.step)
        if not due(self.recipe, self.phase, state.step) or checkpoints.read_figures(str(path)):
            return
        figures = self.measure(state.step, stopping=False)
        if figures is None:
            raise self.preempted(state.step)
        if self.metrics is not None:
            checkpoints.add_figures(path, figures)
            self.metrics.amend(state.step, figures)
        self.publish(state)

    def log(self, step: int, done: Step, fault: str | None, meter: Meter, measured: Figures) -> None:
        if self.metrics is None:
            return
        self.metrics.advance()
        if fault is not None:
            print(f"Step {step} made no update: {fault}.", flush=True)
        run = self.recipe.run
        to_show = step == 1 or step % run.log_every == 0 or step == run.max_steps
        if to_show or due(self.recipe, self.phase, step):
            values = asdict(done) | {"step": step, "lr": self.rate(step)} | meter.read(self.stream.stalled)
            try:
                self.metrics.log(values | measured)
            except OSError as error:  # the line is kept and written with a later one, once there is room again
                print(f"{run.output}: metrics.jsonl cannot be written: {error.strerror}. Training goes on.", flush=True)

    def save(self, state: TrainingState, measured: Figures, must: bool) -> None:
        """A save that fails loses nothing: training goes on to the next one, unless this one `must` be."""
        run = self.recipe.run.folder
        self.watchdog.at(f"step {state.step}, saving")
        check_replicas(self.engine, state.step)
        try:
            saving.save(self.engine, run, state, self.recipe.checkpoint.keep, measured)
        except (CheckpointError, StorageError) as error:
            reason = f"{error} Older checkpoints of {run} are as they were. Free disk space or check the disk"
            if must:
                failure = StorageError(f"Step {state.step} could not be saved: {reason}, and start again.")
                failure.everywhere = True
                raise failure from error
            if dist.get_rank() == 0:
                print(f"Step {state.step} was not saved, and training continues: {reason}.", flush=True)
        self.publish(state)

    def publish(self, state: TrainingState) -> None:
        """Let others see how far the run is: its report, and the URL that follows it."""
        if self.metrics is not None:
            with contextlib.suppress(OSError):  # the next save writes it again
                write_report(self.recipe.run.folder, state.resumed_at)
        if self.remote is not None:
            self.remote.follow()
