"""Builds the DeepSpeed engine that a recipe asks for, and does what DeepSpeed 0.19 does not do as training needs it.

Memory. A model is built on the meta device, and each rank allocates it on its own device without an extra copy of the
whole model. The weights follow from a checkpoint, or from rank 0 one tensor at a time, because the other ranks would
only repeat the work of drawing them. In stage 3 each module is partitioned as soon as it is allocated, so no device has
to hold the whole model; DeepSpeed itself would first move it to every device.

Gradients are summed in float32, over micro-batches and over ranks, whatever precision the model computes in: a bfloat16
sum stops growing once an addend is below 1/256 of it, so after 512 micro-batches it is 5 % too small.

    stage 0          only in fp32. In 16 bits there is no setting for it, so such a run is one of stage 1.
    stage 1, bf16    data_types.grad_accum_dtype: BF16_Optimizer has float32 gradients of all parameters. A hook adds
                     to them (distributed/bf16_updates.py).
    stage 1, fp16    the same setting: each parameter gets a float32 sum as an extra attribute.
    stage 2          the same setting: each rank keeps the float32 sum of its own part.
    stage 3          the same setting: the buffer for this rank's part of each parameter is float32.

In all stages, communication_data_type is the dtype of the reduction over ranks. At stage 1 in bf16, `grad_dtype` makes
autograd add up in float32 what all uses of a parameter contribute in one backward pass, but for the parameters of
layers that are not shared: they have one use, and need no copy in float32. The sum over micro-batches is not the
parameter's `.grad`, which is None while a forward pass runs: torch.compile cannot trace an operation on a parameter
whose gradient has another dtype.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed import DeepSpeedEngine
from deepspeed.accelerator import get_accelerator
from torch import Tensor, nn

from schemas.errors import UsageError
from trainer.config.schema import EngineSection, Recipe
from trainer.data.share import RankShare
from trainer.distributed.bf16_updates import BUCKET_ELEMENTS, replace_bf16_updates
from trainer.distributed.deepspeed_internals import (
    full_shape_of,
    has_flat_gradients,
    is_partitioned,
    publish_weights,
)
from trainer.distributed.process_group import device_of_rank
from trainer.distributed.threads import device_kind
from trainer.distributed.watchdog import progress
from trainer.distributed.zero import (
    ParameterSlice,
    named_parameters,
    parameter_slices,
)
from trainer.logs import logger
from trainer.optim.optimizers import build_optimizer

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""The dtype that the model computes in, by engine.precision."""

# DeepSpeed's configuration


def deepspeed_config(recipe: Recipe, share: RankShare) -> dict[str, Any]:
    """Translate a recipe into DeepSpeed's config. [deepspeed] adds keys, none of which is set here."""
    # DeepSpeed only checks that the three batch sizes agree, so any number of rows will do if a micro-batch is counted
    # in tokens.
    rows_per_micro_batch = recipe.batch.micro_batch or 1

    # DeepSpeed has no optimizer wrapper at stage 0 in fp32; the anomaly guard clips there (trainer/anomaly.py).
    guard_clips = recipe.engine.zero_stage == 0 and recipe.engine.precision == "fp32"
    deepspeed_settings = recipe.deepspeed.settings
    zero_table = deepspeed_settings.get("zero_optimization", {})

    # In 16 bits, gradients are summed and reduced in float32.
    float32_sums = {"communication_data_type": "fp32", "data_types": {"grad_accum_dtype": "fp32"}}

    return {
        "train_batch_size": rows_per_micro_batch * share.micro_batches_per_step,
        "train_micro_batch_size_per_gpu": rows_per_micro_batch,
        # A step may have fewer; trainer/step.py marks the last micro-batch of each step.
        "gradient_accumulation_steps": share.micro_batches,
        "gradient_clipping": 0.0 if guard_clips else recipe.optimizer.clip,
        # The anomaly guard detects NaN and infinite gradients without waiting for the device.
        "bf16": {"enabled": recipe.engine.precision == "bf16", "check_grad_overflow": False},
        # fp16 uses DeepSpeed's dynamic loss scale.
        "fp16": {"enabled": recipe.engine.precision == "fp16"},
        # DeepSpeed does not know our optimizers; tests/trainer/optim covers them under ZeRO.
        "zero_allow_untested_optimizer": recipe.optimizer.kind != "adamw",
        # Without this, DeepSpeed demands its own CPU Adam for offload. torch's fused AdamW runs on the host, too.
        "zero_force_ds_cpu_optimizer": False,
        # The trainer has its own metrics.
        "steps_per_print": 10**9,
        # The throughput timer waits for the whole device twice per micro-batch.
        "timers": {"throughput": {"enabled": False}},
        **(float32_sums if recipe.engine.precision != "fp32" else {}),
        **deepspeed_settings,
        "zero_optimization": zero_table | zero_settings(recipe.engine),
    }


def zero_settings(section: EngineSection) -> dict[str, Any]:
    """Return DeepSpeed's `zero_optimization` settings for the recipe's ZeRO stage and offload."""
    offload_keys = {
        "none": [],
        "optimizer": ["offload_optimizer"],
        "parameters": ["offload_optimizer", "offload_param"],
    }
    host = {"device": "cpu", "pin_memory": device_kind() != "cpu"}

    stage = section.zero_stage if section.precision == "fp32" else max(section.zero_stage, 1)
    settings: dict[str, Any] = {"stage": stage}
    for offload_key in offload_keys[section.offload]:
        settings[offload_key] = host
    return settings


# The engine


def check_precision(precision: str) -> None:
    """Raise UsageError if this rank's device does not support the precision, or only emulates it slowly."""
    accelerator: Any = get_accelerator()
    device = device_kind()
    if precision == "fp16" and not accelerator.is_fp16_supported():
        raise UsageError(f"engine.precision fp16: this {device} does not support it. Use bf16 or fp32.")

    # DeepSpeed's own check accepts older GPUs, because torch emulates bf16 on them.
    if precision == "bf16" and device == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise UsageError(
            f"engine.precision bf16: {torch.cuda.get_device_name()} does not support it. Use fp16 or fp32."
        )


def warn_of_slow_precision(precision: str) -> None:
    """Log a line if this rank computes bf16 on a CPU, as many have no instructions for it."""
    if precision == "bf16" and device_kind() == "cpu":
        logger.info(
            "engine.precision bf16: on a CPU without instructions for it (AMX, AVX512-BF16), a step takes several "
            "times as long as in fp32. There, use --set engine.precision=fp32."
        )


def set_up_arithmetic(section: EngineSection) -> None:
    """Choose how this process multiplies matrices: TF32 for float32 on GPUs, and engine.deterministic."""
    if device_kind() == "cuda":
        # TF32 has 19 bits and is about 8 times as fast as float32 on Ampere and later.
        torch.set_float32_matmul_precision("high")

    # Deterministic algorithms need this setting, which cuBLAS reads when it starts.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(section.deterministic)

    # Turn off a debugging aid that comes with deterministic algorithms and costs a pass over every new tensor.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def build_engine(model: nn.Module, recipe: Recipe, share: RankShare) -> DeepSpeedEngine:
    """Return the model on its device with its optimizer, ready to train by a phase's recipe. A collective call.

    model: on the meta device. It gets its memory here, and its weights afterwards, by `send_weights` or from a
    checkpoint. Raises UsageError if the device does not support that precision.
    """
    check_precision(recipe.engine.precision)
    set_up_arithmetic(recipe.engine)
    config = deepspeed_config(recipe, share)
    stage_3_config = config if recipe.engine.zero_stage == 3 else None
    allocate(model, device_of_rank(), recipe.engine.precision, stage_3_config)

    optimizer = build_optimizer(model, recipe.optimizer)
    with _quick_and_quiet():
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)

    zero_table = recipe.deepspeed.zero_optimization
    bucket_elements = (zero_table and zero_table.reduce_bucket_size) or BUCKET_ELEMENTS
    replace_bf16_updates(engine, recipe.optimizer.clip, bucket_elements)
    return engine


@contextlib.contextmanager
def _quick_and_quiet() -> Iterator[None]:
    """Keep DeepSpeed from printing, and from garbage-collecting all objects of the process.

    BF16_Optimizer prints memory figures before and after each group of parameters, whatever the log level is, and
    collects garbage first. With the objects of torch and transformers in memory, that took 1.6 of the 1.7 seconds in
    which an engine was built.
    """
    gc.freeze()
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        gc.unfreeze()


# Memory and first weights of a model


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
            found, values = next(weights)
            assert (found, tuple(values.shape)) == (name, shape), f"{found} {tuple(values.shape)} for {name} {shape}"
            values = values.detach().contiguous().to(device)
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


# Gradients in float32


def gradient_divisor(engine: DeepSpeedEngine) -> int:
    """Return the number that the gradients' sum over all micro-batches and ranks is divided by before the update.

    `engine.backward` divides by the number of micro-batches in a full batch, even in a step with fewer, and DeepSpeed's
    reduction divides by the number of ranks. The reduction of bf16_updates.py (stage 1) does not divide.
    """
    micro_batches = engine.gradient_accumulation_steps()
    if has_flat_gradients(engine):
        return micro_batches
    return micro_batches * engine.world_size
