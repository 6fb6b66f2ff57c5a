"""Which part of every parameter's float32 copy and optimizer state this rank holds, however DeepSpeed lays them out.

    stage 0, fp32          the parameter itself
    stage 0, bf16 or fp16  a float32 copy of each parameter
    stages 1 and 2         a stretch of all parameters laid end to end, so a parameter may lie on two ranks
    stage 3                an equal share of every parameter, the last one filled up
Checkpoints speak of parameters alone; this is the one place that knows of layouts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from deepspeed import DeepSpeedEngine
from torch import Tensor

MOMENTS = ("exp_avg", "exp_avg_sq")
"""The optimizer's running means of the gradient and of its square, by torch's names."""


@dataclass(frozen=True)
class ParameterSlice:
    """Elements `start`, `start` + 1, ... of one flattened parameter, held by this rank in float32.

    weights and each of the moments: (N,) views into what the optimizer works on. written: this rank is the one that
    writes them into a checkpoint; of what all ranks hold alike each writes a share.
    """

    name: str
    start: int
    weights: Tensor
    moments: dict[str, Tensor]
    written: bool


def parameter_slices(engine: DeepSpeedEngine) -> list[ParameterSlice]:
    """This rank's parts, in the order of the model's parameters. Optimizer state that is not there yet begins at 0."""
    if hasattr(engine.optimizer, "fp32_partitioned_groups_flat"):
        return list(_stage_3(engine))
    if any(is_in_flat_group(parameter) for _, parameter in named_parameters(engine)):
        return list(_stages_1_and_2(engine))
    return list(_stage_0(engine))


def named_parameters(engine: DeepSpeedEngine) -> list[tuple[str, Any]]:
    """The model's parameters under their names, each once. In stage 3 they are stand-ins with `ds_` attributes."""
    return list(engine.module.named_parameters())  # type: ignore[operator]


def is_in_flat_group(parameter: Any) -> bool:
    """Whether it lies in a flat tensor of ZeRO 1 or 2, of which each rank holds a stretch."""
    return hasattr(parameter, "_hp_mapping")


def flat_slice_of(parameter: Any) -> tuple[int, int, int]:
    """Of a parameter that is cut: (start in its group's flat tensor here, first element there, how many of them)."""
    mapping = parameter._hp_mapping
    if mapping is None:
        return 0, 0, 0  # all of it is on other ranks
    here, there = mapping.hp_fragment_address, mapping.lp_fragment_address
    return here.start, there.start, here.numel


def updates_made(engine: DeepSpeedEngine) -> int:
    """How many updates the optimizer counts; Adam's bias correction goes by it."""
    return max((int(state["step"]) for state in basic_optimizer(engine).state.values()), default=0)


def set_updates_made(engine: DeepSpeedEngine, updates: int) -> None:
    """Set the count that Adam's bias correction uses, in the form that the optimizer keeps it in."""
    for state in basic_optimizer(engine).state.values():
        if isinstance(state["step"], int):
            state["step"] = updates
        else:
            state["step"] = torch.full_like(state["step"], updates)


def set_master_weights(engine: DeepSpeedEngine, weights: dict[str, Tensor]) -> None:
    """Copy whole float32 weights, by parameter name, into what the optimizer updates on this rank.

    What the model computes with is not touched: it already holds the same weights in its own precision.
    """
    for part in parameter_slices(engine):
        whole = weights[part.name].view(-1)
        part.weights.copy_(whole.narrow(0, part.start, part.weights.numel()))


def basic_optimizer(engine: DeepSpeedEngine) -> torch.optim.Optimizer:
    """The optimizer as we built it, without DeepSpeed's wrapper."""
    return cast(torch.optim.Optimizer, engine.basic_optimizer)


def publish_weights(engine: DeepSpeedEngine) -> None:
    """After the float32 copies have changed: put them into what the model computes with. A collective call.

    Only stage 3 needs the other ranks. In the other stages every rank has read all weights itself.
    """
    zero: Any = engine.optimizer
    if not hasattr(zero, "fp32_partitioned_groups_flat"):
        return
    for group in range(len(zero.fp32_partitioned_groups_flat)):
        zero._reassign_or_swap_out_partitioned_parameters(group)
    if zero.persistent_parameters:  # small ones that every rank keeps whole
        zero.persistent_parameters[0].partition(zero.persistent_parameters)
        zero.persistent_parameters[0].all_gather(zero.persistent_parameters)


def _stage_0(engine: DeepSpeedEngine) -> Iterator[ParameterSlice]:
    optimizer, wrapper = basic_optimizer(engine), engine.optimizer
    copies = {}
    for ours, theirs in zip(
        getattr(wrapper, "fp16_groups", []), getattr(wrapper, "fp32_groups", []), strict=True
    ):  # DeepSpeed's names; bf16 takes the same way
        copies |= dict(zip(ours, theirs, strict=True))
    for i, (name, parameter) in enumerate(named_parameters(engine)):
        master = copies.get(parameter, parameter)
        state = _state(optimizer, master)
        moments = {key: state[key].view(-1) for key in MOMENTS}
        yield ParameterSlice(
            name, 0, master.data.view(-1), moments, written=i % engine.world_size == engine.global_rank
        )


def _stages_1_and_2(engine: DeepSpeedEngine) -> Iterator[ParameterSlice]:
    optimizer = basic_optimizer(engine)
    for name, parameter in named_parameters(engine):
        begin, start, count = flat_slice_of(parameter)
        if count == 0:
            continue
        flat = optimizer.param_groups[parameter._hp_mapping.param_group_index]["params"][0]
        state = _state(optimizer, flat)
        moments = {key: state[key].narrow(0, begin, count) for key in MOMENTS}
        yield ParameterSlice(name, start, flat.data.narrow(0, begin, count), moments, written=True)


def _stage_3(engine: DeepSpeedEngine) -> Iterator[ParameterSlice]:
    optimizer, zero = basic_optimizer(engine), cast(Any, engine.optimizer)
    for name, parameter in named_parameters(engine):
        group, begin, count = zero.grad_position[zero.get_param_id(parameter)]
        start = count * zero._get_param_partition_rank(parameter)
        count = min(count, parameter.ds_numel - start)
        if count <= 0:
            continue  # the last ranks hold only what it is filled up with
        flat = zero.fp32_partitioned_groups_flat[group]
        state = _state(optimizer, flat)
        moments = {key: state[key].narrow(0, begin, count) for key in MOMENTS}
        yield ParameterSlice(name, start, flat.data.narrow(0, begin, count), moments, written=True)


def _state(optimizer: torch.optim.Optimizer, parameter: Tensor) -> dict[str, Any]:
    """A parameter's optimizer state, made as the first update would make it."""
    state = optimizer.state[parameter]
    if not state:
        on_host = getattr(optimizer, "counts_on_host", False)
        state["step"] = 0 if on_host else torch.zeros((), device=parameter.device)  # fused AdamW reads it on the device
        state |= {key: torch.zeros_like(parameter.data) for key in MOMENTS}
    return state
