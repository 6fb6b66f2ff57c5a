"""Keeps bad steps from becoming updates: losses and gradient norms that are NaN or infinite, or that spike.

A step is judged from its loss, its gradient norm and those of recent good steps. All of these are equal on every rank,
so all ranks reach the same verdict without communicating.

A value spikes if it is far above the recent ones in two senses: as a multiple of their median, and compared with how
far values above the median usually are from it. The multiple alone would be wrong for easy text. Where most batches
have a loss near 0, those that still teach something are many times above the median, and skipping them would keep the
model from learning. How far values are below the median says nothing about spikes: a loss of 0 is none.

The rule exists twice. `AnomalyGuard` applies it on the device, between gradient clipping and the update, inside the
optimizer's `step`: DeepSpeed knows the gradient norm there at every ZeRO stage, and nothing has changed yet. The host
does not wait for that verdict. It learns it one step later, and `fault_of` then says in words what was wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp, hypot, inf, isfinite, log, sqrt
from statistics import median
from typing import Any, NamedTuple

import torch
from deepspeed import DeepSpeedEngine
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from trainer.checkpoint.state import AnomalyHistory
from trainer.config.schema import AnomalySection
from trainer.distributed.deepspeed_internals import basic_optimizer, gradient_norm_of

DEVIATIONS = 4.0
"""How many deviations above the median, on a logarithmic scale, a value may be a spike."""

SMALLEST = 1e-12
"""The smallest median that values are compared with, because 0 has no logarithm."""


def fault_of(loss: float, norm: float, history: AnomalyHistory, section: AnomalySection) -> str | None:
    """Return what is wrong with a step's loss or gradient norm, in words, or None for a good step.

    A value is a spike if it exceeds its limit (`limits_of`).
    """
    for name, value in (("loss", loss), ("gradient norm", norm)):
        # DeepSpeed reports a norm of -1 when the norm is not finite.
        if not isfinite(value) or value < 0:
            return f"the {name} is not finite"

    limits = limits_of(history, section)
    checks = [("loss", loss, limits.loss, history.losses), ("gradient norm", norm, limits.norm, history.norms)]
    for name, value, limit, recent in checks:
        if value > limit:
            usual = f"{section.window} steps with a median of {median(recent):.4g}"
            return f"the {name} {value:.4g} is above {limit:.4g}, the limit after {usual}"

    return None


class Limits(NamedTuple):
    """The largest loss and gradient norm of a good step."""

    loss: float
    norm: float


def limits_of(history: AnomalyHistory, section: AnomalySection) -> Limits:
    """Return the limits that the last `section.window` good steps set; infinity until there are that many."""
    if len(history.losses) < section.window:
        return Limits(inf, inf)
    return Limits(limit_of(history.losses, section.loss_factor), limit_of(history.norms, section.norm_factor))


def limit_of(recent: list[float], factor: float) -> float:
    """Return the largest value that is no spike after `recent` ones.

    The deviation is the root mean square of log(value / median) over the half of the values that is above the median.
    """
    middle = max(median(recent), SMALLEST)
    above = [log(value / middle) for value in recent if value > middle]
    deviation = hypot(*above) / sqrt(len(recent) / 2)
    return middle * max(factor, exp(DEVIATIONS * deviation))


class Verdict(NamedTuple):
    """What the device decided about a step.

    norm: the gradient norm before clipping, a float64 scalar. bad: 1 if the step made no update, else 0, a float64
    scalar. was_judged: False if DeepSpeed found an overflow and never called the optimizer's `step`.
    """

    norm: Tensor
    bad: Tensor
    was_judged: bool


class AnomalyGuard:
    """Lets an engine's optimizer make an update only if the step is good, without the host knowing whether it is.

    For each step, call `expect` before the engine.step() that makes the update and `verdict` after it. Before the next
    step's `expect`, call `settle` with what has reached the host.

    The optimizer gets the decision as the attribute `found_inf`: a float32 scalar on its device, 1 for a bad step. This
    is how torch.amp.GradScaler tells torch's fused optimizers to change neither weights nor state; ours read it, too.

    history: the settled steps, to which `settle` adds.
    """

    def __init__(self, engine: DeepSpeedEngine, section: AnomalySection, history: AnomalyHistory, clip: float):
        """clip: the largest gradient norm; 0 disables clipping. It is only used where DeepSpeed does not clip."""
        self.history = history.model_copy()  # the state keeps what the checkpoint holds
        self._engine = engine
        self._section = section
        self._clip = clip

        # State of the step in progress.
        self._loss: Tensor | None = None
        self._limits = Limits(inf, inf)
        self._verdict: Verdict | None = None

        self._optimizer: Any = basic_optimizer(engine)
        self._optimizer.step = self._guarded(self._optimizer.step)

    def expect(self, loss: Tensor) -> None:
        """Begin a step. loss: of the whole global batch, a float64 scalar on the engine's device."""
        self._loss = loss
        self._limits = limits_of(self.history, self._section)
        self._verdict = None

    def verdict(self) -> Verdict:
        """Return the verdict on the step that engine.step() has just ended."""
        if self._verdict is not None:
            return self._verdict

        # DeepSpeed found an overflow and skipped the optimizer, so `_judge` did not run.
        assert self._loss is not None, "call `expect` first"
        norm = torch.full_like(self._loss, inf)
        return Verdict(norm, bad=torch.ones_like(norm), was_judged=False)

    def settle(self, loss: float, norm: float, bad: bool, was_judged: bool) -> str | None:
        """Add a step to the history. Returns why it made no update, or None if it made one.

        The arguments are the values of the step's `Verdict` and its loss, now on the host.
        """
        if not bad:
            self.history.add(loss, norm, self._section.window)
            return None

        if not was_judged and self._engine.fp16_enabled() and isfinite(loss):
            # Dynamic loss scaling overflows now and then by design, so this is not an anomaly.
            return "fp16 overflowed and the loss scale falls"

        # The optimizer counted this update on the host before it was known to be skipped.
        if was_judged and hasattr(self._optimizer, "take_back_update"):
            self._optimizer.take_back_update()

        fault = fault_of(loss, norm, self.history, self._section)
        self.history.skip()
        return fault or "the loss or the gradient norm is not finite"

    @property
    def wants_rollback(self) -> bool:
        """Whether `anomaly.max_skips` consecutive steps made no update."""
        return self.history.consecutive_skips >= self._section.max_skips

    def _guarded(self, update: Callable[[], Any]) -> Callable[..., Any]:
        def step() -> None:
            # ZeRO 1 to 3 call this once per parameter group, each time with the norm of all groups.
            if self._verdict is None:
                self._verdict = self._judge()

            # For an offloaded optimizer, which runs on the host, this copy waits for the decision.
            self._optimizer.found_inf = self._verdict.bad.float().to(_device_of(self._optimizer))
            update()

        return step

    def _judge(self) -> Verdict:
        """Decide on the device. Comparisons with NaN are false, so a NaN loss or norm is never good."""
        assert self._loss is not None, "call `expect` before engine.step()"
        loss = self._loss
        norm = self._gradient_norm().to(loss)

        # DeepSpeed reports a norm of -1 when the norm is not finite.
        is_finite = loss.isfinite() & norm.isfinite() & (norm >= 0)
        is_good = is_finite & (loss <= self._limits.loss) & (norm <= self._limits.norm)
        return Verdict(norm, is_good.logical_not().to(loss), was_judged=True)

    def _gradient_norm(self) -> Tensor:
        """Return the norm before clipping. Clips the gradients itself where DeepSpeed has no optimizer wrapper."""
        norm = gradient_norm_of(self._engine)
        if norm is not None:
            return norm
        return clip_grad_norm_(self._engine.module.parameters(), self._clip or inf)  # type: ignore[operator]


def _device_of(optimizer: Any) -> Any:
    """Return the device of an optimizer's weights. Groups may be empty, because DeepSpeed updates one at a time."""
    return next(weights.device for group in optimizer.param_groups for weights in group["params"])
