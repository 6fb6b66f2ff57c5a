"""The arguments of transformers' Trainer: those that a task's values make, and those that its [trainer] table adds.

[trainer] may hold the keys of `TaskTrainerSection`, so that a new version of transformers opens nothing.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from schemas.errors import UsageError
from trainer.finetune.task import Task

DEFAULTS = {"per_device_eval_batch_size": 64, "eval_accumulation_steps": 16, "report_to": "none"}
"""What differs from Trainer's defaults and [trainer] may change."""

FIXED = {
    "disable_tqdm": True,
    "remove_unused_columns": False,
    # With True, transformers 5.23 doubles the loss of BERT's classifier on two ranks (fit.py).
    "average_tokens_across_devices": False,
    # Each loss is logged, because the mean of an epoch must not depend on where it was interrupted.
    "logging_steps": 1,
    "logging_nan_inf_filter": False,
    # As one array, the rows of tokens would all be as long as the longest.
    "eval_do_concat_batches": False,
    # fit.py takes the weights of the best epoch, and checkpoints.py decides which checkpoints stay.
    "eval_strategy": "epoch",
    "save_strategy": "epoch",
    "save_total_limit": None,
    "greater_is_better": True,
}
"""What differs from Trainer's defaults for all tasks."""


def training_arguments(task: Task, folder: Path, seed: int, ranks: int, on_cpu: bool) -> Any:
    """Return the TrainingArguments of one seed. folder: its folder, where Trainer saves checkpoints.

    Raises UsageError for values of [trainer] that transformers refuses, and for a batch that the ranks cannot share.
    """
    from transformers import TrainingArguments

    batch = batch_of_rank(task, ranks)
    on_this_machine = {"output_dir": str(folder), "seed": seed, "use_cpu": on_cpu, "dataloader_pin_memory": not on_cpu}
    values = DEFAULTS | task.trainer.model_dump(exclude_none=True) | FIXED | of_training(task) | on_this_machine
    with refusals(TypeError, ValueError, ImportError), as_started(ranks):
        arguments = TrainingArguments(**values, per_device_train_batch_size=batch)

    with refusals(TypeError, ValueError, ImportError, ArithmeticError, RuntimeError):
        check_early(task, arguments)
    # Trainer would divide a batch between all GPUs that this process sees. Each of them is another rank's.
    arguments._n_gpu = min(1, arguments._n_gpu)
    return arguments


@contextlib.contextmanager
def refusals(*errors: type[Exception]) -> Iterator[None]:
    """Turn errors of transformers about values of the task into UsageError."""
    from trainer.finetune.opening import first_line

    try:
        yield
    except errors as error:
        raise UsageError(f"transformers' Trainer refuses values of the task: {first_line(error)}") from error


def of_training(task: Task) -> dict[str, Any]:
    """Return the values of [training] and the main metric under the names that Trainer has for them."""
    training = task.training
    return {
        "num_train_epochs": training.epochs,
        "learning_rate": training.lr,
        "weight_decay": training.weight_decay,
        "warmup_steps": training.warmup_ratio,
        "bf16": training.precision == "bf16",
        "metric_for_best_model": f"eval_{task.metrics[0]}",
    }


def batch_of_rank(task: Task, ranks: int) -> int:
    """Return the examples that a rank computes at a time. Raises UsageError if they are no whole number."""
    accumulated = task.trainer.gradient_accumulation_steps or 1
    parts = ranks * accumulated
    if task.training.batch % parts != 0:
        raise UsageError(
            f"training.batch is {task.training.batch}, expected a multiple of {parts}: {ranks}, the number of ranks, "
            f"times {accumulated}, trainer.gradient_accumulation_steps."
        )
    return task.training.batch // parts


def check_early(task: Task, arguments: Any) -> None:
    """Make the schedule and the services to log to, as Trainer does only after the examples are encoded."""
    import torch
    from transformers import get_scheduler
    from transformers.integrations.integration_utils import get_reporting_integration_callbacks

    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=task.training.lr or 0.0)
    schedule = task.trainer.lr_scheduler_type or "linear"
    get_scheduler(schedule, optimizer, 0, 1, scheduler_specific_kwargs=dict(task.trainer.lr_scheduler_kwargs or {}))

    for callback in get_reporting_integration_callbacks(arguments.report_to):
        callback()


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
