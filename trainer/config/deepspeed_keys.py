"""The keys of DeepSpeed's configuration that a recipe's [deepspeed] table may hold, and those that the recipe owns.

DeepSpeed 0.19 (deepspeed/runtime/config.py) ignores unknown keys and checks few types, so the table is checked here
before it is passed on.
"""

from __future__ import annotations

import sys
from typing import Any

OWNED_BY_RECIPE = {
    "train_batch_size": "batch.global_batch",
    "train_micro_batch_size_per_gpu": "batch.micro_batch",
    "gradient_accumulation_steps": "batch.global_batch and batch.micro_batch",
    "gradient_clipping": "optimizer.clip",
    "optimizer": "optimizer",
    "scheduler": "schedule",
    "bf16": "engine.precision",
    "bfloat16": "engine.precision",
    "fp16": "engine.precision",
    "amp": "engine.precision",
    "torch_autocast": "engine.precision",
    "elasticity": "batch.global_batch",
    "communication_data_type": "engine.precision, and gradients are always reduced in float32",
    "steps_per_print": "run.log_every",
    "timers": "run.log_every",
    "activation_checkpointing": "engine.recompute",
    "compile": "engine.compile",
    "zero_allow_untested_optimizer": "optimizer.kind",
    "zero_force_ds_cpu_optimizer": "engine.offload",
    "data_types": "engine.precision and engine.zero_stage",
    "zero_optimization.stage": "engine.zero_stage",
    "zero_optimization.offload_optimizer": "engine.offload",
    "zero_optimization.offload_param": "engine.offload",
    "zero_optimization.cpu_offload": "engine.offload",
    "zero_optimization.cpu_offload_param": "engine.offload",
    "zero_optimization.cpu_offload_params": "engine.offload",
    "zero_optimization.cpu_offload_use_pin_memory": "engine.offload",
}
"""Keys that a [deepspeed] table must not hold, including deprecated names, with the recipe's own key for each."""

WHOLE = "a whole number of at least 0"
ABOVE_0 = "a whole number above 0"
YES_NO = "true or false"
TEXT = "text in quotes"

ALLOWED = {
    "wall_clock_breakdown": YES_NO,
    "memory_breakdown": YES_NO,
    "zero_optimization.allgather_bucket_size": WHOLE,
    "zero_optimization.allgather_partitions": YES_NO,
    "zero_optimization.contiguous_gradients": YES_NO,
    "zero_optimization.overlap_comm": YES_NO,
    "zero_optimization.reduce_bucket_size": ABOVE_0,
    "zero_optimization.reduce_scatter": YES_NO,
    "zero_optimization.stage3_max_live_parameters": WHOLE,
    "zero_optimization.stage3_max_reuse_distance": WHOLE,
    "zero_optimization.stage3_model_persistence_threshold": WHOLE,
    "zero_optimization.stage3_param_persistence_threshold": WHOLE,
    "zero_optimization.stage3_prefetch_bucket_size": WHOLE,
    "zero_optimization.sub_group_size": WHOLE,
    "comet.enabled": YES_NO,
    "comet.api_key": TEXT,
    "comet.experiment_key": TEXT,
    "comet.experiment_name": TEXT,
    "comet.mode": TEXT,
    "comet.online": YES_NO,
    "comet.project": TEXT,
    "comet.samples_log_interval": ABOVE_0,
    "comet.workspace": TEXT,
    "csv_monitor.enabled": YES_NO,
    "csv_monitor.job_name": TEXT,
    "csv_monitor.output_path": TEXT,
    "tensorboard.enabled": YES_NO,
    "tensorboard.job_name": TEXT,
    "tensorboard.output_path": TEXT,
    "wandb.enabled": YES_NO,
    "wandb.group": TEXT,
    "wandb.project": TEXT,
    "wandb.team": TEXT,
}
"""The keys that are passed on to DeepSpeed, with what their values must be.

They change neither what is trained nor what a checkpoint holds, and all of them have an effect: `dump_state` and
`comms_logger`, for example, only write to DeepSpeed's log, which the trainer hides.
"""

TABLES = sorted({name.partition(".")[0] for name in ALLOWED if "." in name})
"""The tables among them."""

SERVICE_TABLES = ("comet", "csv_monitor", "tensorboard", "wandb")
"""Tables that configure services and accounts, and may hold passwords."""

PUBLIC_KEYS = {name.partition(".")[0] for name in ALLOWED} - set(SERVICE_TABLES)
"""Keys whose values may be shown to others."""


def is_valid(value: Any, expected: str) -> bool:
    """Return whether a value of a key in ALLOWED is what it must be."""
    if expected == YES_NO:
        return isinstance(value, bool)
    if expected == TEXT:
        return isinstance(value, str)

    # TOML has no exponents in integers, so 5e8 is a float.
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and (expected != ABOVE_0 or value > 0) and 0 <= value <= sys.maxsize and value == value // 1
