"""Builds a task's model, the weights of an encoder's folder with the head that the task's kind needs, and writes it.

A head that the folder does not have gets random weights, which depend on the seed.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError

from schemas.errors import DataError, StorageError
from schemas.urls import advice_on_limit
from trainer.export.folder import follow_umask
from trainer.export.tokenizer import TOKENIZER_CONFIG, portable_config
from trainer.finetune.files.records import listed
from trainer.finetune.job import Job
from trainer.finetune.kinds.kind import Kind
from trainer.finetune.opening import (
    classes_for,
    first_line,
    open_tokenizer,
    open_weights,
    quiet_transformers,
    read_config,
)
from trainer.finetune.task import Task
from trainer.logs import logger

MODEL_FOLDER = "hf"


def build_model(job: Job, seed: int) -> Any:
    """Return the encoder with the task's head, in float32 on the CPU.

    seed: of the random weights. It is set as in scripts that call `transformers.set_seed` before they open a model.
    Raises DataError if weights of the encoder are missing or damaged.
    """
    folder = job.folder
    config = config_for_task(folder, job.task, job.kind)
    auto_class = getattr(transformers, job.kind.model_class)
    transformers.set_seed(seed)
    if job.random_weights:
        return auto_class.from_config(config).float()

    is_kept = keeps_head(job, config)
    # A head with a different number of labels gets random weights. check_weights rejects other mismatches.
    model, loading_info = open_weights(auto_class, folder, config=config, ignore_mismatched_sizes=True)
    mismatched = [name for name, *_ in loading_info["mismatched_keys"]]
    encoder = f"{model.base_model_prefix}."
    missing = [name for name in [*loading_info["missing_keys"], *mismatched] if name.startswith(encoder)]
    check_weights(folder, missing)
    return model if is_kept else with_new_head(model)


def config_for_task(folder: str, task: Task, kind: Kind) -> Any:
    """Return the folder's configuration with the task's labels and dropout."""
    config = read_config(folder)
    config.num_labels = kind.outputs
    if kind.labels:
        config.id2label = dict(enumerate(kind.labels))
        config.label2id = {label: i for i, label in enumerate(kind.labels)}

    # Without it, transformers' pipelines apply a sigmoid to the number that a regression predicts. It is set for all
    # kinds, because the folder may be of an earlier task.
    config.problem_type = "regression" if task.is_regression else None

    if task.training.dropout is not None:
        set_dropout(config, task.training.dropout)
    return config


def keeps_head(job: Job, config: Any) -> bool:
    """Return whether a head of this kind that the folder may have is used, and log what becomes of it.

    A head is kept if it has the same labels in the same order. If the kind has no named labels, as in regressions and
    spans, it is kept whenever its size is the same. config: that of the task.
    """
    folder, kind = job.folder, job.kind
    has_head = classes_for(kind.model_class)[type(config)].__name__ in (config.architectures or ())
    if not has_head:
        return not job.new_head

    labels = list(read_config(folder).id2label.values())
    if job.new_head:
        logger.info("The head of %s is replaced, as --new_head asks.", folder)
        return False
    is_other_size = job.task.is_regression and len(labels) != 1
    if is_other_size or (kind.labels and labels != list(kind.labels)):
        logger.info("%s has a head for other labels (%s), so its head is replaced.", folder, listed(labels))
        return False
    logger.info("%s was fine-tuned on a task of this kind. A head of the same size is kept.", folder)
    return True


def with_new_head(model: Any) -> Any:
    """Return a model with the same encoder, and a head with random weights by torch's random state."""
    fresh = type(model)(model.config).to(torch.float32)
    fresh.base_model.load_state_dict(model.base_model.state_dict())
    return fresh


def check_weights(folder: str, missing: Sequence[str]) -> None:
    """Raise DataError if weights of an encoder are missing.

    transformers would silently use random weights for them. A missing pooler is allowed: it is trained with the head,
    and the vectors of layers do not depend on it.
    """
    of_encoder = sorted(name for name in missing if "pooler" not in name)
    if of_encoder:
        raise DataError(
            f"{folder} lacks {len(of_encoder)} weights of its encoder, such as {of_encoder[0]}. Export or download it "
            "again; --random_weights is for encoders without weights."
        )


def set_dropout(config: Any, dropout: float) -> None:
    """Set every dropout rate of a configuration. Model families name these fields differently."""
    for name, value in vars(config).items():
        is_rate = "dropout" in name and isinstance(value, (int, float)) and not isinstance(value, bool)
        if is_rate:
            setattr(config, name, dropout)


def restore_dropout(config: Any, folder: str) -> None:
    """Set every dropout rate of a configuration to that of the encoder in a folder."""
    for name, value in vars(read_config(folder)).items():
        if "dropout" in name:
            setattr(config, name, value)


def write_model(output: Path, model: Any, folder: str, kind: str) -> None:
    """Write OUTPUT/hf: the model with its labels, and the tokenizer that it was trained with.

    folder: the encoder's. kind: of the task. Raises StorageError.
    """
    final = output / MODEL_FOLDER
    partial = output / f".{MODEL_FOLDER}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    try:
        with quiet_transformers():
            # The dropout of one task must not become that of the next task that starts from here.
            restore_dropout(model.config, folder)
            model.save_pretrained(partial)
            open_tokenizer(folder, kind).save_pretrained(partial)
        config = partial / TOKENIZER_CONFIG
        content = portable_config(json.loads(config.read_bytes()))
        config.write_text(json.dumps(content, indent=2, ensure_ascii=False), encoding="utf-8")
        follow_umask(partial)
        shutil.rmtree(final, ignore_errors=True)
        os.replace(partial, final)
    except Exception as error:
        # Where the disk is full, tokenizers raises a plain one.
        if type(error) is not Exception and not isinstance(error, (OSError, SafetensorError)):
            raise
        advice = advice_on_limit(error) or "Free some space"
        raise StorageError(
            f"{final} cannot be written: {first_line(error)}. {advice}; the same command continues."
        ) from error
