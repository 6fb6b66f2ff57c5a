"""Gradients are added up over micro-batches and reduced over ranks in float32, whatever the model computes in.

A bfloat16 sum stops growing once an addend is below 1/256 of it: after 512 micro-batches it is 5 % off. What DeepSpeed
0.19 needs to be told so that no sum is in 16 bits:

    stage 0          has no setting. A parameter's grad_dtype makes autograd itself add up in float32, and DeepSpeed
                     then reduces, measures and clips what it finds there.
    stage 1, bf16    data_types.grad_accum_dtype: BF16_Optimizer keeps the float32 gradient of all parameters.
    stage 1, fp16    the same setting: the float32 sum lies beside each parameter.
    stage 2          the same setting: each rank keeps the float32 sum of its own part.
    stage 3          the same setting: the buffer of this rank's part of each parameter is float32.

communication_data_type is the format of the reduction over ranks in all of them.
"""

from __future__ import annotations

from typing import Any

import torch
from deepspeed import DeepSpeedEngine

from trainer.config.schema import EngineSection


def gradient_settings(section: EngineSection) -> dict[str, Any]:
    """Return DeepSpeed's settings for sums in float32; none for a model that computes in float32 anyway."""
    if section.precision == "fp32":
        return {}
    settings: dict[str, Any] = {"communication_data_type": "fp32"}
    if section.zero_stage > 0:
        settings["data_types"] = {"grad_accum_dtype": "fp32"}
    return settings


def accumulate_in_float32(engine: DeepSpeedEngine) -> None:
    """Let autograd add up float32 gradients of 16-bit parameters. Only for stage 0, where DeepSpeed has no setting."""
    for parameter in engine.module.parameters():  # type: ignore[operator]
        parameter.grad = None
        parameter.grad_dtype = torch.float32
