"""The layout of a checkpoint on disk, and how checkpoints are found and read.

    RUN/checkpoints/step-00000100/
        model.safetensors        all weights in float32 (the optimizer's master copies)
        exp_avg.safetensors      the optimizer's moments, under the names of the weights
        exp_avg_sq.safetensors
        state.json               progress and facts of the run, see state.py
        evaluation.json          metrics on the held-out pairs, if these weights were evaluated
        manifest.json            size and SHA-256 of every file above, written last

Nothing in a checkpoint depends on the number of ranks or the ZeRO stage, so a run may resume with others.

evaluation.json may be written after the manifest: an evaluation that a signal interrupted is rerun on resume and added
to the published checkpoint. The manifest then does not list it, and readers treat a damaged one as missing.

publication.py publishes and removes checkpoints, and sharded.py lets the ranks write one together.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from schemas import storage
from schemas.errors import CheckpointError, DataError, UsageError
from trainer.checkpoint.disk_errors import write_errors_of
from trainer.checkpoint.manifest import MANIFEST, fault_of_checkpoint, remove_entry
from trainer.checkpoint.state import TrainingState

CHECKPOINTS_FOLDER = "checkpoints"
STATE = "state.json"
WEIGHTS_FILE = "model.safetensors"
EVALUATION = "evaluation.json"

_STEP_PREFIX = "step-"


class NewestCheckpoint(NamedTuple):
    """The newest checkpoint that verifies, and what is wrong with newer ones."""

    path: Path
    faults: list[str]


# Where checkpoints are


def location(run: str, step: int) -> str:
    """Return the folder of a checkpoint. `run` may be a URL."""
    return storage.join(run, CHECKPOINTS_FOLDER, f"{_STEP_PREFIX}{step:08d}")


def checkpoint_path(run: str, step: int) -> Path:
    """Return the folder of a checkpoint of a local run."""
    return Path(location(run, step))


def steps_saved(run: str) -> list[int]:
    """Return the steps that have a published checkpoint, oldest first. `run` may be a URL."""
    names = storage.names(storage.join(run, CHECKPOINTS_FOLDER))
    steps_of_names = [_step_of(name) for name in names]
    steps = sorted(step for step in steps_of_names if step is not None)
    return [step for step in steps if _is_published(run, step)]


def _is_published(run: str, step: int) -> bool:
    return storage.exists(storage.join(location(run, step), MANIFEST))


def without_manifest(run: str) -> list[Path]:
    """Return the folders of a local run that have a checkpoint's name but no manifest.

    A save never leaves such a folder, so someone removed the manifest or copied only part of the folder.
    """
    folders = sorted(Path(run, CHECKPOINTS_FOLDER).glob(f"{_STEP_PREFIX}*"))
    checkpoints = [path for path in folders if _step_of(path.name) is not None]
    return [path for path in checkpoints if not (path / MANIFEST).exists()]


def _step_of(folder_name: str) -> int | None:
    """Return the step that a folder's name gives, or None for a partial folder or any other name."""
    if not folder_name.startswith(_STEP_PREFIX):
        return None
    digits = folder_name.removeprefix(_STEP_PREFIX)
    return int(digits) if digits.isdecimal() else None


# Evaluations, which only decide which checkpoint is the best

LOSSES_OF_BEST = ("eval_mlm_loss_masked", "eval_mlm_loss")
"""Held-out losses by which the best checkpoint is chosen, in order of preference.

80/10/10 masking leaves some tokens unchanged, and a model lowers its mean loss by copying them, so the loss at [MASK]
comes first. Objectives without [MASK] have only the mean.
"""


def best_step(run: str) -> int | None:
    """Return the step of the checkpoint with the lowest held-out loss, or None if none was evaluated.

    The loss is the first of LOSSES_OF_BEST that all evaluated checkpoints have. The earliest step wins a tie. `run` may
    be a URL.
    """
    evaluations = {step: read_evaluation(location(run, step)) for step in steps_saved(run)}
    evaluated = {step: figures for step, figures in evaluations.items() if _is_loss(figures.get("eval_mlm_loss"))}
    if not evaluated:
        return None

    def is_in_all(name: str) -> bool:
        return all(_is_loss(figures.get(name)) for figures in evaluated.values())

    loss = next(filter(is_in_all, LOSSES_OF_BEST))
    return min(evaluated, key=lambda step: (evaluated[step][loss], step))


def _is_loss(value: Any) -> bool:
    return isinstance(value, float | int) and isfinite(value)


def read_evaluation(folder: str) -> dict[str, Any]:
    """Return a checkpoint's evaluation metrics by name, or an empty dict if it was not evaluated.

    A damaged file counts as no evaluation. `folder` may be a URL.
    """
    try:
        metrics = json.loads(storage.read(storage.join(folder, EVALUATION)))
    except (DataError, UsageError, ValueError, RecursionError):
        return {}

    if not isinstance(metrics, dict):
        return {}
    return metrics if all(_is_metric(value) for value in metrics.values()) else {}


def _is_metric(value: object) -> bool:
    """Return whether a value is None, a float, or an int that a float can represent exactly, but not a boolean."""
    if value is None or type(value) is float:
        return True
    return type(value) is int and abs(value) < 1 << 53


def add_evaluation(folder: Path, metrics: dict[str, Any]) -> None:
    """Write evaluation metrics into a checkpoint, published or not. Raises StorageError."""
    with write_errors_of(folder):
        if (folder / EVALUATION).is_dir():
            shutil.rmtree(folder / EVALUATION)

        # The manifest's hash is removed first, so that the checkpoint verifies even if the write is interrupted.
        remove_entry(folder, EVALUATION)
        storage.publish(str(folder / EVALUATION), json.dumps(metrics).encode())


# Reading


def newest_sound_checkpoint(run: str) -> NewestCheckpoint | None:
    """Return the newest checkpoint that verifies, or None if nothing was ever published.

    Raises CheckpointError if there are checkpoints but none verifies: silently starting over would lose the run.
    """
    return newest_sound(run, saved_checkpoints(run), fault_of_checkpoint)


class SavedCheckpoints(NamedTuple):
    """A run's steps with a published checkpoint, oldest first, and the checkpoint folders without a manifest."""

    steps: list[int]
    unsealed: list[Path]


def saved_checkpoints(run: str) -> SavedCheckpoints:
    """Return the checkpoints of a local run, whether or not they verify."""
    return SavedCheckpoints(steps_saved(run), without_manifest(run))


def newest_sound(run: str, saved: SavedCheckpoints, fault_of: Callable[[Path], str | None]) -> NewestCheckpoint | None:
    """Return what `newest_sound_checkpoint` does, from `saved`. fault_of: what is wrong with a checkpoint, or None."""
    faults: list[str] = []
    for step in reversed(saved.steps):
        path = checkpoint_path(run, step)
        fault = fault_of(path)
        if fault is None:
            newer_unsealed = [f"{folder} has no {MANIFEST}" for folder in saved.unsealed if folder.name > path.name]
            return NewestCheckpoint(path, [*newer_unsealed, *faults])
        faults.append(fault)

    faults += [f"{folder} has no {MANIFEST}" for folder in saved.unsealed]
    if faults:
        raise CheckpointError(
            f"No checkpoint of {run} verifies: {'; '.join(faults)}. Restore the missing files, or start a new run "
            "with another run.output."
        )
    return None


def read_state(path: Path) -> TrainingState:
    """Return a checkpoint's state. Raises CheckpointError if state.json is missing or is not valid in this version."""
    try:
        return TrainingState.model_validate_json((path / STATE).read_text(encoding="utf-8"))
    except (OSError, ValidationError) as error:
        raise CheckpointError(
            f"{path / STATE} is not a state of this version: {error}. Resume with the version that wrote it."
        ) from error
