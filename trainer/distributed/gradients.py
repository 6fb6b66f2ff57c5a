"""Keeps gradient sums in float32: over micro-batches and over ranks, whatever precision the model computes in.

A bfloat16 sum stops growing once an addend is below 1/256 of it: after 512 micro-batches it is 5 % too small. To keep
every sum out of 16 bits, DeepSpeed 0.19 needs the following:

    stage 0          there is no setting. A hook adds each gradient to a float32 sum, and before the reduction the sums
                     take the gradients' place. DeepSpeed then reduces, measures and clips them.
    stage 1, bf16    data_types.grad_accum_dtype: BF16_Optimizer has float32 gradients of all parameters. A hook adds
                     to them (bf16_updates.py).
    stage 1, fp16    the same setting: each parameter gets a float32 sum as an extra attribute.
    stage 2          the same setting: each rank keeps the float32 sum of its own part.
    stage 3          the same setting: the buffer for this rank's part of each parameter is float32.

In all stages, communication_data_type is the dtype of the reduction over ranks.

At stage 0, and at stage 1 in bf16, `grad_dtype` makes autograd add up in float32 what all uses of a parameter
contribute in one backward pass. The sum over micro-batches is not the parameter's `.grad`, which is None while a
forward pass runs: torch.compile cannot trace an operation on a parameter whose gradient has another dtype.
"""

from __future__ import annotations

from typing import Any

import torch
from deepspeed import DeepSpeedEngine
from torch import Tensor, nn

from trainer.config.schema import EngineSection
from trainer.distributed.deepspeed_internals import act_before_reduction, has_flat_gradients


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
    """Sum gradients of 16-bit parameters in float32. Only for stage 0, which has no setting for it."""
    parameters: list[nn.Parameter] = list(engine.module.parameters())  # type: ignore[operator]
    sums: dict[nn.Parameter, Tensor] = {}

    def add(parameter: nn.Parameter) -> None:
        assert parameter.grad is not None
        if parameter in sums:
            sums[parameter].add_(parameter.grad)
        else:
            sums[parameter] = parameter.grad
        parameter.grad = None

    def put_in_place() -> None:
        for parameter in parameters:
            parameter.grad = sums.pop(parameter, None)

    for parameter in parameters:
        parameter.grad = None
        parameter.grad_dtype = torch.float32
        parameter.register_post_accumulate_grad_hook(add)
    act_before_reduction(engine, put_in_place)
