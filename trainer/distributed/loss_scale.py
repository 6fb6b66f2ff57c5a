"""fp16's loss scale at stage 0.

There DeepSpeed 0.19 divides gradients by the scale and has multiplied no loss by it, so they vanish; and it lets the
scale grow between the two, so an update would be made of half a gradient. At other stages it does both right.
"""

from __future__ import annotations

from typing import Any

from deepspeed import DeepSpeedEngine
from deepspeed.runtime.base_optimizer import ZeROOptimizer


def loss_scale(engine: DeepSpeedEngine) -> float:
    """What a loss has to be multiplied by before engine.backward."""
    wrapper: Any = engine.optimizer
    if not engine.fp16_enabled() or isinstance(wrapper, ZeROOptimizer):
        return 1.0
    return wrapper.loss_scale_config.cur_scale


def fix_loss_scaler(wrapper: Any) -> None:
    """Let the scale of a stage 0 optimizer grow only when its gradients are divided, and its norm be theirs."""
    update, unscale = wrapper._update_scale, wrapper.unscale_and_clip_grads

    def fall(overflow: bool) -> None:
        if overflow:
            update(overflow)

    def unscale_and_grow(scaled_norm: float, apply_scale: bool = True) -> float:
        wrapper._global_grad_norm = scaled_norm / wrapper.loss_scale_config.cur_scale
        scale = unscale(scaled_norm, apply_scale)
        update(False)
        return scale

    wrapper._update_scale, wrapper.unscale_and_clip_grads = fall, unscale_and_grow
