"""The DeepSpeed engine of a recipe: its settings, what it writes into a checkpoint, and how it goes on from one."""

from __future__ import annotations

import logging
import os
import warnings
from pathlib import Path
from typing import Any

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from deepspeed.utils import safe_get_full_fp32_param
from safetensors.torch import save_file
from torch import nn

from schemas.errors import UsageError
from trainer.checkpoints import WEIGHTS
from trainer.optimization import build_optimizer
from trainer.recipe import Recipe
from trainer.stream.batches import Share

TAG = "deepspeed"  # the folder inside a checkpoint that holds DeepSpeed's own files


def start_distributed() -> tuple[int, int]:
    """Join the process group and return (rank, world size). A plain `python -m trainer` is a group of one."""
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)  # what matters is logged by us or raised
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")  # of DeepSpeed's own calls
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("MASTER_PORT", "0" if os.environ["WORLD_SIZE"] == "1" else "29500")
    accelerator: Any = get_accelerator()
    if accelerator.device_name() == "cpu" and "OMP_NUM_THREADS" not in os.environ:
        # each rank takes its share of the cores; more threads than cores make every rank wait
        ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]))
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // ranks_here))
    deepspeed.init_distributed(dist_backend=accelerator.communication_backend_name(), verbose=False)
    return torch.distributed.get_rank(), torch.distributed.get_world_size()


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
    return {
        "train_batch_size": at_once * share.hands,
        "train_micro_batch_size_per_gpu": at_once,
        "gradient_accumulation_steps": share.micro_batches,
        "gradient_clipping": recipe.optimizer.clip,
        "bf16": {"enabled": recipe.engine.precision == "bf16"},
        "zero_optimization": {"stage": recipe.engine.zero_stage},
        "zero_allow_untested_optimizer": recipe.optimizer.kind == "lamb",  # ours is tested
        "steps_per_print": 10**9,  # metrics are ours
        **recipe.deepspeed,
    }


def build_engine(model: nn.Module, recipe: Recipe, share: Share) -> deepspeed.DeepSpeedEngine:
    """The model on its device with its optimizer, ready to step."""
    optimizer = build_optimizer(model, recipe.optimizer)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=deepspeed_config(recipe, share))
    optimizer.state.clear()  # bf16 without ZeRO has taken a step with gradients of 0
    return engine


def write_checkpoint(engine: deepspeed.DeepSpeedEngine, folder: Path) -> None:
    """Every rank's optimizer and weights as DeepSpeed keeps them, and all weights for export. A collective call."""
    engine.save_checkpoint(str(folder), tag=TAG, save_latest=False)
    weights = full_weights(engine.module)  # type: ignore[arg-type]
    if torch.distributed.get_rank() == 0:
        save_file(weights, folder / WEIGHTS)


def read_checkpoint(engine: deepspeed.DeepSpeedEngine, folder: Path) -> None:
    """Put a checkpoint's weights and optimizer state into the engine."""
    engine.load_checkpoint(str(folder), tag=TAG)


def full_weights(module: nn.Module) -> dict[str, torch.Tensor]:
    """All weights in float32, from the optimizer's own copies whatever the ranks hold. A collective call."""
    weights = {}
    for name, parameter in module.named_parameters():
        full = safe_get_full_fp32_param(parameter)  # None when DeepSpeed keeps no copy, as in stage 0
        weights[name] = (parameter if full is None else full).detach().float().cpu().contiguous()
    return weights
