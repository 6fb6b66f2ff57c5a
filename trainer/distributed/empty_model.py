"""Allocates a model that was built on the meta device on each rank's device, without an extra copy of the whole model.

The weights are filled in later, from a checkpoint or with initial weights from rank 0 (initial_weights.py). In ZeRO
stage 3 each module is partitioned as soon as it is allocated, so no device has to hold the whole model; DeepSpeed
itself would first move the whole model to every device.
"""

from __future__ import annotations

from typing import Any

import deepspeed
import torch
from torch import nn

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""The dtype that the model computes in, by engine.precision."""


def is_empty(model: nn.Module) -> bool:
    """Return whether a model was built on the meta device and has no weights yet."""
    return any(parameter.is_meta for parameter in model.parameters())


def allocate(model: nn.Module, device: torch.device, precision: str, stage_3_config: dict[str, Any] | None) -> None:
    """Replace every parameter of a model on the meta device by zeros on `device`. A collective call in stage 3.

    precision: engine.precision. stage_3_config: DeepSpeed's configuration where parameters are partitioned among the
    ranks, otherwise None.
    """
    for module in model.modules():
        names = [name for name, _ in module.named_parameters(recurse=False)]
        for name in names:
            shape = getattr(module, name).shape
            zeros = torch.zeros(shape, dtype=DTYPES[precision], device=device)
            setattr(module, name, nn.Parameter(zeros))

        if names and stage_3_config is not None:
            # Partition only the module's own parameters: its children may not be allocated yet. A ParameterList is a
            # module, too, which zero.Init requires.
            own_parameters = nn.ParameterList([getattr(module, name) for name in names])
            deepspeed.zero.Init(module=own_parameters, config_dict_or_path=stage_3_config)
