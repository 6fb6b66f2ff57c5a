"""Brings initial weights from rank 0 to where every rank keeps them, one tensor at a time.

Weights are drawn or read on one rank alone, in float32: the others would only repeat it. Beside the engine, no rank
holds more than the largest tensor.
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
    """Fill in the engine's weights, in float32 for the optimizer and in the model's precision. A collective call.

    weights: on rank 0, the name and the float32 values of every parameter, in the order of the model; None elsewhere.
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

    # Stage 3 computes with copies of the parts.
    publish_weights(engine)


def _next_weight(weights: Iterator[tuple[str, Tensor]], name: str, shape: tuple[int, ...]) -> Tensor:
    found, values = next(weights)
    assert found == name and tuple(values.shape) == shape, f"{found} {tuple(values.shape)} comes for {name} {shape}"
    return values.detach().contiguous()
