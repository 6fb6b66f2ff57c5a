"""Means over a logging interval: the steps since the last logged line.

Losses and accuracies are sums over all steps divided by the sums of their counts, so each masked token and each labeled
pair counts once. grad_norm is the mean of the steps' norms. A step whose loss or norm is not finite is left out of it.

A checkpoint holds the sums, so the first line after a resume equals the unbroken run's to the last bit.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

from pydantic import BaseModel

if TYPE_CHECKING:
    from trainer.step import StepResult  # imports torch, which readers of a checkpoint's state do not need


class Interval(BaseModel):
    """Sums over some steps and all ranks.

    masked, pairs: the counts that loss sums are divided by, of steps with a finite loss. tokens: without padding.
    computed: with padding. norms: how many gradient norms are in norm_sum.
    """

    mlm_sum: float = 0.0
    mlm_correct: float = 0.0
    pair_sum: float = 0.0
    pair_correct: float = 0.0
    masked: float = 0.0
    pairs: float = 0.0
    tokens: float = 0.0
    computed: float = 0.0
    norm_sum: float = 0.0
    norms: int = 0

    def add(self, step: StepResult) -> None:
        """Add one step."""
        self.tokens += step.counts.tokens
        self.computed += step.counts.computed

        if isfinite(step.loss):
            self.mlm_sum += step.mlm_sum
            self.mlm_correct += step.mlm_correct
            self.pair_sum += step.pair_sum
            self.pair_correct += step.pair_correct
            self.masked += step.counts.masked
            self.pairs += step.counts.pairs

        if isfinite(step.grad_norm) and step.grad_norm >= 0:  # DeepSpeed reports -1 for a norm that is not finite
            self.norm_sum += step.grad_norm
            self.norms += 1

    def means(self) -> dict[str, float | None]:
        """Return the metrics of the interval by name, None where nothing was counted."""
        mlm_loss = _ratio(self.mlm_sum, self.masked)
        pair_loss = _ratio(self.pair_sum, self.pairs)
        loss = None if mlm_loss is None else mlm_loss + (pair_loss or 0.0)
        return {
            "loss": loss,
            "mlm_loss": mlm_loss,
            "mlm_accuracy": _ratio(self.mlm_correct, self.masked),
            "pair_loss": pair_loss,
            "pair_accuracy": _ratio(self.pair_correct, self.pairs),
            "grad_norm": _ratio(self.norm_sum, self.norms),
            "padding_fraction": None if self.computed == 0 else 1 - self.tokens / self.computed,
        }


def _ratio(total: float, count: float) -> float | None:
    return None if count == 0 else total / count
