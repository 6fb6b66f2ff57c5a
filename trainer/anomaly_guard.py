"""What stands between a gradient and its update.

It decides between gradient clipping and the update, inside the optimizer's `step`: that is where DeepSpeed knows the
norm, at any ZeRO stage, and where nothing has happened yet.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any

from deepspeed import DeepSpeedEngine
from torch.nn.utils import clip_grad_norm_

from trainer.anomaly import AnomalyHistory, fault_of
from trainer.config.schema import AnomalySection
from trainer.distributed.zero import basic_optimizer


class AnomalyGuard:
    """Stands before an engine's updates and lets the good ones pass."""

    def __init__(self, engine: DeepSpeedEngine, section: AnomalySection, history: AnomalyHistory, clip: float):
        self._engine, self._section, self._clip = engine, section, clip
        self.history = history
        self.norm = 0.0  # of the last step's gradient, before clipping
        self._loss, self._made, self._fault = 0.0, False, None
        optimizer: Any = basic_optimizer(engine)
        optimizer.step = self._around(optimizer.step)

    def expect(self, loss: float) -> None:
        """To be called with the whole batch's loss before engine.step()."""
        self._loss, self._made, self._fault = loss, False, None

    def verdict(self) -> str | None:
        """To be called after engine.step(): why it made no update, or None when it made one."""
        if self._made:
            self.history.add(self._loss, self.norm, self._section.window)
            return None
        if self._fault is None:  # DeepSpeed turned back by itself
            self.norm = float("inf")
            if self._engine.fp16_enabled() and isfinite(self._loss):
                return "fp16 overflowed and the loss scale falls"  # no trouble: how the scale is found
            self._fault = fault_of(self._loss, self.norm, self.history, self._section)
        self.history.skip()
        return self._fault

    @property
    def wants_rollback(self) -> bool:
        """Whether so many steps in a row were bad that only going back can help."""
        return self.history.consecutive_skips >= self._section.max_skips

    def _around(self, step: Callable[[], Any]) -> Callable[[], Any]:
        def guarded() -> None:
            """Stages 1 to 3 call it once for each group of parameters; the verdict is the same."""
            self.norm = self._gradient_norm()
            self._fault = fault_of(self._loss, self.norm, self.history, self._section)
            if self._fault is None:
                step()
                self._made = True

        return guarded

    def _gradient_norm(self) -> float:
        wrapper: Any = self._engine.optimizer
        if hasattr(wrapper, "_global_grad_norm"):
            return float(wrapper._global_grad_norm)
        # stage 0 in fp32 has no wrapper, and DeepSpeed keeps no norm there: we clip
        return float(clip_grad_norm_(self._engine.module.parameters(), self._clip or float("inf")))  # type: ignore[operator]
