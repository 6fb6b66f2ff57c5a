"""The files of a seed during training: the weights of its best epoch, and one line of metrics per epoch.

OUTPUT/seed-0/metrics.jsonl
OUTPUT/seed-0/best-EPOCH.pt    removed once OUTPUT/hf holds the best weights of all seeds
OUTPUT/seed-0/state            states to resume from (seed_state.py), removed when the seed is finished
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch

from schemas import storage
from trainer.finetune.seed_state import Progress, write_atomically

METRICS_FILE = "metrics.jsonl"
STATE_FOLDER = "state"


def weights_of_epoch(folder: Path, epoch: int) -> Path:
    """Return the path of an epoch's weights. epoch: counted from 0."""
    return folder / f"best-{epoch}.pt"


def save_weights(model: Any, folder: Path, epoch: int) -> None:
    """Write the weights of the best epoch so far. Raises StorageError.

    Earlier weights stay: until a saved state names this epoch, a resumed run needs those of the previous best one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(weights_of_epoch(folder, epoch), lambda partial: torch.save(model.state_dict(), partial))


def remove_weights(folder: Path, but_of_epoch: int | None = None) -> None:
    """Remove the weights of all epochs but `but_of_epoch`, and partial files that a killed process left behind."""
    kept = None if but_of_epoch is None else weights_of_epoch(folder, but_of_epoch)
    for path in (*folder.glob("best-*.pt"), *folder.glob(".best-*.pt.partial")):
        if path != kept:
            path.unlink(missing_ok=True)


def write_metrics(folder: Path, progress: Progress) -> None:
    """Write metrics.jsonl: one line for each completed epoch."""
    lines = "".join(f"{json.dumps(epoch)}\n" for epoch in progress.epochs)
    storage.publish(str(folder / METRICS_FILE), lines.encode(), durable=False)


def remove_states(folder: Path) -> None:
    """Remove the saved states of a finished seed."""
    shutil.rmtree(folder / STATE_FOLDER, ignore_errors=True)
