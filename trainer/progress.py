"""Tracks how far a run is, and writes its lines of metrics."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from schemas.errors import StorageError
from trainer.anomaly import AnomalyHistory
from trainer.checkpoint.resume import write_history
from trainer.checkpoint.run_folder import write_recipe
from trainer.checkpoint.state import TrainingState
from trainer.config.phases import Phase
from trainer.config.record import RecipeChange
from trainer.config.schema import Recipe
from trainer.distributed.collectives import run_on_rank_0
from trainer.due import line_is_due
from trainer.logs import logger
from trainer.metrics.log import Figures, MetricsLog
from trainer.metrics.plateau import Plateau
from trainer.metrics.presentation import keep_running
from trainer.metrics.speed import Meter, StepClock
from trainer.metrics.sums import Interval, StepResult
from trainer.models.batch import PackedBatch
from trainer.optim.lr_schedule import learning_rate_in


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
    meter: Meter = field(init=False)
    interval: Interval = field(init=False)

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
            with self._line_errors_told():
                self.metrics.log(figures | position | rates, measured.ranks)

    def add_evaluation(self, step: int, figures: Figures) -> None:
        """Write a line with the figures of an evaluation after `step`. A collective call."""
        if self.plateau.is_of_held_out and self.plateau.is_due(step):
            figures = figures | self.plateau.examine(step, self.meter.tokens, figures, [])
        if self.metrics is not None:
            totals = {"step": step, "tokens": self.meter.tokens, "seconds": self.meter.seconds}
            with self._line_errors_told():
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
            self.metrics.set_length(now)

    def _record_recipe(self) -> None:
        # Checkpoints hold both, too.
        with keep_running("recipe.toml"):
            write_recipe(self.recipe)
            write_history(self.recipe.run.folder, self.state.changes)

    @contextlib.contextmanager
    def _line_errors_told(self) -> Iterator[None]:
        """Log that a line cannot be written. It is kept, and written with a later one once there is room again."""
        try:
            yield
        except (OSError, StorageError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            output = self.recipe.run.output
            logger.info("%s: metrics.jsonl cannot be written: %s. Training continues.", output, reason)
