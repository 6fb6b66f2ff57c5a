"""The learning rate as a pure function of the step, so that nothing of it is saved or restored.

Every kind rises in a straight line over schedule.warmup_steps and then falls towards schedule.final_lr, where it is
after the last step. With x falling from 1 to 0, the part of the height that is left is

    linear      x                   transformers' get_linear_schedule_with_warmup
    polynomial  x ** power          power 0.5 in NVIDIA's large-batch BERT (LAMB, arXiv:1904.00962)
    cosine      (1 - cos(pi x)) / 2   Loshchilov and Hutter, arXiv:1608.03983, one period
    wsd         1 - sqrt(1 - x)     warm up, stay, decay: over the last decay_steps alone (arXiv:2404.06395); the shape
                                    is the one that Haegele et al. found best (arXiv:2405.18392)

x falls from the end of warm-up (decay_from "warmup": transformers, fairseq, Megatron-LM), so that the first step after
it has optimizer.lr; or from the first step of the run (decay_from "start": google-research/bert and albert, NVIDIA's
PolyWarmUpScheduler), so that the rate drops at the end of warm-up to what the decay has left of it by then.
"""

from __future__ import annotations

from math import cos, pi, sqrt
from typing import Any

from trainer.config.schema import OptimizerSection, ScheduleSection


def learning_rate(step: int, optimizer: OptimizerSection, schedule: ScheduleSection, max_steps: int) -> float:
    """Return the rate of update `step`, counted from 1."""
    if step <= schedule.warmup_steps:
        return optimizer.lr * step / schedule.warmup_steps
    return schedule.final_lr + schedule_factor(step, schedule, max_steps) * (optimizer.lr - schedule.final_lr)


def schedule_factor(step: int, schedule: ScheduleSection, max_steps: int) -> float:
    """What is left of the way down to final_lr: 1 until the decay begins, 0 after max_steps."""
    before_decay = 0 if schedule.decay_from == "start" else schedule.warmup_steps
    decay_steps = schedule.decay_steps or max_steps - before_decay
    x = min(1.0, max(0, max_steps - step + 1) / max(1, decay_steps))
    if schedule.kind == "polynomial":
        return x**schedule.power
    if schedule.kind == "cosine":
        return (1 - cos(pi * x)) / 2
    if schedule.kind == "wsd":
        return 1 - sqrt(1 - x)
    return x


def set_learning_rate(optimizer: Any, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate
