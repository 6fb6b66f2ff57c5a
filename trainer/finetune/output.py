"""The output folder of a fine-tuning: its lock, and the final model."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from schemas import storage
from schemas.errors import StorageError, UsageError
from trainer.checkpoint.run_lock import held
from trainer.export.tokenizer import TOKENIZER_CONFIG, portable_config
from trainer.finetune.identity import IDENTITY_FILE, TASK_FILE, check_owner
from trainer.finetune.model import restore_dropout
from trainer.finetune.opening import first_line, open_tokenizer, quiet_transformers
from trainer.finetune.task import Task
from trainer.finetune.task_file import dump_task
from trainer.permissions import follow_umask

MODEL_FOLDER = "hf"
MODEL_CARD_FILE = "README.md"


@contextlib.contextmanager
def claimed(output: Path, identity: dict[str, str], task: Task) -> Iterator[None]:
    """Lock the output folder for this process, and create it if it does not exist.

    Raises UsageError if a live process holds the lock or the folder belongs to something else, and StorageError if the
    folder is not writable.
    """
    check_owner(output, identity, task)
    with held(output):
        storage.publish(str(output / IDENTITY_FILE), (json.dumps(identity, indent=1) + "\n").encode())
        storage.publish(str(output / TASK_FILE), dump_task(task).encode())
        yield


def check_is_local(output: str) -> None:
    """Raise UsageError if an output is a URL."""
    if not storage.is_local(output):
        raise UsageError(f"--output {output} is a URL. Give a local folder, and copy it after the command ends.")


def write_model(output: Path, model: Any, folder: str, kind: str, card: str) -> None:
    """Write OUTPUT/hf: the model with its labels, the tokenizer that it was trained with, and README.md.

    folder: the encoder's. kind: of the task. card: the text of README.md. Raises StorageError.
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
        (partial / MODEL_CARD_FILE).write_text(card, encoding="utf-8")
        follow_umask(partial)
        shutil.rmtree(final, ignore_errors=True)
        os.replace(partial, final)
    except (OSError, SafetensorError) as error:
        raise StorageError(
            f"{final} cannot be written: {first_line(error)}. Free some space; the same command continues."
        ) from error
