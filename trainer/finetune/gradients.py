"""Sums gradients over all ranks, each of which computes those of its part of a batch."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


def add_up_gradients(model: Any) -> None:
    """Replace each gradient with its sum over all ranks. A collective call.

    A parameter that has no gradient on any rank keeps None: with a gradient of zeros, AdamW would apply weight decay.
    """
    if dist.get_world_size() == 1:
        return

    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    device = parameters[0].device

    # A rank whose part of the batch is empty has no gradients, but must take part in the same all-reduce.
    flags = [float(parameter.grad is not None) for parameter in parameters]
    has_gradient = torch.tensor(flags, device=device)
    dist.all_reduce(has_gradient, dist.ReduceOp.MAX)

    used = [parameter for parameter, flag in zip(parameters, has_gradient.tolist(), strict=True) if flag]
    for parameter in used:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)

    # One all-reduce of all gradients instead of one for each parameter.
    flat = torch.cat([parameter.grad.flatten() for parameter in used])
    dist.all_reduce(flat)
    for parameter, summed in zip(used, flat.split([parameter.numel() for parameter in used]), strict=True):
        parameter.grad.copy_(summed.view_as(parameter))
