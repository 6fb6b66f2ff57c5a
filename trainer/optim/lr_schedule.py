"""Computes learning rates as a pure function of the step, so that a checkpoint needs no schedule state.

Every kind rises linearly over the schedule's warm-up and then falls to schedule.final_lr, which it reaches after the
last step. With x falling linearly from 1 to 0, the fraction of the peak's height above final_lr that remains is

    linear      x                     transformers' get_linear_schedule_with_warmup
    polynomial  x ** power            power 0.5 in NVIDIA's large-batch BERT (LAMB, arXiv:1904.00962)
    cosine      (1 - cos(pi x)) / 2   Loshchilov and Hutter, arXiv:1608.03983, one period
    wsd         1 - sqrt(1 - x)       warmup, stable, decay: falls only over the last decay_steps (arXiv:2404.06395);
                                      the shape that Haegele et al. found best (arXiv:2405.18392)

With decay_from "warmup", x falls from the end of warmup, so the first step after it has optimizer.lr, as in
transformers, fairseq and Megatron-LM. With decay_from "start", x falls from the schedule's first step, so the rate
drops at the end of warmup to what the decay has left by then, as in google-research/bert and albert and in NVIDIA's
PolyWarmUpScheduler.
"""

from __future__ import annotations

from math import cos, pi, sqrt
from typing import Any

from trainer.config.phases import Phase, phase_after
from trainer.config.sections import OptimizerSection, ScheduleSection


def learning_rate_in(phase: Phase, step: int) -> float:
    """Return the learning rate of a step of the run by the phase's schedule, or by the run's if the phase has none."""
    step_of_schedule = step - phase.schedule_before
    return learning_rate(step_of_schedule, phase.recipe.optimizer, phase.recipe.schedule, phase.schedule_steps)


def learning_rate_of(phases: list[Phase], step: int) -> float:
    """Return the learning rate of a step of the run, whichever phase it belongs to."""
    return learning_rate_in(phase_after(phases, step - 1), step)


def learning_rate(step: int, optimizer: OptimizerSection, schedule: ScheduleSection, max_steps: int) -> float:
    """Return the learning rate of update `step` (1-based) in a schedule of `max_steps`."""
    warmup_steps = schedule.warmup_of(max_steps)
    if step <= warmup_steps:
        return optimizer.lr * step / warmup_steps

    height = optimizer.lr - schedule.final_lr
    return schedule.final_lr + schedule_factor(step, schedule, max_steps) * height


def schedule_factor(step: int, schedule: ScheduleSection, max_steps: int) -> float:
    """Return the remaining fraction of the height above final_lr: 1 until the decay begins, 0 after `max_steps`."""
    steps_before_decay = 0 if schedule.decay_from == "start" else schedule.warmup_of(max_steps)
    decay_steps = schedule.decay_steps or max_steps - steps_before_decay

    # `step` itself counts as remaining, so the last step is still above final_lr.
    remaining_steps = max(0, max_steps - step + 1)
    x = min(1.0, remaining_steps / max(1, decay_steps))

    if schedule.kind == "polynomial":
        return x**schedule.power
    if schedule.kind == "cosine":
        return (1 - cos(pi * x)) / 2
    if schedule.kind == "wsd":
        return 1 - sqrt(1 - x)
    return x


def set_learning_rate(optimizer: Any, rate: float) -> None:
    """Set the learning rate of all parameter groups."""
    for group in optimizer.param_groups:
        group["lr"] = rate
