"""The training loop of one phase: read a batch, take a step, evaluate, log, save."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch.distributed as dist
from deepspeed import DeepSpeedEngine

from schemas.errors import ClozelineError, PreemptedError, StorageError
from schemas.randomness import key
from trainer.anomaly import AnomalyGuard
from trainer.checkpoint.layout import TrainingState, add_evaluation, checkpoint_path, read_evaluation
from trainer.config.phases import Phase
from trainer.config.schema import Recipe
from trainer.data.loader import Stream
from trainer.distributed.collectives import any_rank, run_on_rank_0
from trainer.distributed.replica_check import check_replicas
from trainer.evaluate import Evaluation, EvaluationResult, is_due
from trainer.logs import logger
from trainer.lookahead import Lookahead
from trainer.loss_doctor import examination
from trainer.metrics.log import Figures, MetricsLog
from trainer.metrics.step_clock import StepClock
from trainer.metrics.unigram import WordFrequencies
from trainer.models.batch import PackedBatch
from trainer.optim.lr_schedule import learning_rate, set_learning_rate
from trainer.progress import Progress
from trainer.run_context import RunContext
from trainer.save import Saver
from trainer.step import Stepper, seed_dropout
from trainer.step_result import StepResult


@dataclass(frozen=True)
class TrainingText:
    """What is known of the rows of a phase: how often each token occurs, and how many tokens all rows have."""

    frequencies: WordFrequencies
    tokens: int


@dataclass
class Loop:
    """The training loop of one phase, and everything it needs.

    Two recipes apply. The run's recipe (`context.run_recipe`) says when to log, save and evaluate. The phase's recipe
    (`phase.recipe`) has the phase's data, batches and learning rate.

    evaluation: None if the run has no held-out data. metrics: None on ranks other than 0. training_text: what is known
    of the phase's rows, None where nothing is.
    """

    context: RunContext
    phase: Phase
    engine: DeepSpeedEngine
    stream: Stream
    evaluation: Evaluation | None
    guard: AnomalyGuard
    metrics: MetricsLog | None
    training_text: TrainingText | None = None

    def __post_init__(self) -> None:
        self.stepper = Stepper(self.engine, self.guard)
        self.lookahead = Lookahead(self.stream)
        self.saver = Saver(self.context, self.engine, writes_report=self.metrics is not None)
        self.clock = StepClock(self.engine, self.context.watchdog)
        self.micro_batches: list[PackedBatch] = []

    @property
    def run_recipe(self) -> Recipe:
        """The run's recipe, not the phase's."""
        return self.context.run_recipe

    def run(self, state: TrainingState, last_step: int) -> int | None:
        """Train from `state` to `last_step`.

        Saves a checkpoint every `checkpoint.every` steps, at the last step, and when a stop was requested. When this
        returns, no save is in progress.

        What a step computed is known one step later (trainer/step.py), or at once if something is due after it.

        Returns the step at which training must roll back, or None if it reached `last_step`.
        Raises PreemptedError after saving if a stop was requested.
        """
        self.context.stop.training_begins()
        self.saver.saved_step = state.step if state.step > 0 else None
        self.rerun_interrupted_evaluation(state)
        progress = Progress(state)
        evaluation = EvaluationResult()

        for step in range(state.step + 1, last_step + 1):
            try:
                completed = self.compute_step(step, state.skipped_batches, is_last=step == last_step)
            except ClozelineError:
                # Such as data that cannot be read. The step before was taken, and its line is due.
                self.settle(progress, EvaluationResult())
                raise
            self.settle(progress, EvaluationResult())
            if self.guard.wants_rollback:
                self.saver.wait(step)
                return step - 1
            if not completed:
                self.save_before_stop(step - 1, progress, evaluation)
                raise self.preempted(step - 1)

            self.stepper.update()
            self.clock.step_ended()
            self.context.profiler.step_ended(step)
            evaluation = EvaluationResult()
            if step != last_step and not self.may_be_due(step) and not self.examines(step, progress):
                continue

            evaluation = self.evaluate_if_due(step)
            progress.meter.skip(evaluation.seconds)
            self.settle(progress, evaluation)

            if self.guard.wants_rollback:
                self.saver.wait(step)
                return step

            if step % self.run_recipe.anomaly.replica_check_every == 0:
                check_replicas(self.engine, step)

            must_save = step == last_step or evaluation.interrupted
            if must_save or self.checkpoint_is_due(step):
                self.save_progress(step, progress, evaluation, must_save)

            if evaluation.interrupted:
                raise self.preempted(step)

        return None

    def compute_step(self, step: int, skipped_batches: int, is_last: bool = False) -> bool:
        """Do everything of a step that comes before its update. Returns False if the ranks agreed to leave it.

        `is_last` steps are not followed by another one, whose data would have to be read.
        """
        watchdog = self.context.watchdog
        self.clock.step_begins()

        # Batches count from the phase's first step. Batches that a rollback skipped shift all later ones.
        number = step - 1 - self.phase.steps_before + skipped_batches
        watchdog.at(f"step {step}, reading data")
        micro_batches = self.lookahead.batch(number)
        self.micro_batches = micro_batches
        set_learning_rate(self.engine.optimizer, self.learning_rate_at(step))

        # Keys have 64 bits, and torch takes seeds of 63.
        seed_dropout(key(self.run_recipe.run.seed, "dropout", step, dist.get_rank()) >> 1)
        if not self.stepper.compute(step, micro_batches, partial(self.leaves_step, step)):
            return False

        watchdog.at(f"step {step}, reading data of the next one")
        self.stepper.exchange(None if is_last else self.lookahead.look(number + 1))
        return True

    def settle(self, progress: Progress, evaluation: EvaluationResult) -> None:
        """Count and log the last step that made its update or was skipped, unless this was done already."""
        result = self.stepper.settle()
        if result is not None:
            progress.add(result)
            self.log(result, progress, evaluation)

    def leaves_step(self, step: int) -> bool:
        """Return whether all ranks end the step before its next micro-batch. A collective call."""
        self.context.watchdog.at(f"step {step}, computing")
        return self.context.stop.leaves_step()

    def may_be_due(self, step: int) -> bool:
        """Return whether something may have to be done after a step before the next one begins.

        Whether a checkpoint is due also depends on whether the step made its update, which is not known yet.
        """
        return (
            is_due(self.run_recipe, self.phase, step)
            or step % self.run_recipe.checkpoint.every == 0
            or step % self.run_recipe.anomaly.replica_check_every == 0
        )

    def learning_rate_at(self, step: int) -> float:
        """Return the learning rate of a step by the phase's schedule, or by the run's where the phase has none."""
        phase = self.phase
        step_of_schedule = step - phase.schedule_before
        return learning_rate(step_of_schedule, phase.recipe.optimizer, phase.recipe.schedule, phase.schedule_steps)

    def preempted(self, step: int) -> PreemptedError:
        """Return the error that ends a run which saved `step` and stops."""
        run = self.run_recipe.run
        # At once: whoever asked may kill the ranks before the last of them has ended (Slurm after KillWait).
        logger.info("Step %d is saved in %s. The ranks end now.", step, run.folder)
        return PreemptedError(
            f"{run.output}: asked to stop; step {step} of {run.max_steps} is saved. The same command resumes from it."
        )

    # Evaluation

    def evaluate_if_due(self, step: int) -> EvaluationResult:
        """Evaluate the held-out data if `step` is one after which that is due. A collective call."""
        if self.evaluation is None or not is_due(self.run_recipe, self.phase, step):
            return EvaluationResult()
        return self.evaluation.measure(self.engine, partial(self.stop_requested_on_any_rank, step))

    def stop_requested_on_any_rank(self, step: int) -> bool:
        """Return whether any rank was asked to stop, between two batches of an evaluation. A collective call."""
        self.context.watchdog.at(f"step {step}, evaluating")
        return any_rank(self.context.stop.stop_requested, self.engine.device)

    def rerun_interrupted_evaluation(self, state: TrainingState) -> None:
        """Evaluate the checkpoint that the run resumes from, if a signal interrupted its evaluation."""
        path = checkpoint_path(self.run_recipe.run.folder, state.step)
        if not is_due(self.run_recipe, self.phase, state.step):
            return
        if run_on_rank_0(lambda: read_evaluation(str(path))):
            return

        evaluation = self.evaluate_if_due(state.step)
        if evaluation.interrupted:
            raise self.preempted(state.step)

        def add_to_checkpoint_and_metrics() -> None:
            add_evaluation(path, evaluation.figures)
            if self.metrics is not None:
                self.metrics.amend(state.step, evaluation.figures)

        run_on_rank_0(add_to_checkpoint_and_metrics)
        self.saver.publish(state)

    # Metrics

    def log(self, result: StepResult, progress: Progress, evaluation: EvaluationResult) -> None:
        """Log the means since the last logged line, if this step ends an interval or was evaluated."""
        step = result.step
        if self.metrics is not None:
            self.metrics.advance()
        if result.fault is not None:
            logger.info("Step %d made no update: %s.", step, result.fault)

        run = self.run_recipe.run
        if not self.has_line(step):
            return

        # Every rank ends its interval, because checkpoints hold it; rank 0 writes the line.
        figures = progress.interval.means() | self.level_line() | evaluation.figures
        if self.examines(step, progress):
            figures |= self.examine(step, figures, progress)
        progress.end_interval()
        measured = self.clock.end_interval(step, self.stream.stalled_seconds)
        if self.metrics is None:
            return

        position = {"step": step, "lr": self.learning_rate_at(step)}
        rates = progress.meter.read(self.stream.stalled_seconds)
        try:
            self.metrics.log(figures | position | rates, measured)
        except (OSError, StorageError) as error:
            # The line is kept, and written with a later one once there is room again.
            reason = error.strerror if isinstance(error, OSError) else error
            logger.info("%s: metrics.jsonl cannot be written: %s. Training continues.", run.output, reason)

    def has_line(self, step: int) -> bool:
        """Return whether metrics.jsonl has a line for a step."""
        run = self.run_recipe.run
        ends_interval = step == 1 or step % run.log_every == 0 or step == run.max_steps
        return ends_interval or is_due(self.run_recipe, self.phase, step)

    def level_line(self) -> Figures:
        """Return the loss of word frequencies alone on the training text, by its name in metrics.jsonl."""
        return {} if self.training_text is None else {"unigram_loss": self.training_text.frequencies.loss}

    # The loss doctor (trainer/loss_doctor/)

    def examines(self, step: int, progress: Progress) -> bool:
        """Return whether the loss after `step` is compared with that of word frequencies alone."""
        if self.training_text is None or not examination.is_due(self.run_recipe, step, progress.examined_step):
            return False
        return self.has_line(step) if self.evaluation is None else is_due(self.run_recipe, self.phase, step)

    def examine(self, step: int, figures: Figures, progress: Progress) -> Figures:
        """Compare the loss with that of word frequencies alone, and log why it is no better. A collective call.

        Returns the likely cause by its name in metrics.jsonl, and nothing for a loss that is better.
        """
        held_out = self.evaluation
        level = examination.level_of(figures, prefix="" if held_out is None else "eval_")
        if level is None or self.training_text is None:
            return {}

        progress.examined_step = step
        if not level.is_at_line:
            return {}

        self.context.watchdog.at(f"step {step}, looking for why the loss does not fall")
        patient = examination.Patient(
            recipe=self.phase.recipe,
            step=step,
            first_step=self.phase.steps_before + 1,
            learning_rate_at=self.learning_rate_at,
            corpus_tokens=self.training_text.tokens,
            tokens=progress.meter.tokens,
            skipped_steps=self.guard.history.skipped,
            interval=progress.interval,
        )
        micro_batches = self.micro_batches if held_out is None else held_out.first_batch()
        cause, sentence = examination.diagnosis(patient, level, self.engine, micro_batches)
        logger.info("%s: %s", self.run_recipe.run.folder, sentence)
        return {"loss_doctor": cause}

    # Checkpoints

    def checkpoint_is_due(self, step: int) -> bool:
        """Return whether `checkpoint.every` asks for a checkpoint after this step."""
        # Between skipped steps is a bad place to roll back to.
        is_between_skips = self.guard.history.consecutive_skips > 0
        return step % self.run_recipe.checkpoint.every == 0 and not is_between_skips

    def save_before_stop(self, step: int, progress: Progress, evaluation: EvaluationResult) -> None:
        """Save the last complete step before a stop, unless its checkpoint exists already."""
        self.saver.wait(step)
        if self.saver.saved_step != step:
            self.save_progress(step, progress, evaluation, must_save=True)

    def save_progress(self, step: int, progress: Progress, evaluation: EvaluationResult, must_save: bool) -> None:
        """Save a checkpoint after `step`, as `Saver.save` does. A collective call."""
        state = progress.state_at(step, self.guard.history)
        self.saver.save(state, evaluation.figures, must_save)
