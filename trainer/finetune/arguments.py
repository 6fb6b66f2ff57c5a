"""The arguments of transformers' Trainer: those that a task's values make, and those that its [trainer] table adds.

[trainer] may hold every key of TrainingArguments but two groups: keys that a task file or the command line has under
another name, and keys that the exact continuation and the choice of the best epoch rest on. Both are refused.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from schemas.errors import UsageError, nearest_name
from trainer.config.parse import Origin
from trainer.finetune.task import Task

FEATURES_AT_ONCE = 64
"""Features per batch in evaluation."""

BATCHES_ON_DEVICE = 16
"""The number of batches whose logits stay on the device before they are copied to the host."""

ELSEWHERE = {
    "bf16": "training.precision",
    "data_seed": "--first_seed",
    "group_by_length": "training.group_by_length",
    "learning_rate": "training.lr",
    "max_steps": "training.epochs",
    "metric_for_best_model": "metrics",
    "num_train_epochs": "training.epochs",
    "output_dir": "--output",
    "per_device_train_batch_size": "training.batch",
    "save_steps": "training.save_every",
    "seed": "--first_seed",
    "train_sampling_strategy": "training.group_by_length",
    "warmup_ratio": "training.warmup_ratio",
    "warmup_steps": "training.warmup_ratio",
    "weight_decay": "training.weight_decay",
}
"""Arguments that have another name here, with that name."""

FIXED = {
    "auto_find_batch_size",
    "average_tokens_across_devices",
    "batch_eval_metrics",
    "dataloader_drop_last",
    "deepspeed",
    "disable_tqdm",
    "enable_jit_checkpoint",
    "eval_delay",
    "eval_do_concat_batches",
    "eval_on_start",
    "eval_steps",
    "eval_strategy",
    "fsdp",
    "fsdp_config",
    "full_determinism",
    "greater_is_better",
    "ignore_data_skip",
    "label_names",
    "load_best_model_at_end",
    "logging_nan_inf_filter",
    "logging_steps",
    "logging_strategy",
    "prediction_loss_only",
    "remove_unused_columns",
    "restore_callback_states_from_checkpoint",
    "resume_from_checkpoint",
    "save_on_each_node",
    "save_only_model",
    "save_strategy",
    "save_total_limit",
    "use_cpu",
}
"""Arguments that `training_arguments` sets, or that would change what a stopped fine-tuning continues from."""

NEEDS_LABELS = ("choice", "span")
"""Kinds whose loss is not the one that Trainer smooths the labels of."""


def check_trainer(task: Task, origin: Origin) -> None:
    """Raise UsageError for a key of [trainer] that is unknown or taken. origin: names the task file, or a change."""
    if not task.trainer:
        return

    from transformers import TrainingArguments  # takes seconds, so only tasks with this table wait for it

    known = set(TrainingArguments.__dataclass_fields__)
    for key in task.trainer:
        source = origin.of(f"trainer.{key}")
        if key in ELSEWHERE:
            raise UsageError(f"{source}: trainer.{key} is {ELSEWHERE[key]} here. Set that instead.")
        if key in FIXED:
            raise UsageError(
                f"{source}: trainer.{key} is set by finetune itself, whose continuation after a stop rests on it. "
                "Remove the key."
            )
        if key not in known:
            raise UsageError(
                f"{source}: unknown key trainer.{key}, which transformers' TrainingArguments does not have."
                f"{nearest_name(key, sorted(known - FIXED - ELSEWHERE.keys()))}"
            )
        if key == "label_smoothing_factor" and task.kind in NEEDS_LABELS:
            raise UsageError(
                f"{source}: trainer.{key} is for the kinds sentence, pair and tags. This task's kind is {task.kind}."
            )


def training_arguments(task: Task, folder: Path, seed: int, ranks: int, on_cpu: bool) -> Any:
    """Return the TrainingArguments of one seed. folder: its folder, where Trainer saves checkpoints.

    Raises UsageError for values of [trainer] that transformers refuses, and for a batch that the ranks cannot share.
    """
    from transformers import TrainingArguments

    training = task.training
    values = {
        "dataloader_pin_memory": not on_cpu,
        "eval_accumulation_steps": BATCHES_ON_DEVICE,
        "per_device_eval_batch_size": FEATURES_AT_ONCE,
        "report_to": "none",
        **task.trainer,
        "output_dir": str(folder),
        "seed": seed,
        "use_cpu": on_cpu,
        "disable_tqdm": True,
        "remove_unused_columns": False,
        # Training
        "num_train_epochs": training.epochs,
        "learning_rate": training.lr,
        "weight_decay": training.weight_decay,
        "warmup_steps": training.warmup_ratio,
        "bf16": training.precision == "bf16",
        # With True, transformers 5.23 doubles the loss of BERT's classifier on two ranks (fit.py).
        "average_tokens_across_devices": False,
        # Each loss is logged, because the mean of an epoch must not depend on where it was interrupted.
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        # As one array, the rows of tokens would all be as long as the longest.
        "eval_do_concat_batches": False,
        # The best epoch
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "save_total_limit": 2,
        "load_best_model_at_end": False,  # fit.py does, and refuses to end without
        "metric_for_best_model": f"eval_{task.metrics[0]}",
        "greater_is_better": True,
    }
    accumulated = task.trainer.get("gradient_accumulation_steps", 1)
    try:
        parts = ranks * int(accumulated)
        if parts > 0 and training.batch % parts != 0:
            raise UsageError(
                f"training.batch is {training.batch}, expected a multiple of {parts}: {ranks}, the number of ranks, "
                f"times {accumulated}, trainer.gradient_accumulation_steps."
            )
        with as_started(ranks):
            arguments = TrainingArguments(**values, per_device_train_batch_size=training.batch // parts)
    except (TypeError, ValueError, ImportError, ZeroDivisionError) as error:
        reason = str(error).strip().splitlines()[0].rstrip(".")
        raise UsageError(f"transformers' Trainer refuses values of the task: {reason}.") from error

    # Trainer would divide a batch between all GPUs that this process sees. Each of them is another rank's.
    arguments._n_gpu = min(1, arguments._n_gpu)
    return arguments


@contextlib.contextmanager
def as_started(ranks: int) -> Iterator[None]:
    """Let accelerate, which Trainer rests on, see the processes and threads of this run as they are.

    It takes every process with a LOCAL_RANK for one of several, and sets the number of threads by that of the cores.
    """
    import torch

    from trainer.finetune.opening import quiet_transformers

    threads = torch.get_num_threads()
    local_rank = os.environ.get("LOCAL_RANK")
    if ranks == 1:
        os.environ.pop("LOCAL_RANK", None)
    try:
        with quiet_transformers(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="accelerate")
            yield
    finally:
        torch.set_num_threads(threads)
        if local_rank is not None:
            os.environ["LOCAL_RANK"] = local_rank
