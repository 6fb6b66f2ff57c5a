"""Tracks how far a run is, for its checkpoints and for its next line of metrics."""

from __future__ import annotations

from trainer.anomaly import AnomalyHistory
from trainer.checkpoint.state import TrainingState
from trainer.metrics.clock import Meter
from trainer.metrics.sums import Interval, StepResult


class Progress:
    """How far a run is: totals over all its resumes, and sums since the last logged line."""

    def __init__(self, state: TrainingState):
        self._state = state
        self.meter = Meter(state.tokens, state.seconds)
        self.interval = state.interval.model_copy(deep=True)

    def add(self, result: StepResult) -> None:
        """Count a step."""
        self.meter.add(int(result.sums.tokens))
        self.interval.add(result)

    def end_interval(self) -> dict[str, float | None]:
        """Return the means since the last logged line, and begin a new interval."""
        means = self.interval.means()
        self.interval = Interval()
        return means

    def state_at(self, step: int, history: AnomalyHistory) -> TrainingState:
        """Return a copy of the state to save after `step`. Training changes the original while the copy is written."""
        progress = {
            "step": step,
            "tokens": self.meter.tokens,
            "seconds": self.meter.seconds,
            "anomaly": history.model_copy(deep=True),
            "interval": self.interval.model_copy(deep=True),
        }
        return self._state.model_copy(update=progress)
