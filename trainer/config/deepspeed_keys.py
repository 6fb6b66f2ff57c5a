"""Lists of keys of DeepSpeed's configuration (DeepSpeed 0.19, deepspeed/runtime/config.py).

A recipe's [deepspeed] table is passed through to DeepSpeed. These lists say which keys it must not hold, which keys
must be tables, and which may be shown to others.
"""

from __future__ import annotations

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

DEEPSPEED_TABLES = (
    "activation_checkpointing",
    "aio",
    "autotuning",
    "checkpoint",
    "comet",
    "comms_logger",
    "compile",
    "compression_training",
    "csv_monitor",
    "curriculum_learning",
    "data_efficiency",
    "data_types",
    "eigenvalue",
    "flops_profiler",
    "graph_harvesting",
    "hybrid_engine",
    "nebula",
    "pipeline",
    "progressive_layer_drop",
    "quantize_training",
    "sparse_attention",
    "tensor_parallel",
    "tensorboard",
    "timers",
    "wandb",
    "weight_quantization",
    "zero_optimization",
)
"""Keys that hold a table. DeepSpeed reads from these without checking their type."""

SERVICE_TABLES = ("autotuning", "comet", "csv_monitor", "monitor_config", "nebula", "tensorboard", "wandb")
"""Tables that configure services and accounts, and may hold passwords."""

SINGLE_SETTINGS = (
    "communication_data_type",
    "dump_state",
    "gradient_predivide_factor",
    "memory_breakdown",
    "prescale_gradients",
    "seq_parallel_communication_data_type",
    "sparse_gradients",
    "steps_per_print",
    "wall_clock_breakdown",
    "zero_allow_untested_optimizer",
    "zero_force_ds_cpu_optimizer",
)
"""Keys that hold a single setting of the computation."""

PUBLIC_KEYS = (set(DEEPSPEED_TABLES) - set(SERVICE_TABLES)) | set(SINGLE_SETTINGS)
"""Keys whose values may be shown to others. New versions of DeepSpeed may add tables with passwords, so this lists only
keys that are known to hold nothing but settings of the computation."""
