"""The process group and the DeepSpeed engine of a recipe."""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import logging
import os
import warnings
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from torch import nn

from schemas.errors import UsageError
from trainer.config.schema import EngineSection, Recipe
from trainer.data.dataset import PairFolder
from trainer.data.loader import RankShare
from trainer.distributed.gradients import accumulate_in_float32, gradient_settings
from trainer.distributed.kernels import load_communication_kernels
from trainer.distributed.loss_scale import fix_loss_scaler
from trainer.distributed.stop_agreement import gloo_error
from trainer.distributed.zero import set_master_weights
from trainer.optim.build import build_optimizer


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
        except RuntimeError as error:
            if "gloo" not in str(error):
                raise
            raise gloo_error(error) from error
        # A rank may rightly wait for hours while another one copies or hashes a checkpoint. The watchdog sees whether
        # it advances, and names a rank that died; a limit here, or NCCL's own handler, would only end the process.
        torch.distributed.distributed_c10d._set_pg_timeout(timedelta(days=365))
        # a process that ends while its group still lives may abort, and its exit code would be lost
        atexit.register(torch.distributed.destroy_process_group)


def device_of_rank() -> torch.device:
    """Where this rank computes: its own GPU, or the CPU."""
    accelerator: Any = get_accelerator()
    return torch.device(accelerator.device_name(int(os.environ["LOCAL_RANK"])))


def share_of(recipe: Recipe, rank: int, world_size: int, folders: Sequence[PairFolder] = ()) -> RankShare:
    """Return this rank's part of a global batch of these folders' rows.

    Raises UsageError when the batch cannot be cut as asked.
    """
    batch = recipe.batch
    if batch.global_tokens and batch.micro_tokens:
        longest = [folder.max_length for folder in folders] or [recipe.model.max_position_embeddings]
        micro_batches = token_micro_batches(batch.global_tokens, batch.micro_tokens, longest, world_size)
        return RankShare(rank, world_size, micro_batches, batch.global_tokens)

    rows, at_once = batch.global_batch or 0, batch.micro_batch or 0  # the recipe has these, or it was refused
    if rows % (at_once * world_size):
        raise UsageError(
            f"batch.global_batch {rows} cannot be cut into micro-batches of {at_once} rows on {world_size} ranks. "
            f"Make it a multiple of {at_once * world_size}, or count in tokens (global_tokens, micro_tokens)."
        )
    return RankShare(rank, world_size, rows // (at_once * world_size), rows)


def token_micro_batches(global_tokens: int, micro_tokens: int, longest: Sequence[int], world_size: int) -> int:
    """Return how many micro-batches each rank needs so that none exceeds `micro_tokens`.

    `longest` has the tokens of the longest row of each folder. Raises UsageError when a row alone is too long.
    """
    longest_row = max(longest)
    if micro_tokens <= longest_row:
        raise UsageError(
            f"batch.micro_tokens {micro_tokens} is not enough for rows of up to {longest_row} tokens. "
            f"Give at least {4 * longest_row}."
        )
    # A batch ends with a whole row of each folder, and rows are dealt so that no two micro-batches differ by more than
    # one row: the largest has at most the mean and one row.
    most_tokens = global_tokens + sum(longest)
    return -(-most_tokens // ((micro_tokens - longest_row) * world_size))


def deepspeed_config(recipe: Recipe, share: RankShare) -> dict[str, Any]:
    """What the recipe means in DeepSpeed's terms; the [deepspeed] table adds to it and may not contradict it."""
    at_once = recipe.batch.micro_batch or 1  # DeepSpeed only checks that the three numbers agree
    plain = recipe.engine.zero_stage == 0 and recipe.engine.precision == "fp32"  # the guard clips; see anomaly.py
    return {
        "train_batch_size": at_once * share.micro_batches_per_step,
        "train_micro_batch_size_per_gpu": at_once,
        "gradient_accumulation_steps": share.micro_batches,
        "gradient_clipping": 0.0 if plain else recipe.optimizer.clip,
        # immediate_grad_update: a gradient is added to its float32 sum as soon as it is there, and then freed
        "bf16": {"enabled": recipe.engine.precision == "bf16", "immediate_grad_update": True},
        "zero_allow_untested_optimizer": recipe.optimizer.kind == "lamb",  # ours is tested
        "fp16": {"enabled": recipe.engine.precision == "fp16"},  # with DeepSpeed's dynamic loss scale
        "zero_force_ds_cpu_optimizer": False,  # torch's fused AdamW runs on the host as it is
        "steps_per_print": 10**9,  # metrics are ours
        "timers": {"throughput": {"enabled": False}},  # it waits for the whole device twice a micro-batch
        **gradient_settings(recipe.engine),
        **recipe.deepspeed,
        "zero_optimization": recipe.deepspeed.get("zero_optimization", {}) | zero_settings(recipe.engine),
    }


def zero_settings(section: EngineSection) -> dict[str, Any]:
    """Sharding and offload in DeepSpeed's terms."""
    accelerator: Any = get_accelerator()
    host = {"device": "cpu", "pin_memory": accelerator.device_name() != "cpu"}
    offloaded = {"none": [], "optimizer": ["offload_optimizer"], "parameters": ["offload_optimizer", "offload_param"]}
    return {"stage": section.zero_stage} | {name: host for name in offloaded[section.offload]}


def check_precision(precision: str) -> None:
    """Raise UsageError when this rank's device computes the precision not at all or by slow emulation."""
    accelerator: Any = get_accelerator()
    device = accelerator.device_name()
    if precision == "fp16" and not accelerator.is_fp16_supported():
        raise UsageError(f"engine.precision fp16: this {device} does not support it. Use bf16 or fp32.")
    # DeepSpeed's own check passes on older GPUs, for torch emulates bf16 there
    if precision == "bf16" and device == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise UsageError(
            f"engine.precision bf16: {torch.cuda.get_device_name()} does not support it. Use fp16 or fp32."
        )


def set_up_arithmetic(section: EngineSection) -> None:
    """Choose how matrices are multiplied in this process: TF32 in float32 on GPUs, and engine.deterministic."""
    accelerator: Any = get_accelerator()
    if accelerator.device_name() == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32: 19 bits, about 8 times as fast on Ampere and later
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read by cuBLAS when it starts; deterministic needs it
    torch.use_deterministic_algorithms(section.deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # a debugging aid


def free_former_engine() -> None:
    """Return the memory of an engine that nothing uses any more, before another is built beside it.

    DeepSpeed's engines, optimizers and hooks refer to each other, so they live until a collection finds them.
    """
    accelerator: Any = get_accelerator()
    gc.collect()
    accelerator.empty_cache()


def build_engine(model: nn.Module, recipe: Recipe, share: RankShare) -> deepspeed.DeepSpeedEngine:
    """Return the model on its device with its optimizer, ready to step.

    The optimizer's float32 weights are the model's as they were given, not rounded to engine.precision. Raises
    UsageError when the device does not support that precision.
    """
    check_precision(recipe.engine.precision)
    set_up_arithmetic(recipe.engine)
    optimizer = build_optimizer(model, recipe.optimizer)
    initial = {name: parameter.detach() for name, parameter in model.named_parameters()}
    with contextlib.redirect_stdout(io.StringIO()):  # BF16_Optimizer prints memory figures whatever the log level is
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=deepspeed_config(recipe, share))

    wrapper: Any = engine.optimizer
    if hasattr(wrapper, "fp32_groups"):  # bf16 or fp16 at stage 0: it has made an update, with gradients of 0
        optimizer.state.clear()
        accumulate_in_float32(engine)
        if recipe.engine.precision == "fp16":
            fix_loss_scaler(wrapper)

    # DeepSpeed copies the optimizer's float32 weights from the model after it has rounded that to 16 bits
    if recipe.engine.precision != "fp32":
        set_master_weights(engine, initial)
    return engine
