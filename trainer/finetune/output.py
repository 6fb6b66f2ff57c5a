"""The output folder of a fine-tuning: what it belongs to, and the final model."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from schemas import storage
from schemas.errors import StorageError
from schemas.urls import advice_on_limit
from trainer.export.folder import follow_umask
from trainer.export.tokenizer import TOKENIZER_CONFIG, portable_config
from trainer.finetune.inputs import record_inputs
from trainer.finetune.job import Job
from trainer.finetune.model import restore_dropout
from trainer.finetune.opening import first_line, open_tokenizer, quiet_transformers
from trainer.finetune.task_file import dump_task

TASK_FILE = "task.toml"
MODEL_FOLDER = "hf"
MODEL_CARD_FILE = "README.md"


def record_start(job: Job) -> None:
    """Write inputs.json and task.toml. From now on, the output folder belongs to this fine-tuning.

    One that failed before it trained anything, for example because of damaged weights or of a service that it should
    log to, owns nothing, so that the corrected command may use the folder.
    """
    record_inputs(job.output, job.inputs)
    storage.publish(str(job.output / TASK_FILE), dump_task(job.task).encode())


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


def move_model(source: Path, output: Path, card: str) -> None:
    """Move the hf folder of a seed to OUTPUT/hf, with a model card. source: the folder of the seed."""
    card_file = source / MODEL_FOLDER / MODEL_CARD_FILE
    card_file.write_text(card, encoding="utf-8")
    shutil.rmtree(output / MODEL_FOLDER, ignore_errors=True)
    os.replace(source / MODEL_FOLDER, output / MODEL_FOLDER)
