"""The process group and the DeepSpeed engine of a recipe."""

from __future__ import annotations

import atexit
import logging
import os
import warnings
from datetime import timedelta
from typing import Any

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from torch import nn

from schemas.errors import UsageError
from trainer.extensions import load_communication_kernels
from trainer.loss_scale import mend
from trainer.optimization import build_optimizer
from trainer.recipe_sections import EngineSection, Recipe
from trainer.stream.batches import Share


def start_distributed(timeout: float) -> None:
    """Join the process group. A plain `python -m trainer` is a group of one.

    Meeting fails after twice `timeout` seconds. Later waits have no limit here: the watchdog ends them.
    """
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)  # what matters is logged by us or raised
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")  # of DeepSpeed's own calls
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("MASTER_PORT", "0" if os.environ["WORLD_SIZE"] == "1" else "29500")
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")  # the watchdog's task; see below
    accelerator: Any = get_accelerator()
    if accelerator.device_name() == "cpu" and "OMP_NUM_THREADS" not in os.environ:
        # each rank takes its share of the cores; more threads than cores make every rank wait
        ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]))
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // ranks_here))
    accelerator.set_device(int(os.environ["LOCAL_RANK"]))
    if not torch.distributed.is_initialized():
        if accelerator.device_name() == "cpu":
            load_communication_kernels(timeout)
        backend, patience = accelerator.communication_backend_name(), timedelta(seconds=2 * timeout)
        try:
            deepspeed.init_distributed(dist_backend=backend, verbose=False, timeout=patience)
        except torch.distributed.DistNetworkError as error:
            place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
            raise UsageError(
                f"The ranks cannot meet at {place} ({str(error).splitlines()[0]}). If another run of this machine has "
                "that port, give the launcher another one: --master_port 29501."
            ) from error
        # A rank may rightly wait for hours while another one copies or hashes a checkpoint. The watchdog sees whether
        # it advances, and names a rank that died; a limit here, or NCCL's own handler, would only end the process.
        torch.distributed.distributed_c10d._set_pg_timeout(timedelta(days=365))
        # a process that ends while its group still lives may abort, and its exit code would be lost
        atexit.register(torch.distributed.destroy_process_group)


def device_of_rank() -> torch.device:
    """Where this rank computes: its own GPU, or the CPU."""
    accelerator: Any = get_accelerator()
    return torch.device(accelerator.device_name(int(os.environ["LOCAL_RANK"])))


def share_of(recipe: Recipe, rank: int, world_size: int) -> Share:
    """This rank's part of a global batch. Raises UsageError when the batch cannot be cut as asked."""
    batch = recipe.batch
    if batch.global_tokens and batch.micro_tokens:
        return Share(
            rank, world_size, -(-batch.global_tokens // (batch.micro_tokens * world_size)), batch.global_tokens
        )
    rows, at_once = batch.global_batch or 0, batch.micro_batch or 0  # the recipe has these, or it was refused
    if rows % (at_once * world_size):
        raise UsageError(
            f"batch.global_batch {rows} cannot be cut into micro-batches of {at_once} rows on {world_size} ranks. "
            f"Make it a multiple of {at_once * world_size}, or count in tokens (global_tokens, micro_tokens)."
        )
    return Share(rank, world_size, rows // (at_once * world_size), rows)


def deepspeed_config(recipe: Recipe, share: Share) -> dict[str, Any]:
    """What the recipe means in DeepSpeed's terms; the [deepspeed] table adds to it and may not contradict it."""
    at_once = recipe.batch.micro_batch or 1  # DeepSpeed only checks that the three numbers agree
    plain = recipe.engine.zero_stage == 0 and recipe.engine.precision == "fp32"  # the guard clips; see trouble.py
    return {
        "train_batch_size": at_once * share.hands,
        "train_micro_batch_size_per_gpu": at_once,
        "gradient_accumulation_steps": share.micro_batches,
        "gradient_clipping": 0.0 if plain else recipe.optimizer.clip,
        "bf16": {"enabled": recipe.engine.precision == "bf16"},
        "zero_allow_untested_optimizer": recipe.optimizer.kind == "lamb",  # ours is tested
        "fp16": {"enabled": recipe.engine.precision == "fp16"},  # with DeepSpeed's dynamic loss scale
        "zero_force_ds_cpu_optimizer": False,  # torch's fused AdamW runs on the host as it is
        "steps_per_print": 10**9,  # metrics are ours
        **recipe.deepspeed,
        "zero_optimization": recipe.deepspeed.get("zero_optimization", {}) | zero_settings(recipe.engine),
    }


def zero_settings(section: EngineSection) -> dict[str, Any]:
    """Sharding and offload in DeepSpeed's terms."""
    accelerator: Any = get_accelerator()
    host = {"device": "cpu", "pin_memory": accelerator.device_name() != "cpu"}
    offloaded = {"none": [], "optimizer": ["offload_optimizer"], "parameters": ["offload_optimizer", "offload_param"]}
    return {"stage": section.zero_stage} | {name: host for name in offloaded[section.offload]}


def build_engine(model: nn.Module, recipe: Recipe, share: Share) -> deepspeed.DeepSpeedEngine:
    """The model on its device with its optimizer, ready to step. Raises UsageError when the device lacks the format."""
    accelerator: Any = get_accelerator()
    if recipe.engine.precision == "fp16" and not accelerator.is_fp16_supported():
        raise UsageError(f"engine.precision fp16: this {accelerator.device_name()} cannot do it. Use bf16 or fp32.")
    optimizer = build_optimizer(model, recipe.optimizer)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=deepspeed_config(recipe, share))
    wrapper: Any = engine.optimizer
    if hasattr(wrapper, "fp32_groups"):  # bf16 or fp16 at stage 0: it has made an update, with gradients of 0
        optimizer.state.clear()
        wrapper.refresh_fp32_params()
        if recipe.engine.precision == "fp16":
            mend(wrapper)
    return engine
