"""Steps that must not become updates: losses and gradient norms that are no numbers, or jump.

The verdict is a function of the step's loss and norm and of the run's recent ones, all of which are the same on every
rank, so ranks agree without a word.
"""

from __future__ import annotations

from math import isfinite
from statistics import median

from pydantic import BaseModel

from trainer.config.schema import AnomalySection


class AnomalyHistory(BaseModel):
    """Losses and gradient norms of the last steps that made an update; how many made none, in a row and in all."""

    losses: list[float] = []
    norms: list[float] = []
    consecutive_skips: int = 0
    skipped: int = 0

    def add(self, loss: float, norm: float, window: int) -> None:
        self.losses = [*self.losses, loss][-window:]
        self.norms = [*self.norms, norm][-window:]
        self.consecutive_skips = 0

    def skip(self) -> None:
        self.consecutive_skips += 1
        self.skipped += 1


def fault_of(loss: float, norm: float, history: AnomalyHistory, section: AnomalySection) -> str | None:
    """What is wrong with a step's loss or gradient norm, in words, or None."""
    for name, value in (("loss", loss), ("gradient norm", norm)):
        if not isfinite(value) or value < 0:  # DeepSpeed gives -1 for a norm that is no number
            return f"the {name} is not finite"
    if len(history.losses) < section.window:
        return None
    checks = [
        ("loss", loss, history.losses, section.loss_factor),
        ("gradient norm", norm, history.norms, section.norm_factor),
    ]
    for name, value, before, factor in checks:
        usual = median(before)
        if value > factor * usual:
            return f"the {name} {value:.4g} is above {factor:g} times the median of {section.window} steps, {usual:.4g}"
    return None
