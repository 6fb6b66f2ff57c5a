"""The state from which the training of one seed resumes: weights, optimizer and progress.

Two states are kept, so that a damaged newest state costs only the steps since the other one. A state is complete once
it has its final name.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from schemas.errors import StorageError
from trainer.logs import logger

KEPT = 2
STATE = re.compile(r"step-(\d{8})\.pt")


@dataclass
class Progress:
    """The progress of a seed's training: its completed steps, and the metrics of each completed epoch.

    best: the index of the best epoch, from 0; None before the end of the first epoch.
    loss_sums: for each rank, the sum of its losses in the current epoch. loss_weight: the number of losses in all sums.
    seconds: training time, including the time before each resume.
    """

    step: int = 0
    epochs: list[dict[str, float]] = field(default_factory=list)
    best: int | None = None
    loss_sums: list[float] = field(default_factory=list)
    loss_weight: int = 0
    seconds: float = 0.0


def save_state(folder: Path, progress: Progress, model: Any, optimizer: torch.optim.Optimizer) -> None:
    """Write a state, and remove all but the newest two. Raises StorageError, which leaves the older states in place."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {"progress": asdict(progress), "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    path = folder / f"step-{progress.step:08d}.pt"
    write_atomically(path, lambda partial: torch.save(content, partial))

    for old in states_of(folder)[:-KEPT]:
        old.unlink(missing_ok=True)


def read_state(folder: Path) -> dict[str, Any] | None:
    """Return the content of the newest readable state, with tensors on the CPU; None if there is none."""
    for path in reversed(states_of(folder)):
        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # torch raises many types for damaged files
            logger.info("%s cannot be read (%s). An older state is used.", path, str(error).splitlines()[0])
    return None


def load_state(content: dict[str, Any] | None, model: Any, optimizer: torch.optim.Optimizer) -> Progress:
    """Load a state into the model and the optimizer, and return its progress; without a state, a new Progress."""
    if content is None:
        return Progress()
    model.load_state_dict(content["model"])
    optimizer.load_state_dict(content["optimizer"])
    return Progress(**content["progress"])


def states_of(folder: Path) -> list[Path]:
    """Return the paths of the complete states, the oldest first."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if STATE.fullmatch(path.name))


def write_atomically(path: Path, write: Any) -> None:
    """Write a file under a temporary name, flush it to the disk, and rename it to `path`. Raises StorageError.

    write: called with the temporary path; writes the file there.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        write(str(partial))
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
    except (OSError, RuntimeError) as error:  # torch's writer raises RuntimeError on a full disk
        with contextlib.suppress(OSError):
            partial.unlink()
        reason = error.strerror if isinstance(error, OSError) else str(error).splitlines()[0]
        raise StorageError(
            f"{path} cannot be written: {reason}. Free some space or check permissions; the same command continues."
        ) from error
