"""Keeps gradient sums in float32: over micro-batches and over ranks, whatever precision the model computes in.

A bfloat16 sum stops growing once an addend is below 1/256 of it: after 512 micro-batches it is 5 % too small. To keep
every sum out of 16 bits, DeepSpeed 0.19 needs the following:

    stage 0          there is no setting. A parameter's grad_dtype makes autograd itself accumulate in float32, and
                     DeepSpeed then reduces, measures and clips those gradients.
    stage 1, bf16    data_types.grad_accum_dtype: BF16_Optimizer has float32 gradients of all parameters, to which
                     autograd adds directly (bf16_updates.py).
    stage 1, fp16    the same setting: each parameter gets a float32 sum as an extra attribute.
    stage 2          the same setting: each rank keeps the float32 sum of its own part.
    stage 3          the same setting: the buffer for this rank's part of each parameter is float32.

In all stages, communication_data_type is the dtype of the reduction over ranks.
"""

from __future__ import annotations

from typing import Any

import torch
from deepspeed import DeepSpeedEngine

from trainer.config.schema import EngineSection
from trainer.distributed.deepspeed_internals import has_flat_gradients


def gradient_settings(section: EngineSection) -> dict[str, Any]:
    """Return the DeepSpeed settings for float32 sums; an empty dictionary for a model that computes in float32."""
    if section.precision == "fp32":
        return {}

    settings: dict[str, Any] = {"communication_data_type": "fp32"}
    if section.zero_stage > 0:
        settings["data_types"] = {"grad_accum_dtype": "fp32"}
    return settings


def gradient_divisor(engine: DeepSpeedEngine) -> int:
    """Return the number that the gradients' sum over all micro-batches and ranks is divided by before the update.

    `engine.backward` divides by the number of micro-batches in a full batch, even in a step with fewer, and DeepSpeed's
    reduction divides by the number of ranks. The reduction of bf16_updates.py (stage 1) does not divide.
    """
    micro_batches = engine.gradient_accumulation_steps()
    if has_flat_gradients(engine):
        return micro_batches
    return micro_batches * engine.world_size


def accumulate_in_float32(engine: DeepSpeedEngine) -> None:
    """Make autograd accumulate gradients of 16-bit parameters in float32. Only for stage 0, which has no setting."""
    for parameter in engine.module.parameters():  # type: ignore[operator]
        parameter.grad = None
        parameter.grad_dtype = torch.float32
