"""Finds the part of every parameter's float32 weights and optimizer state that this rank holds, in any ZeRO stage.

    stage 0         the parameter itself
    stages 1 and 2  a range of all parameters laid end to end, so one parameter may be split between two ranks
    stage 3         an equal part of every parameter, the last parts padded

Checkpoints contain named parameters only; everything that depends on a layout is in this file, and what touches
attributes of DeepSpeed in deepspeed_internals.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from deepspeed import DeepSpeedEngine
from torch import Tensor

from trainer.distributed.deepspeed_internals import (
    basic_optimizer,
    is_in_flat_group,
    is_stage_3,
    part_of,
)

MOMENTS = ("exp_avg", "exp_avg_sq")
"""The optimizer's running means of the gradient and of its square, by torch's names."""


@dataclass(frozen=True)
class ParameterSlice:
    """Elements `start`, `start` + 1, ... of one flattened parameter, held by this rank in float32.

    weights and each of the moments: (N,) float32 views of the tensors that the optimizer updates. written: whether this
    rank writes them into a checkpoint. If all ranks hold the same parameters, each rank writes some of them.
    """

    name: str
    start: int
    weights: Tensor
    moments: dict[str, Tensor]
    written: bool


def parameter_slices(engine: DeepSpeedEngine) -> list[ParameterSlice]:
    """Return this rank's slices in the order of the model's parameters.

    Creates optimizer state that does not exist yet, as zeros.
    """
    if is_stage_3(engine) or any(is_in_flat_group(parameter) for _, parameter in named_parameters(engine)):
        return list(_sharded_slices(engine))
    return list(_whole_parameters(engine))


def named_parameters(engine: DeepSpeedEngine) -> list[tuple[str, Any]]:
    """Return the model's parameters with their names, each once. In stage 3 most of them are empty placeholders."""
    return list(engine.module.named_parameters())  # type: ignore[operator]


def updates_made(engine: DeepSpeedEngine) -> int:
    """Return how many updates the optimizer has counted; Adam's bias correction depends on it."""
    return max((int(state["step"]) for state in basic_optimizer(engine).state.values()), default=0)


def set_updates_made(engine: DeepSpeedEngine, updates: int) -> None:
    """Set the count that Adam's bias correction uses, in the form in which the optimizer keeps it."""
    for state in basic_optimizer(engine).state.values():
        if isinstance(state["step"], int):
            state["step"] = updates
        else:
            state["step"] = torch.full_like(state["step"], updates)


def _whole_parameters(engine: DeepSpeedEngine) -> Iterator[ParameterSlice]:
    """Stage 0: every rank holds everything, so parameter i is written by rank i modulo the number of ranks."""
    optimizer = basic_optimizer(engine)
    for number, (name, parameter) in enumerate(named_parameters(engine)):
        state = _state(optimizer, parameter)
        moments = {key: state[key].view(-1) for key in MOMENTS}

        written = number % engine.world_size == engine.global_rank
        yield ParameterSlice(name, 0, parameter.data.view(-1), moments, written)


def _sharded_slices(engine: DeepSpeedEngine) -> Iterator[ParameterSlice]:
    """Stages 1 to 3: each element is on one rank only, which writes it."""
    optimizer = basic_optimizer(engine)

    for name, parameter in named_parameters(engine):
        located = part_of(engine, parameter)
        if located is None:
            continue

        # Optimizer state belongs to the flat tensor, of which this parameter is one range.
        flat, place = located
        state = _state(optimizer, flat)
        moments = {key: state[key].narrow(0, place.offset, place.size) for key in MOMENTS}
        weights_N = flat.data.narrow(0, place.offset, place.size)
        yield ParameterSlice(name, place.start, weights_N, moments, written=True)


def _state(optimizer: torch.optim.Optimizer, parameter: Tensor) -> dict[str, Any]:
    """Return a parameter's optimizer state, created as the first update would create it if there is none."""
    state = optimizer.state[parameter]
    if not state:
        # Only bias correction needs the count of updates. Fused AdamW keeps it on the device, LAMB on the host.
        counts_on_host = getattr(optimizer, "counts_on_host", False)
        state["step"] = 0 if counts_on_host else torch.zeros((), device=parameter.device)
        state |= {key: torch.zeros_like(parameter.data) for key in MOMENTS}
    return state
