"""The training loop of one phase: read a batch, take a step, log, save, evaluate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import NoReturn

import torch.distributed as dist
from deepspeed import DeepSpeedEngine

from schemas.errors import ClozelineError, PreemptedError, StorageError
from schemas.manifest import read_manifest
from schemas.randomness import key
from trainer.anomaly import AnomalyGuard
from trainer.checkpoint.format import EVALUATED_PAIRS
from trainer.checkpoint.resume import FoundCheckpoint, write_history
from trainer.checkpoint.run_folder import write_recipe
from trainer.checkpoint.state import AnomalyHistory, TrainingState
from trainer.config.phases import Phase, evaluation_is_due, line_is_due, phase_after, phase_of_length
from trainer.config.record import RecipeChange
from trainer.config.schema import Recipe
from trainer.data.stream import Stream
from trainer.distributed.collectives import run_on_rank_0
from trainer.distributed.replica_check import check_replicas
from trainer.evaluate import Evaluation, is_evaluated
from trainer.logs import logger
from trainer.metrics.log import Figures, MetricsLog
from trainer.metrics.plateau import Plateau
from trainer.metrics.presentation import keep_running
from trainer.metrics.speed import Meter, StepClock
from trainer.metrics.sums import Interval, StepResult
from trainer.models.batch import PackedBatch
from trainer.optim.lr_schedule import learning_rate_in, set_learning_rate
from trainer.run_context import RunContext, last_step_of
from trainer.save import Saver
from trainer.step import Stepper, seed_dropout


@dataclass
class Loop:
    """The training loop of one phase, and everything it needs.

    Two recipes apply. The run's recipe (`context.run_recipe`) says when to log, save and evaluate. The phase's recipe
    (`phase.recipe`) has the phase's data, batches and learning rate.

    evaluation: None if the run has no held-out data. metrics: None on ranks other than 0. state: from which training
    begins. unigram_loss: the loss of word frequencies alone on the phase's text, None if it is not known.
    """

    context: RunContext
    phase: Phase
    engine: DeepSpeedEngine
    stream: Stream
    evaluation: Evaluation | None
    guard: AnomalyGuard
    metrics: MetricsLog | None
    state: TrainingState
    unigram_loss: float | None = None

    def __post_init__(self) -> None:
        self.stepper = Stepper(self.engine, self.guard)
        self.saver = Saver(self.context, self.engine, writes_report=self.metrics is not None)
        self.plateau = Plateau(self.context, self.phase, self.engine, self.guard, self.evaluation, self.unigram_loss)
        self.clock = StepClock(self.engine)
        self.progress = Progress(self.run_recipe, self.phase, self.state, self.clock, self.plateau, self.metrics)
        self.micro_batches: list[PackedBatch] = []

    @property
    def run_recipe(self) -> Recipe:
        return self.context.run_recipe

    @property
    def last_step(self) -> int:
        """The last step of the phase that this process takes."""
        return min(self.phase.last_step, self.context.last_step)

    def run(self) -> int | None:
        """Train to the end of the phase, or to the step at which this process ends.

        Saves a checkpoint every `checkpoint.every` steps, at the last step, and when a stop was requested. When this
        returns, no save is in progress.

        Returns the last bad step if training must roll back, or None if it reached the end.
        Raises PreemptedError after saving if a stop was requested.
        """
        self.context.stop.training_begins()
        step = self.state.step
        self.saver.begin(step)
        if not is_evaluated(self.run_recipe, self.phase, step):
            self.evaluate(step)

        try:
            return self.take_steps(step)
        except ClozelineError:
            # For example, data that cannot be read. The step before is complete and still has to be logged.
            self.settle()
            raise

    def take_steps(self, step: int) -> int | None:
        """Take the steps after `step`. Returns as `run`.

        The results of a step are known one step later (trainer/step.py), or right after it if something is due then.
        """
        while step < self.last_step:
            is_last = step + 1 == self.last_step
            is_computed = self.compute_step(step + 1, is_last)
            self.settle()
            if self.guard.wants_rollback:
                break
            if not is_computed:
                self.save_and_stop(step)

            step += 1
            self.stepper.update()
            seconds = self.clock.step_ended(self.stream.stalled_seconds)
            if self.context.profiler is not None:
                self.context.profiler.step_ended(step)

            if not is_last:  # before a save, which records the length
                self.fix_length(step, seconds)
            if is_last or self.may_follow_up(step):
                self.follow_up(step, is_last)
            if self.guard.wants_rollback:
                break
        else:
            return None

        self.saver.wait(step)
        return step

    def fix_length(self, step: int, seconds: float) -> None:
        """Fix the number of steps of a run with run.max_hours, once enough of them are measured. A collective call.

        seconds: that the step took. Raises UsageError if the hours are too short.
        """
        hours = self.context.hours
        if hours is None:
            return
        steps = hours.after_step(step, seconds, self.run_recipe, partial(self.time_evaluation, step))
        if steps is None or hours.speed is None:
            return

        # The line of this step still has the present learning rate.
        self.settle()
        if steps != self.run_recipe.run.max_steps:
            self.context.set_length(steps)
            self.phase = phase_of_length(self.phase, self.run_recipe)
            self.plateau = replace(self.plateau, phase=self.phase)
            self.progress.set_length(self.run_recipe, self.phase, self.plateau, step)
        elif self.progress.metrics is not None:
            self.progress.metrics.set_length(self.context.last_step)
        self.progress.state = self.progress.state.model_copy(update={"speed": hours.speed._asdict()})

    def time_evaluation(self, step: int) -> float:
        """Return the seconds of an evaluation whose figures are not kept, 0 without one. A collective call."""
        if self.evaluation is None:
            return 0.0
        self.settle()
        return self.measure(step)["eval_seconds"]

    def may_follow_up(self, step: int) -> bool:
        """Return whether something may have to be done after a step before the next one begins.

        Whether a checkpoint is due also depends on whether the step made its update, which is not known yet.
        """
        recipe = self.run_recipe
        return (
            evaluation_is_due(recipe, self.phase, step)
            or step % recipe.checkpoint.every == 0
            or step % recipe.anomaly.replica_check_every == 0
            or self.plateau.is_due(step)
        )

    def follow_up(self, step: int, is_last: bool) -> None:
        """Log, compare the replicas, save and evaluate, whichever of these are due after `step`.

        If the guard wants a rollback after the step is logged, none of the others is done. Raises PreemptedError, after
        saving, if the evaluation was interrupted.
        """
        self.settle()
        if self.guard.wants_rollback:
            return

        # Saving compares the replicas, too.
        if is_last or self.checkpoint_is_due(step):
            self.saver.save(self.progress.state_at(step, self.guard.history), must_save=is_last)
        elif step % self.run_recipe.anomaly.replica_check_every == 0:
            check_replicas(self.engine, step)

        # The checkpoint exists before its evaluation, so a kill costs the evaluation alone, and a resume repeats it.
        if evaluation_is_due(self.run_recipe, self.phase, step):
            self.evaluate(step)

    def compute_step(self, step: int, is_last: bool = False) -> bool:
        """Do everything in a step that comes before its update. Returns False if the ranks agreed to abandon it.

        is_last: no step follows, so no further data is read.
        """
        watchdog = self.context.watchdog
        self.clock.step_begins()

        # Batches count from the phase's first step. Batches that a rollback skipped shift all later ones.
        number = step - 1 - self.phase.steps_before + self.state.skipped_batches
        watchdog.at(f"step {step}, reading data")
        micro_batches = self.stream.batch(number)
        self.micro_batches = micro_batches
        set_learning_rate(self.engine.optimizer, learning_rate_in(self.phase, step))

        # Keys have 64 bits, and torch takes seeds of 63 bits.
        seed_dropout(key(self.run_recipe.run.seed, "dropout", step, dist.get_rank()) >> 1)
        if not self.stepper.compute(step, micro_batches, partial(self.leaves, f"step {step}, computing")):
            return False

        watchdog.at(f"step {step}, reading data of the next one")
        self.stepper.exchange(None if is_last else self.stream.peek(number + 1))
        return True

    def settle(self) -> None:
        """Count and log the newest step that `Stepper.update` completed, unless this was done already."""
        result = self.stepper.settle()
        if result is not None:
            self.progress.add(result, self.micro_batches)

    def leaves(self, place: str) -> bool:
        """Return whether all ranks abandon a step or an evaluation before its next micro-batch. A collective call."""
        self.context.watchdog.at(place)
        return self.context.stop.leaves_step()

    # Evaluation

    def evaluate(self, step: int) -> None:
        """Evaluate the held-out data after `step`, and record the figures. A collective call.

        Raises PreemptedError, after saving, if a stop was requested during it.
        """
        figures = self.measure(step)
        self.progress.add_evaluation(step, figures)
        assert self.evaluation is not None
        self.saver.add_evaluation(step, figures | {EVALUATED_PAIRS: self.evaluation.fingerprint})
        self.saver.write_report()

    def measure(self, step: int) -> Figures:
        """Return the figures of an evaluation. Its time is in no rate. Raises as `evaluate`. A collective call."""
        assert self.evaluation is not None  # evaluation.pairs is set
        figures = self.evaluation.measure(self.engine, partial(self.leaves, f"step {step}, evaluating"))
        if figures is None:
            self.save_and_stop(step)
        self.progress.meter.skip(figures["eval_seconds"])
        return figures

    # Checkpoints

    def checkpoint_is_due(self, step: int) -> bool:
        # A checkpoint in the middle of a series of skipped steps would be a bad place to roll back to.
        is_between_skips = self.guard.history.consecutive_skips > 0
        return step % self.run_recipe.checkpoint.every == 0 and not is_between_skips

    def save_and_stop(self, step: int) -> NoReturn:
        """Save the last complete step, unless its checkpoint exists, and raise PreemptedError. A collective call."""
        self.saver.wait(step)
        if self.saver.saved_step != step:
            self.saver.save(self.progress.state_at(step, self.guard.history), must_save=True)

        run = self.run_recipe.run
        # Logged now, because the ranks may be killed before the last of them has exited (by Slurm after KillWait).
        logger.info("Step %d is saved in %s. The ranks end now.", step, run.folder)
        raise PreemptedError(
            f"{run.output}: asked to stop; step {step} of {run.max_steps} is saved. The same command resumes from it."
        )


@dataclass
class Progress:
    """How far a run is: totals over all its resumes, and sums since the last line of metrics.

    recipe: the run's. state: what the run began with, or the checkpoint from which it resumed. metrics: None on ranks
    other than 0.
    """

    recipe: Recipe
    phase: Phase
    state: TrainingState
    clock: StepClock
    plateau: Plateau
    metrics: MetricsLog | None

    def __post_init__(self) -> None:
        self.meter = Meter(self.state.tokens, self.state.seconds)
        self.interval = self.state.interval.model_copy(deep=True)

    def state_at(self, step: int, history: AnomalyHistory) -> TrainingState:
        """Return a copy of the state to save after `step`. Training changes the original while the copy is written."""
        progress = {
            "step": step,
            "tokens": self.meter.tokens,
            "seconds": self.meter.seconds,
            "anomaly": history.model_copy(deep=True),
            "interval": self.interval.model_copy(deep=True),
        }
        return self.state.model_copy(update=progress)

    def add(self, result: StepResult, micro_batches: list[PackedBatch]) -> None:
        """Count a step. Log that it made no update, and the means since the last line if a line is due after it.

        micro_batches: as in `Plateau.examine`.
        """
        self.meter.add(int(result.sums.tokens))
        self.interval.add(result)
        if self.metrics is not None:
            self.metrics.advance()
        if result.fault is not None:
            logger.info("Step %d made no update: %s.", result.step, result.fault)
        if line_is_due(self.recipe, result.step):
            self._log(result.step, micro_batches)

    def _log(self, step: int, micro_batches: list[PackedBatch]) -> None:
        """Write a line of metrics and begin a new interval. A collective call."""
        # Every rank ends its interval, because checkpoints hold it; rank 0 writes the line.
        figures: Figures = dict(self.interval.means())
        self.interval = Interval()
        if self.plateau.baseline is not None:
            figures["unigram_loss"] = self.plateau.baseline
        if not self.plateau.is_of_held_out and self.plateau.is_due(step):
            figures |= self.plateau.examine(step, self.meter.tokens, figures, micro_batches)

        measured = self.clock.end_interval(step)
        if self.metrics is not None:
            position = {"step": step, "lr": learning_rate_in(self.phase, step), "step_seconds": measured.step_seconds}
            rates = self.meter.read(measured.ended_at, measured.stalled_seconds)
            with keep_running(f"{self.recipe.run.output}: a line of metrics.jsonl", (OSError, StorageError)):
                self.metrics.log(figures | position | rates, measured.ranks)

    def add_evaluation(self, step: int, figures: Figures) -> None:
        """Write a line with the figures of an evaluation after `step`. A collective call."""
        if self.plateau.is_of_held_out and self.plateau.is_due(step):
            figures = figures | self.plateau.examine(step, self.meter.tokens, figures, [])
        if self.metrics is not None:
            totals = {"step": step, "tokens": self.meter.tokens, "seconds": self.meter.seconds}
            with keep_running(f"{self.recipe.run.output}: a line of metrics.jsonl", (OSError, StorageError)):
                self.metrics.log_evaluation(totals | figures)

    def set_length(self, recipe: Recipe, phase: Phase, plateau: Plateau, step: int) -> None:
        """Go on with another number of steps from `step` on, which run.max_hours makes. A collective call.

        recipe, phase, plateau: with that number. It is recorded in the run's folder, and as a change if there was a
        number before.
        """
        key = "run.max_steps"
        before, now = self.recipe.run.max_steps, recipe.run.max_steps
        changes = [RecipeChange(step=step, key=key, before=before, now=now)] if self.state.speed else []
        update = {"recipe": self.state.recipe | {key: now}, "changes": [*self.state.changes, *changes]}
        self.state = self.state.model_copy(update=update)
        self.recipe, self.phase, self.plateau = recipe, phase, plateau

        run_on_rank_0(self._record_recipe)
        if self.metrics is not None:
            self.metrics.set_length(last_step_of(recipe))

    def _record_recipe(self) -> None:
        # Checkpoints hold both, too.
        with keep_running("recipe.toml"):
            write_recipe(self.recipe)
            write_history(self.recipe.run.folder, self.state.changes)


def phase_to_train(run_recipe: Recipe, phases: list[Phase], checkpoint: FoundCheckpoint | None) -> Phase:
    """Return the phase of the next step, or the one before it to make its last evaluation, which a stop cut short.

    The kind of masks and the word frequencies may be others in the next phase. If the rows of the one before are gone,
    or held-out pairs were given only now, the evaluation is made in the next phase. A collective call.
    """
    if checkpoint is None:
        return phases[0]
    state = checkpoint.state
    phase = phase_after(phases, state.step)
    was_due = state.step == phase.steps_before > 0 and state.recipe.get("evaluation.pairs") is not None
    if not was_due or is_evaluated(run_recipe, phase, state.step):
        return phase

    ended = phases[phases.index(phase) - 1]
    return ended if run_on_rank_0(lambda: rows_are_there(ended, state)) else phase


def rows_are_there(phase: Phase, state: TrainingState) -> bool:
    """Return whether the pairs of a phase can be read, and are those that the checkpoint was trained on."""
    try:
        found = [read_manifest(folder, "pairs").fingerprint for folder in phase.recipe.data.folders]
    except ClozelineError:
        return False
    return found == state.identity.get("data")
