"""Keeps bad steps from becoming updates: losses and gradient norms that are NaN or infinite, or that spike.

A step is judged by `fault_of` from its loss, its gradient norm and those of recent good steps. All of these are equal
on every rank, so all ranks reach the same verdict without communicating.

`AnomalyGuard` applies the verdict between gradient clipping and the update, inside the optimizer's `step`: DeepSpeed
knows the gradient norm there at every ZeRO stage, and nothing has changed yet.

AnomalyHistory is part of a checkpoint's state, which tools read without DeepSpeed, so torch and DeepSpeed are imported
only where the guard uses them.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from statistics import median
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from trainer.config.schema import AnomalySection

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine


class AnomalyHistory(BaseModel):
    """What steps are judged by, saved in every checkpoint.

    losses, norms: of the last good steps, at most `anomaly.window` of them, oldest first.
    consecutive_skips: steps without an update since the last good one. skipped: all steps without an update.
    """

    losses: list[float] = []
    norms: list[float] = []
    consecutive_skips: int = 0
    skipped: int = 0

    def add(self, loss: float, norm: float, window: int) -> None:
        """Add a step that made an update, and forget steps older than `window`."""
        self.losses = [*self.losses, loss][-window:]
        self.norms = [*self.norms, norm][-window:]
        self.consecutive_skips = 0

    def skip(self) -> None:
        """Count a step that made no update."""
        self.consecutive_skips += 1
        self.skipped += 1


def fault_of(loss: float, norm: float, history: AnomalyHistory, section: AnomalySection) -> str | None:
    """Return what is wrong with a step's loss or gradient norm, in words, or None for a good step.

    A value is a spike if it exceeds a multiple of the median of the last `section.window` good steps. Until there are
    that many, only values that are not finite are faults.
    """
    for name, value in (("loss", loss), ("gradient norm", norm)):
        # DeepSpeed reports a norm of -1 when the norm is not finite.
        if not isfinite(value) or value < 0:
            return f"the {name} is not finite"

    if len(history.losses) < section.window:
        return None

    checks = [
        ("loss", loss, history.losses, section.loss_factor),
        ("gradient norm", norm, history.norms, section.norm_factor),
    ]
    for name, value, recent, factor in checks:
        usual = median(recent)
        if value > factor * usual:
            return f"the {name} {value:.4g} is above {factor:g} times the median of {section.window} steps, {usual:.4g}"

    return None


class AnomalyGuard:
    """Lets an engine's optimizer make an update only if the step is good.

    For each step, call `expect` before the engine.step() that makes the update, and `verdict` after it.

    history: the steps so far, changed by `verdict`. norm: the last step's gradient norm before clipping.
    """

    def __init__(self, engine: DeepSpeedEngine, section: AnomalySection, history: AnomalyHistory, clip: float):
        """`clip` is the largest gradient norm, 0 for any. Used only where DeepSpeed does not clip."""
        from trainer.distributed.zero import basic_optimizer

        self.history = history
        self.norm = 0.0
        self._engine = engine
        self._section = section
        self._clip = clip

        # Of the step in progress.
        self._loss = 0.0
        self._updated = False
        self._fault: str | None = None

        optimizer: Any = basic_optimizer(engine)
        optimizer.step = self._guarded(optimizer.step)

    def expect(self, loss: float) -> None:
        """Begin a step with the loss of its whole global batch."""
        self._loss = loss
        self._updated = False
        self._fault = None

    def verdict(self) -> str | None:
        """Return why the step made no update, or None if it made one, and add the step to the history."""
        if self._updated:
            self.history.add(self._loss, self.norm, self._section.window)
            return None

        if self._fault is None:
            # DeepSpeed found an overflow and did not call the optimizer at all.
            self.norm = float("inf")
            if self._engine.fp16_enabled() and isfinite(self._loss):
                # Dynamic loss scaling is meant to overflow now and then, so this is not an anomaly.
                return "fp16 overflowed and the loss scale falls"
            self._fault = fault_of(self._loss, self.norm, self.history, self._section)

        self.history.skip()
        return self._fault

    @property
    def wants_rollback(self) -> bool:
        """Whether `anomaly.max_skips` consecutive steps made no update."""
        return self.history.consecutive_skips >= self._section.max_skips

    def _guarded(self, update: Callable[[], Any]) -> Callable[[], Any]:
        """Wrap the optimizer's `step` so that only good steps reach it."""

        def step() -> None:
            # ZeRO 1 to 3 call this once per parameter group, each time with the norm of all groups.
            self.norm = self._gradient_norm()
            self._fault = fault_of(self._loss, self.norm, self.history, self._section)

            if self._fault is None:
                update()
                self._updated = True

        return step

    def _gradient_norm(self) -> float:
        """Return the norm before clipping. Clips the gradients itself where DeepSpeed has no optimizer wrapper."""
        # Imported here: a checkpoint's state refers to this module, and exporting a checkpoint must not need DeepSpeed.
        from trainer.distributed.deepspeed_internals import gradient_norm_of

        norm = gradient_norm_of(self._engine)
        if norm is not None:
            return norm

        from torch.nn.utils import clip_grad_norm_

        max_norm = self._clip if self._clip else float("inf")
        return float(clip_grad_norm_(self._engine.module.parameters(), max_norm))  # type: ignore[operator]
