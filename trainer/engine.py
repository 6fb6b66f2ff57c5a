"""Builds the DeepSpeed engine that a recipe asks for."""

from __future__ import annotations

import contextlib
import gc
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from torch import nn

from schemas.errors import UsageError
from trainer.config.schema import EngineSection, Recipe
from trainer.data.share import RankShare
from trainer.distributed.bf16_updates import BUCKET_ELEMENTS, replace_bf16_updates
from trainer.distributed.deepspeed_internals import has_float32_copies
from trainer.distributed.empty_model import allocate, is_empty
from trainer.distributed.gradients import accumulate_in_float32, gradient_settings
from trainer.distributed.loss_scale import fix_loss_scaler
from trainer.distributed.process_group import device_of_rank
from trainer.distributed.zero import set_master_weights
from trainer.logs import logger
from trainer.optim.build import build_optimizer

CPU_INFORMATION = Path("/proc/cpuinfo")
BF16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}
"""The names in /proc/cpuinfo of instructions that multiply bf16, on x86 and on ARM."""

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
        **gradient_settings(recipe.engine),
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
    accelerator: Any = get_accelerator()
    host = {"device": "cpu", "pin_memory": accelerator.device_name() != "cpu"}

    settings: dict[str, Any] = {"stage": section.zero_stage}
    for offload_key in offload_keys[section.offload]:
        settings[offload_key] = host
    return settings


# The engine


def check_precision(precision: str) -> None:
    """Raise UsageError if this rank's device does not support the precision, or only emulates it slowly."""
    accelerator: Any = get_accelerator()
    device = accelerator.device_name()
    if precision == "fp16" and not accelerator.is_fp16_supported():
        raise UsageError(f"engine.precision fp16: this {device} does not support it. Use bf16 or fp32.")

    # DeepSpeed's own check accepts older GPUs, because torch emulates bf16 on them.
    if precision == "bf16" and device == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise UsageError(
            f"engine.precision bf16: {torch.cuda.get_device_name()} does not support it. Use fp16 or fp32."
        )


def warn_of_slow_precision(precision: str) -> None:
    """Log a line if this rank computes bf16 on a CPU without instructions for it. A CPU that is unknown has them."""
    accelerator: Any = get_accelerator()
    if precision != "bf16" or accelerator.device_name() != "cpu" or multiplies_bf16(CPU_INFORMATION):
        return
    logger.info(
        "engine.precision bf16: this CPU has no instructions for it, so a step takes several times as long as in fp32. "
        "Use --set engine.precision=fp32 (in `clozeline finetune`: --set_pretraining engine.precision=fp32)."
    )


def multiplies_bf16(cpu_information: Path) -> bool:
    """Return whether a CPU has instructions for bf16, or is unknown. cpu_information: /proc/cpuinfo, on Linux alone."""
    try:
        lines = cpu_information.read_text(errors="replace").splitlines()
    except OSError:
        return True

    flags = {word for line in lines if line.startswith(("flags", "Features")) for word in line.split()}
    return not flags or bool(flags & BF16_FLAGS)


def set_up_arithmetic(section: EngineSection) -> None:
    """Choose how this process multiplies matrices: TF32 for float32 on GPUs, and engine.deterministic."""
    accelerator: Any = get_accelerator()
    if accelerator.device_name() == "cuda":
        # TF32 has 19 bits and is about 8 times as fast as float32 on Ampere and later.
        torch.set_float32_matmul_precision("high")

    # Deterministic algorithms need this setting, which cuBLAS reads when it starts.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(section.deterministic)

    # Turn off a debugging aid that comes with deterministic algorithms and costs a pass over every new tensor.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def bucket_elements(recipe: Recipe) -> int:
    """Return how many gradient elements are reduced at a time: reduce_bucket_size of [deepspeed], or our default."""
    zero_table = recipe.deepspeed.zero_optimization
    return (zero_table and zero_table.reduce_bucket_size) or BUCKET_ELEMENTS


def build_engine(model: nn.Module, recipe: Recipe, share: RankShare) -> deepspeed.DeepSpeedEngine:
    """Return the model on its device with its optimizer, ready to train by a phase's recipe. A collective call.

    The optimizer starts from the model's float32 weights, not from weights rounded to engine.precision. A model on the
    meta device gets its memory here and its weights afterwards (initial_weights.py, or a checkpoint).
    Raises UsageError if the device does not support that precision.
    """
    check_precision(recipe.engine.precision)
    set_up_arithmetic(recipe.engine)
    config = deepspeed_config(recipe, share)
    weights_follow = is_empty(model)
    if weights_follow:
        stage_3_config = config if recipe.engine.zero_stage == 3 else None
        allocate(model, device_of_rank(), recipe.engine.precision, stage_3_config)

    optimizer = build_optimizer(model, recipe.optimizer)
    initial_weights = {name: parameter.detach() for name, parameter in model.named_parameters()}

    with _quick_and_quiet():
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)

    if has_float32_copies(engine):
        # DeepSpeed's wrapper has already made one update, with gradients of 0, to create the state. Discard it.
        optimizer.state.clear()
        accumulate_in_float32(engine)
        if recipe.engine.precision == "fp16":
            fix_loss_scaler(engine.optimizer)
    replace_bf16_updates(engine, recipe.optimizer.clip, bucket_elements(recipe))

    # DeepSpeed rounds the model to 16 bits before it copies the optimizer's float32 weights from it.
    if recipe.engine.precision != "fp32" and not weights_follow:
        set_master_weights(engine, initial_weights)
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
