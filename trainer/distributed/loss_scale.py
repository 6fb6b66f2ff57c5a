"""Fixes the fp16 loss scale at stage 0.

In fp16, small gradients underflow to 0. So the loss is multiplied by a large scale, and gradients are divided by it
before the update. Stages 1 to 3 of DeepSpeed 0.19 do both correctly. Stage 0 has two faults:

- It divides gradients by the scale but never multiplies the loss by it. Here the loss is multiplied (`loss_scale`).
- It may raise the scale between the two, so that an update is made from half a gradient, and it reports the norm of
  the scaled gradient. Here the scale is raised after the division, and the true norm is reported (`fix_loss_scaler`).
"""

from __future__ import annotations

from typing import Any

from deepspeed import DeepSpeedEngine

from trainer.distributed.deepspeed_internals import (
    LossScaleMethods,
    current_loss_scale,
    loss_scale_methods,
    replace_loss_scale_methods,
    scales_loss_itself,
    set_gradient_norm,
)


def loss_scale(engine: DeepSpeedEngine) -> float:
    """Return the factor by which a loss must be multiplied before `engine.backward`."""
    if not engine.fp16_enabled() or scales_loss_itself(engine):
        return 1.0
    return current_loss_scale(engine.optimizer)


def fix_loss_scaler(wrapper: Any) -> None:
    """Make the fp16 optimizer wrapper of stage 0 raise its scale only after gradients have been divided by it.

    The wrapper's step sets its norm, calls `update`, then `unscale_and_clip`, then our optimizer's `step`. After an
    overflow it calls `update(True)` alone.
    """
    original = loss_scale_methods(wrapper)

    def update_after_overflow(overflowed: bool) -> None:
        # A good step is counted in unscale_and_count instead.
        if overflowed:
            original.update(overflowed)

    def unscale_and_count(scaled_norm: float, apply_scale: bool = True) -> float:
        set_gradient_norm(wrapper, scaled_norm / current_loss_scale(wrapper))
        divisor = original.unscale_and_clip(scaled_norm, apply_scale)
        original.update(False)
        return divisor

    replace_loss_scale_methods(wrapper, LossScaleMethods(update_after_overflow, unscale_and_count))
