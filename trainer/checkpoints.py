"""Checkpoints that are whole or not there: written aside, every file listed with size and sha256, then renamed.

RUN/checkpoints/step-00000100/
    manifest.json       written last; a checkpoint is trusted only when every file agrees with it
    state.json          the step, the data it belongs to, and counts that go on
    model.safetensors   all weights in float32, for export
    deepspeed/          each rank's optimizer and weights, read only by the run that wrote them
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
from pydantic import BaseModel, ConfigDict, ValidationError

from schemas import storage
from schemas.errors import CheckpointError

MANIFEST, STATE, WEIGHTS = "manifest.json", "state.json", "model.safetensors"


class TrainingState(BaseModel):
    """Where a run is, and what it may be continued with. The position in the data is the step itself.

    resumed_at: the steps after which the run was taken up again. eval_mlm_loss: on the held-out pairs at this very
    step, None where they were not measured.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    step: int
    tokens: int
    seconds: float
    identity: dict[str, Any]
    resumed_at: list[int] = []
    eval_mlm_loss: float | None = None


def checkpoint_path(run: str, step: int) -> Path:
    return Path(run) / "checkpoints" / f"step-{step:08d}"


def steps_saved(run: str) -> list[int]:
    """Steps of the checkpoints that were published, oldest first."""
    found = Path(run, "checkpoints").glob("step-*")
    return sorted(int(path.name[5:]) for path in found if path.name[5:].isdigit() and (path / MANIFEST).exists())


def save(run: str, state: TrainingState, keep: int, write: Callable[[Path], None]) -> None:
    """Let every rank `write` its files into a folder aside, then publish it and prune. A collective call."""
    target = checkpoint_path(run, state.step)
    partial = target.with_name(target.name + storage.PARTIAL)
    if dist.get_rank() == 0:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    dist.barrier()
    write(partial)
    if dist.get_rank() == 0:
        (partial / STATE).write_text(state.model_dump_json())
    dist.barrier()  # every rank's files are there now
    if dist.get_rank() == 0:
        publish(partial, target)
        prune(run, keep)
    dist.barrier()


def publish(partial: Path, target: Path) -> None:
    """List every file, sync it, and let the folder take its name in one step."""
    files = [path for path in sorted(partial.rglob("*")) if path.is_file() and path.name != MANIFEST]
    entries = [{"path": str(f.relative_to(partial)), "bytes": f.stat().st_size, "sha256": _sha256(f)} for f in files]
    for file in files:
        _sync(file)
    storage.publish(str(partial / MANIFEST), (json.dumps({"files": entries}, indent=1) + "\n").encode())
    if target.exists():  # the same step was saved before; what is there now is as good
        shutil.rmtree(target)
    os.replace(partial, target)
    storage.sync_folder(str(target.parent))


def best(run: str) -> int | None:
    """The step whose checkpoint has the lowest loss on held-out pairs, the first of equals; None when none has one."""
    losses = [(_eval_loss(checkpoint_path(run, step)), step) for step in steps_saved(run)]
    known = [(loss, step) for loss, step in losses if loss is not None]
    return min(known)[1] if known else None


def _eval_loss(path: Path) -> float | None:
    try:
        return read_state(path).eval_mlm_loss
    except CheckpointError:  # damaged; whoever wants to go on from it is told
        return None


def prune(run: str, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints and the best one, and what unfinished saves left behind."""
    for step in {*steps_saved(run)[:-keep]} - {best(run)}:
        shutil.rmtree(checkpoint_path(run, step), ignore_errors=True)
    for path in Path(run, "checkpoints").glob(f"*{storage.PARTIAL}"):
        shutil.rmtree(path, ignore_errors=True)


def verify(path: Path) -> str | None:
    """What is wrong with a checkpoint, or None when every file is as its manifest says."""
    try:
        entries = json.loads((path / MANIFEST).read_text())["files"]
        for entry in entries:
            file = path / entry["path"]
            if not file.exists():
                return f"{file} is missing"
            if file.stat().st_size != entry["bytes"] or _sha256(file) != entry["sha256"]:
                return f"{file} was cut or changed"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{path / MANIFEST} cannot be read ({error})"
    return None


def newest(run: str) -> tuple[Path, list[str]] | None:
    """(newest checkpoint that verifies, what was wrong with newer ones), or None when nothing was ever published.

    Raises CheckpointError when there are checkpoints but none verifies.
    """
    faults: list[str] = []
    for step in reversed(steps_saved(run)):
        path = checkpoint_path(run, step)
        fault = verify(path)
        if fault is None:
            return path, faults
        faults.append(fault)
    if faults:
        raise CheckpointError(
            f"No checkpoint of {run} verifies: {'; '.join(faults)}. Use another run.output to start anew."
        )
    return None


def read_state(path: Path) -> TrainingState:
    try:
        return TrainingState.model_validate_json((path / STATE).read_text())
    except (OSError, ValidationError) as error:
        raise CheckpointError(f"{path / STATE} is not a state of this version: {error}.") from error


def check_identity(path: Path, saved: dict[str, Any], now: dict[str, Any]) -> None:
    """Raises CheckpointError with every difference when a run would go on with something else than it began with."""
    names = sorted({*saved, *now})
    changed = [
        f"{name} was {saved.get(name)}, is {now.get(name)}" for name in names if saved.get(name) != now.get(name)
    ]
    if changed:
        raise CheckpointError(
            f"{path} belongs to a run with other settings: {'; '.join(changed)}. "
            "Put them back, or give another run.output."
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
