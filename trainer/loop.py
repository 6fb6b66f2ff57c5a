"""The training loop of one phase: read a batch, take a step, log, save, evaluate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch.distributed as dist
from deepspeed import DeepSpeedEngine

from schemas.errors import ClozelineError, PreemptedError
from schemas.randomness import key
from trainer.anomaly import AnomalyGuard
from trainer.checkpoint.state import TrainingState
from trainer.config.phases import Phase, phase_of_length
from trainer.config.schema import Recipe
from trainer.data.stream import Stream
from trainer.distributed.replica_check import check_replicas
from trainer.due import evaluation_is_due, is_evaluated, something_may_be_due
from trainer.evaluate import Evaluation
from trainer.logs import logger
from trainer.metrics.log import Figures, MetricsLog
from trainer.metrics.plateau import Plateau
from trainer.metrics.speed import StepClock
from trainer.models.batch import PackedBatch
from trainer.optim.lr_schedule import learning_rate_in, set_learning_rate
from trainer.progress import Progress
from trainer.run_context import RunContext
from trainer.save import Saver
from trainer.step import Stepper, seed_dropout


@dataclass
class Loop:
    """The training loop of one phase, and everything it needs.

    Two recipes apply. The run's recipe (`context.run_recipe`) says when to log, save and evaluate. The phase's recipe
    (`phase.recipe`) has the phase's data, batches and learning rate.

    evaluation: None if the run has no held-out data. metrics: None on ranks other than 0. unigram_loss: the
    loss of word frequencies alone on the phase's text, None if it is not known.
    """

    context: RunContext
    phase: Phase
    engine: DeepSpeedEngine
    stream: Stream
    evaluation: Evaluation | None
    guard: AnomalyGuard
    metrics: MetricsLog | None
    unigram_loss: float | None = None

    def __post_init__(self) -> None:
        self.stepper = Stepper(self.engine, self.guard)
        self.saver = Saver(self.context, self.engine, writes_report=self.metrics is not None)
        self.plateau = Plateau(self.context, self.phase, self.engine, self.guard, self.evaluation, self.unigram_loss)
        self.clock = StepClock(self.engine)
        self.micro_batches: list[PackedBatch] = []

    @property
    def run_recipe(self) -> Recipe:
        """The run's recipe, not the phase's."""
        return self.context.run_recipe

    @property
    def last_step(self) -> int:
        """The last step of the phase that this process takes."""
        return min(self.phase.last_step, self.context.last_step)

    def run(self, state: TrainingState) -> int | None:
        """Train from `state` to the end of the phase, or to the step at which this process ends.

        Saves a checkpoint every `checkpoint.every` steps, at the last step, and when a stop was requested. When this
        returns, no save is in progress.

        The results of a step are known one step later (trainer/step.py), or right after it if something is due then.

        Returns the last bad step if training must roll back, or None if it reached the end.
        Raises PreemptedError after saving if a stop was requested.
        """
        self.context.stop.training_begins()
        self.saver.begin(state.step)
        progress = Progress(self.run_recipe, self.phase, state, self.clock, self.plateau, self.metrics)
        if not is_evaluated(self.run_recipe, self.phase, state.step):
            self.evaluate(state.step, progress)

        step = state.step
        while step < self.last_step:
            step += 1
            is_last = step == self.last_step
            is_computed = self.compute_and_settle(step, state.skipped_batches, progress, is_last)
            if self.guard.wants_rollback:
                self.saver.wait(step)
                return step - 1
            if not is_computed:
                self.save_before_stop(step - 1, progress)
                raise self.preempted(step - 1)

            self.stepper.update()
            seconds = self.clock.step_ended(self.stream.stalled_seconds)
            self.context.profiler.step_ended(step)

            if not is_last:  # before a save, which records the length
                self.fix_length_if_due(step, seconds, progress)
            if is_last or self.may_follow_up(step):
                self.follow_up(step, progress, is_last)
                if self.guard.wants_rollback:
                    self.saver.wait(step)
                    return step

        return None

    def fix_length_if_due(self, step: int, seconds: float, progress: Progress) -> None:
        """Fix the number of steps of a run with run.max_hours, if enough was measured after `step`. A collective call.

        seconds: that the step took.
        """
        hours = self.context.hours
        if hours is None or not hours.add(seconds, step, self.run_recipe):
            return
        self.settle(progress)
        steps = hours.look(step, self.run_recipe, partial(self.time_evaluation, step, progress))
        if steps is not None:
            self.context.set_length(steps)
            self.phase = phase_of_length(self.phase, self.run_recipe)
            self.plateau = replace(self.plateau, phase=self.phase)
            progress.set_length(self.run_recipe, self.phase, self.plateau, step)
        if hours.speed is not None:
            progress.state = progress.state.model_copy(update={"speed": hours.speed._asdict()})

    def time_evaluation(self, step: int, progress: Progress) -> float:
        """Return the seconds of an evaluation whose figures are not kept, 0 without one. A collective call."""
        if self.evaluation is None:
            return 0.0
        return self.measure(step, progress)["eval_seconds"]

    def compute_and_settle(self, step: int, skipped_batches: int, progress: Progress, is_last: bool) -> bool:
        """Compute a step as `compute_step` does, then count and log the step before it. Returns as `compute_step`."""
        try:
            is_computed = self.compute_step(step, skipped_batches, is_last)
        except ClozelineError:
            # For example, data that cannot be read. The step before is complete and still has to be logged.
            self.settle(progress)
            raise

        self.settle(progress)
        return is_computed

    def may_follow_up(self, step: int) -> bool:
        """Return whether something may have to be done after a step before the next one begins."""
        return something_may_be_due(self.run_recipe, self.phase, step) or self.plateau.is_due(step)

    def follow_up(self, step: int, progress: Progress, is_last: bool) -> None:
        """Log, compare the replicas, save and evaluate, whichever of these are due after `step`.

        If the guard wants a rollback after the step is logged, none of the others is done. Raises PreemptedError, after
        saving, if the evaluation was interrupted.
        """
        self.settle(progress)
        if self.guard.wants_rollback:
            return

        # Saving compares the replicas, too.
        if is_last or self.checkpoint_is_due(step):
            self.saver.save(progress.state_at(step, self.guard.history), must_save=is_last)
        elif step % self.run_recipe.anomaly.replica_check_every == 0:
            check_replicas(self.engine, step)

        # The checkpoint exists before its evaluation, so a kill costs the evaluation alone, and a resume repeats it.
        if evaluation_is_due(self.run_recipe, self.phase, step):
            self.evaluate(step, progress)

    def compute_step(self, step: int, skipped_batches: int, is_last: bool = False) -> bool:
        """Do everything in a step that comes before its update. Returns False if the ranks agreed to abandon it.

        is_last: no step follows, so no further data is read.
        """
        watchdog = self.context.watchdog
        self.clock.step_begins()

        # Batches count from the phase's first step. Batches that a rollback skipped shift all later ones.
        number = step - 1 - self.phase.steps_before + skipped_batches
        watchdog.at(f"step {step}, reading data")
        micro_batches = self.stream.batch(number)
        self.micro_batches = micro_batches
        set_learning_rate(self.engine.optimizer, learning_rate_in(self.phase, step))

        # Keys have 64 bits, and torch takes seeds of 63 bits.
        seed_dropout(key(self.run_recipe.run.seed, "dropout", step, dist.get_rank()) >> 1)
        if not self.stepper.compute(step, micro_batches, partial(self.leaves_step, step)):
            return False

        watchdog.at(f"step {step}, reading data of the next one")
        self.stepper.exchange(None if is_last else self.stream.peek(number + 1))
        return True

    def settle(self, progress: Progress) -> None:
        """Count and log the newest step that `Stepper.update` completed, unless this was done already."""
        result = self.stepper.settle()
        if result is not None:
            progress.add(result, self.micro_batches)

    def leaves_step(self, step: int) -> bool:
        """Return whether all ranks abandon the step before its next micro-batch. A collective call."""
        self.context.watchdog.at(f"step {step}, computing")
        return self.context.stop.leaves_step()

    def preempted(self, step: int) -> PreemptedError:
        """Return the error that ends a run which saved `step` and stops."""
        run = self.run_recipe.run
        # Logged now, because the ranks may be killed before the last of them has exited (by Slurm after KillWait).
        logger.info("Step %d is saved in %s. The ranks end now.", step, run.folder)
        return PreemptedError(
            f"{run.output}: asked to stop; step {step} of {run.max_steps} is saved. The same command resumes from it."
        )

    # Evaluation

    def evaluate(self, step: int, progress: Progress) -> None:
        """Evaluate the held-out data after `step`, and record the figures. A collective call.

        Raises PreemptedError, after saving, if a stop was requested during it.
        """
        figures = self.measure(step, progress)
        progress.add_evaluation(step, figures)
        self.saver.add_evaluation(step, figures)
        self.saver.write_report(progress.state)

    def measure(self, step: int, progress: Progress) -> Figures:
        """Return the figures of an evaluation. Its time is in no rate. Raises as `evaluate`. A collective call."""
        assert self.evaluation is not None  # evaluation.pairs is set
        figures = self.evaluation.measure(self.engine, partial(self.leaves_evaluation, step))
        if figures is None:
            self.save_before_stop(step, progress)
            raise self.preempted(step)
        progress.meter.skip(figures["eval_seconds"])
        return figures

    def leaves_evaluation(self, step: int) -> bool:
        """Return whether all ranks abandon the evaluation before its next batch. A collective call."""
        self.context.watchdog.at(f"step {step}, evaluating")
        return self.context.stop.leaves_step()

    # Checkpoints

    def checkpoint_is_due(self, step: int) -> bool:
        """Return whether `checkpoint.every` asks for a checkpoint after this step."""
        # A checkpoint in the middle of a series of skipped steps would be a bad place to roll back to.
        is_between_skips = self.guard.history.consecutive_skips > 0
        return step % self.run_recipe.checkpoint.every == 0 and not is_between_skips

    def save_before_stop(self, step: int, progress: Progress) -> None:
        """Save the last complete step before a stop, unless its checkpoint exists already. A collective call."""
        self.saver.wait(step)
        if self.saver.saved_step != step:
            self.saver.save(progress.state_at(step, self.guard.history), must_save=True)
