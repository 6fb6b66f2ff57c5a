"""Wraps every DeepSpeed attribute outside its documented interface that the trainer uses, each in one function.

Checked against DeepSpeed 0.19.8; pyproject.toml allows 0.19 only, because these attributes may change in any release.
A test refuses them anywhere else, so that only this file has to change with an upgrade of DeepSpeed. Paths in
docstrings are relative to the deepspeed package.

The optimizer that DeepSpeed wraps around ours ("the wrapper", `engine.optimizer`) depends on stage and precision:

    stage 0                 none; engine.optimizer is our own optimizer
    stage 1, bf16           BF16_Optimizer             runtime/bf16_optimizer.py
    stages 1 and 2          DeepSpeedZeroOptimizer     runtime/zero/stage_1_and_2.py
    stage 3                 DeepSpeedZeroOptimizer_Stage3   runtime/zero/stage3.py

Stage 0 is for fp32 alone (trainer/engine.py).
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, NamedTuple, cast

import deepspeed
import torch
from deepspeed import DeepSpeedEngine
from deepspeed.accelerator import get_accelerator
from torch import Tensor, nn

# ---- The engine ----


def basic_optimizer(engine: DeepSpeedEngine) -> torch.optim.Optimizer:
    """Return the optimizer as we built it, without DeepSpeed's wrapper (`basic_optimizer`, runtime/engine.py)."""
    return cast(torch.optim.Optimizer, engine.basic_optimizer)


def gradient_norm_of(engine: DeepSpeedEngine) -> Tensor | None:
    """Return the norm of the last step's whole gradient before clipping, or None if DeepSpeed does not compute it.

    The norm is a scalar on the engine's device, and is not read here. Every wrapper stores it as `_global_grad_norm`
    before it calls our optimizer's `step`. Stage 0 has no wrapper and so no norm.
    """
    wrapper: Any = engine.optimizer
    if not hasattr(wrapper, "_global_grad_norm"):
        return None
    return torch.as_tensor(wrapper._global_grad_norm, device=engine.device)


NORM_READERS = (
    "deepspeed.runtime.utils",
    "deepspeed.runtime.bf16_optimizer",
    "deepspeed.runtime.zero.stage_1_and_2",
    "deepspeed.runtime.zero.stage3",
)
"""The modules whose `is_invalid_grad_norm` reads a gradient norm on the host to skip an update."""


@contextlib.contextmanager
def norms_stay_on_device(engine: DeepSpeedEngine) -> Iterator[None]:
    """Keep DeepSpeed from reading gradient norms while the block lasts.

    Its wrappers skip an update whose gradient norm is not finite, and to find out, the host waits for the device. The
    anomaly guard skips such updates on the device. Does nothing in fp16, where the loss scale depends on the answer.
    """
    if engine.fp16_enabled():
        yield
        return

    modules: list[Any] = [import_module(name) for name in NORM_READERS]
    originals = [module.is_invalid_grad_norm for module in modules]
    for module in modules:
        module.is_invalid_grad_norm = _is_valid
    try:
        yield
    finally:
        for module, original in zip(modules, originals, strict=True):
            module.is_invalid_grad_norm = original


def _is_valid(norm: Any) -> bool:
    """Stand in for `is_invalid_grad_norm`: report every norm as valid."""
    return False


def release_engine_memory() -> None:
    """Give the memory of engines that are no longer in use back to the device.

    DeepSpeed's engines, wrappers and hooks refer to each other, so they live until the garbage collector finds them.
    This takes no engine as an argument on purpose, because a caller that still holds one would keep it alive.
    """
    gc.collect()
    accelerator: Any = get_accelerator()
    accelerator.empty_cache()


# ---- The loss scale of fp16, without which small gradients underflow to 0 ----

LOSS_SCALER_FIELDS = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")
"""The attributes that hold the state of the scalers in runtime/fp16/loss_scaler.py."""


def set_gradient_norm(wrapper: Any, norm: float | Tensor) -> None:
    """Set the norm that `gradient_norm_of` returns."""
    wrapper._global_grad_norm = norm


def loss_scaler_of(engine: DeepSpeedEngine) -> Any:
    """Return the object that holds the loss scale and its counters, or None if the wrapper has none.

    It is a `LossScaler` or `DynamicLossScaler` (runtime/fp16/loss_scaler.py).
    """
    return getattr(engine.optimizer, "loss_scaler", None)


def loss_scaler_state(engine: DeepSpeedEngine) -> dict[str, float]:
    """Return the loss scale and its counters, as far as this scaler has them."""
    scaler = loss_scaler_of(engine)
    return {name: getattr(scaler, name) for name in LOSS_SCALER_FIELDS if hasattr(scaler, name)}


def set_loss_scaler_state(engine: DeepSpeedEngine, state: dict[str, float]) -> None:
    """Restore what `loss_scaler_state` returned, as far as this scaler has those fields."""
    scaler = loss_scaler_of(engine)
    for name, value in state.items():
        if hasattr(scaler, name):
            setattr(scaler, name, value)


# ---- Stage 1 in bf16: float32 gradients in flat tensors ----


class FlatGroup(NamedTuple):
    """What BF16_Optimizer holds for one parameter group, its parameters laid end to end and padded to N elements.

    gradients_N: float32, of all parameters. part_M: a view of the M elements of gradients_N that this rank updates.
    weights_M: their float32 weights.
    """

    parameters: list[nn.Parameter]
    gradients_N: Tensor
    part_M: Tensor
    weights_M: Tensor


def has_flat_gradients(engine: DeepSpeedEngine) -> bool:
    """Return whether every rank sums the gradients of all parameters in float32, as only stage 1 in bf16 does."""
    return hasattr(engine.optimizer, "fp32_groups_gradients_flat")


def flat_groups(engine: DeepSpeedEngine) -> list[FlatGroup]:
    """Return the parameter groups of BF16_Optimizer (runtime/bf16_optimizer.py)."""
    wrapper: Any = engine.optimizer
    groups = zip(
        wrapper.bf16_groups,
        wrapper.fp32_groups_gradients_flat,
        wrapper.fp32_groups_gradient_flat_partition,
        wrapper.fp32_groups_flat_partition,
        strict=True,
    )
    return [FlatGroup(*group) for group in groups]


def gather_bf16_weights(engine: DeepSpeedEngine) -> None:
    """Round this rank's float32 weights into the model and gather the others' (`update_lp_params`). Collective."""
    wrapper: Any = engine.optimizer
    wrapper.update_lp_params()


def replace_update(engine: DeepSpeedEngine, update: Callable[[], None]) -> None:
    """Make a step of the wrapper call `update`, which must also set the gradients to zero."""
    wrapper: Any = engine.optimizer
    wrapper.step = update
    wrapper.zero_grad = _do_nothing


def replace_accumulation(engine: DeepSpeedEngine) -> None:
    """Keep BF16_Optimizer from adding up, clearing and reducing gradients; the caller takes over all three.

    The engine calls `clear_lp_grads` before and `update_hp_grads` after a backward pass, and reduces gradients
    afterwards if `enable_backward_allreduce` is set (runtime/engine.py).
    """
    wrapper: Any = engine.optimizer
    wrapper.clear_lp_grads = _do_nothing
    wrapper.update_hp_grads = _do_nothing
    engine.enable_backward_allreduce = False


def _do_nothing(*_: Any, **__: Any) -> None:
    """Replace a method that is not needed."""


# ---- Stages 1 to 3: this rank's part of each parameter ----


class FlatSlice(NamedTuple):
    """Consecutive elements of one flattened parameter that lie in a flat float32 tensor of this rank.

    offset: position of the first element in the flat tensor. start: its position in the parameter. size: how many.
    """

    offset: int
    start: int
    size: int


def is_in_flat_group(parameter: Any) -> bool:
    """Return whether a parameter belongs to a flat tensor of ZeRO stage 1 or 2, of which each rank holds a range.

    Those stages add `_hp_mapping` to every parameter: a `tensor_fragment` (utils/tensor_fragment.py), or None when no
    element of the parameter is on this rank. "hp" is the high-precision copy, "lp" the low-precision parameter.
    """
    return hasattr(parameter, "_hp_mapping")


def flat_slice_of(parameter: Any) -> FlatSlice:
    """Return where this rank's part of a parameter is in stages 1 and 2. Its size is 0 if all of it is elsewhere."""
    fragment = parameter._hp_mapping
    if fragment is None:
        return FlatSlice(0, 0, 0)

    in_flat_tensor = fragment.hp_fragment_address
    in_parameter = fragment.lp_fragment_address
    return FlatSlice(in_flat_tensor.start, in_parameter.start, in_flat_tensor.numel)


def is_stage_3(engine: DeepSpeedEngine) -> bool:
    """Return whether the engine shards parameters, gradients and optimizer state (ZeRO stage 3)."""
    return hasattr(engine.optimizer, "fp32_partitioned_groups_flat")


def is_partitioned(parameter: Any) -> bool:
    """Return whether stage 3 manages a parameter, which is then an empty placeholder unless it is small.

    `_convert_to_deepspeed_param` (runtime/zero/partition_parameters.py) adds the `ds_` attributes.
    """
    return hasattr(parameter, "ds_shape")


def full_shape_of(parameter: Any) -> tuple[int, ...]:
    """Return the shape of a whole parameter, also in stage 3, where the parameter itself may be empty."""
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def part_of(engine: DeepSpeedEngine, parameter: Any) -> tuple[Tensor, FlatSlice] | None:
    """Return the flat float32 tensor with this rank's part of a parameter in stages 1 to 3, and the part's place in it.

    None if this rank has no part. In stages 1 and 2, each parameter group of the optimizer is one flat tensor.

    Stage 3 divides every parameter into equal parts, one for each rank, and pads the last ones. `grad_position`
    (runtime/zero/stage3.py) has the parameter's sub-group, the offset in its flat tensor and the padded size. The
    returned size does not count padding.
    """
    if not is_stage_3(engine):
        place = flat_slice_of(parameter)
        if place.size == 0:
            return None
        group = basic_optimizer(engine).param_groups[parameter._hp_mapping.param_group_index]
        return group["params"][0], place

    wrapper: Any = engine.optimizer
    sub_group, offset, padded_size = wrapper.grad_position[wrapper.get_param_id(parameter)]

    start = padded_size * wrapper._get_param_partition_rank(parameter)
    size = min(padded_size, parameter.ds_numel - start)
    if size <= 0:  # padding only
        return None
    return wrapper.fp32_partitioned_groups_flat[sub_group], FlatSlice(offset, start, size)


def publish_weights(engine: DeepSpeedEngine) -> None:
    """Copy changed float32 weights into the parameters that the model computes with, as a step does. A collective call.

    Only stage 3 needs this: elsewhere, every rank has filled in all weights of the model itself. The code follows
    `step` and then `_post_step` of runtime/zero/stage3.py.
    """
    if not is_stage_3(engine):
        return
    wrapper: Any = engine.optimizer
    for sub_group in range(len(wrapper.fp32_partitioned_groups_flat)):
        wrapper._reassign_or_swap_out_partitioned_parameters(sub_group)

    # Small parameters are kept whole on every rank, so they have to be gathered from the parts.
    persistent = wrapper.persistent_parameters
    if persistent:
        persistent[0].partition(persistent)
        persistent[0].all_gather(persistent)


# ---- Compiled operators ----


def use_no_compiled_operators() -> None:
    """Keep DeepSpeed from compiling its shared-memory collectives when CPU ranks meet.

    Only tensor-parallel inference calls them (`inference_all_reduce` in comm/torch.py). `build_shm_op` there asks this
    table, which otherwise is filled by running the compiler.
    """
    operators: Any = deepspeed.ops
    operators.__compatible_ops__ = {}
