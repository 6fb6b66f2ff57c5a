"""Logs a run's steps: a message about each one that made no update, and the lines of metrics.jsonl."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

from schemas.errors import StorageError
from trainer.config.phases import Phase
from trainer.due import line_is_due
from trainer.evaluate import EvaluationResult
from trainer.logs import logger
from trainer.metrics.clock import StepClock
from trainer.metrics.log import Figures, MetricsLog
from trainer.metrics.plateau import Plateau
from trainer.metrics.sums import StepResult
from trainer.models.batch import PackedBatch
from trainer.optim.lr_schedule import learning_rate_in
from trainer.progress import Progress
from trainer.run_context import RunContext


@dataclass(frozen=True)
class StepLog:
    """Logs the steps of one phase. metrics: None on ranks other than 0."""

    context: RunContext
    phase: Phase
    clock: StepClock
    plateau: Plateau
    metrics: MetricsLog | None

    def add(
        self,
        result: StepResult,
        progress: Progress,
        evaluation: EvaluationResult,
        micro_batches: list[PackedBatch],
    ) -> None:
        """Log a step that made no update, and the means since the last line if a line is due after this step.

        micro_batches: as in `Plateau.examine`.
        """
        step = result.step
        if self.metrics is not None:
            self.metrics.advance()
        if result.fault is not None:
            logger.info("Step %d made no update: %s.", step, result.fault)

        run_recipe = self.context.run_recipe
        if not line_is_due(run_recipe, self.phase, step):
            return

        # Every rank ends its interval, because checkpoints hold it; rank 0 writes the line.
        figures: Figures = progress.end_interval() | evaluation.figures
        if self.plateau.baseline is not None:
            figures["unigram_loss"] = self.plateau.baseline
        if self.plateau.is_due(step):
            figures |= self.plateau.examine(step, progress.meter.tokens, figures, micro_batches)
        measured = self.clock.end_interval(step)
        if self.metrics is None:
            return

        position = {"step": step, "lr": learning_rate_in(self.phase, step), "step_seconds": measured.step_seconds}
        # The time of the step and of its evaluation, without the part of the next step that is already computed.
        ended_at = min(measured.ended_at + evaluation.seconds, perf_counter())
        rates = progress.meter.read(ended_at, measured.stalled_seconds)
        try:
            self.metrics.log(figures | position | rates, measured.ranks)
        except (OSError, StorageError) as error:
            # The line is kept, and written with a later one once there is room again.
            output = run_recipe.run.output
            reason = error.strerror if isinstance(error, OSError) else error
            logger.info("%s: metrics.jsonl cannot be written: %s. Training continues.", output, reason)
