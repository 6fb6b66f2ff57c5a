"""Sends initial weights from rank 0 into the engine of every rank, one tensor at a time.

Weights are drawn or read in float32 on rank 0 only, because the other ranks would only repeat that work. In addition to
the engine, a rank only needs memory for the largest tensor.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import torch
import torch.distributed as dist
from deepspeed import DeepSpeedEngine
from torch import Tensor

from trainer.distributed.deepspeed_internals import full_shape_of, is_partitioned
from trainer.distributed.watchdog import progress
from trainer.distributed.zero import ParameterSlice, named_parameters, parameter_slices, publish_weights


@torch.no_grad()
def send_weights(engine: DeepSpeedEngine, weights: Iterator[tuple[str, Tensor]] | None) -> None:
    """Fill in the optimizer's float32 weights and the model's weights in its precision. A collective call.

    weights: on rank 0, the name and the float32 values of every parameter, in the model's order; None on other ranks.
    """
    slices: dict[str, list[ParameterSlice]] = defaultdict(list)
    for part in parameter_slices(engine):
        slices[part.name].append(part)

    device = torch.device(engine.device or "cpu")
    for name, parameter in named_parameters(engine):
        shape = full_shape_of(parameter)
        if weights is None:
            values = torch.empty(shape, device=device)
        else:
            values = _next_weight(weights, name, shape).to(device)
        if dist.get_world_size() > 1:
            dist.broadcast(values, 0)

        flat_N = values.view(-1)
        for part in slices[name]:
            part.weights.copy_(flat_N.narrow(0, part.start, part.weights.numel()))
        if not is_partitioned(parameter):
            parameter.data.copy_(values)
        progress()

    # In stage 3, the model computes with copies of these parts, which have to be updated.
    publish_weights(engine)


def _next_weight(weights: Iterator[tuple[str, Tensor]], name: str, shape: tuple[int, ...]) -> Tensor:
    found, values = next(weights)
    assert found == name and tuple(values.shape) == shape, f"{found} {tuple(values.shape)} comes for {name} {shape}"
    return values.detach().contiguous()
