"""Checkpoints that are whole or not there: written aside, every file listed with size and sha256, then renamed.

RUN/checkpoints/step-00000100/
    manifest.json            written last; a checkpoint is trusted only when every file agrees with it
    state.json               the step, the data it belongs to, and counts that go on
    model.safetensors        all weights in float32, the optimizer's own copies
    exp_avg.safetensors      the optimizer's moments, under the names of the weights
    exp_avg_sq.safetensors
    evaluation.json          what the held-out pairs said of these weights; added later when a signal came between
Nothing in it depends on ranks or ZeRO stages, so any number of ranks goes on from it at any stage. This file is about
one process and its disk; what ranks do together is in saving.py.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from math import isfinite
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from schemas import storage
from schemas.errors import CheckpointError, DataError, StorageError, UsageError
from trainer.anomaly import AnomalyHistory
from trainer.config.changes import RecipeChange, shown
from trainer.distributed.watchdog import progress
from trainer.metrics.interval import Interval

MANIFEST, STATE, WEIGHTS, FIGURES = "manifest.json", "state.json", "model.safetensors", "evaluation.json"
FOLDER = "checkpoints"
FORMAT_VERSION = 1


class TrainingState(BaseModel):
    """Where a run is, and what it may be continued with. The position in the data is the step itself.

    updates: how many the optimizer made. loss_scale: of fp16, in DeepSpeed's names. left_out: steps of data that were
    left out in this phase because they went wrong. anomaly: what later steps are judged by. resumed_at: the steps after
    which the run resumed.

    interval: sums since the last logged line. recipe: the values of the run's recipe by their full names, as in
    "optimizer.lr". folders: the folders of pairs whose fingerprints are in the identity. changes: how the recipe
    changed at resumes.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    step: int
    tokens: int
    seconds: float
    identity: dict[str, Any]
    updates: int = 0
    loss_scale: dict[str, float] = {}
    skipped_batches: int = 0
    anomaly: AnomalyHistory = AnomalyHistory()
    resumed_at: list[int] = []
    interval: Interval = Interval()
    recipe: dict[str, Any] = {}
    folders: list[str] = []
    changes: list[RecipeChange] = []


def location(run: str, step: int) -> str:
    """A checkpoint's folder; `run` may be a URL."""
    return storage.join(run, FOLDER, f"step-{step:08d}")


def checkpoint_path(run: str, step: int) -> Path:
    return Path(location(run, step))


def steps_saved(run: str) -> list[int]:
    """Steps of the checkpoints that were published, oldest first; `run` may be a URL."""
    names = [name[5:] for name in storage.names(storage.join(run, FOLDER)) if name.startswith("step-")]
    steps = sorted(int(name) for name in names if name.isdigit())
    return [step for step in steps if storage.exists(storage.join(location(run, step), MANIFEST))]


def without_manifest(run: str) -> list[Path]:
    """Folders of a local run that have a checkpoint's name but no manifest: a save takes its name with the manifest."""
    folders = sorted(Path(run, FOLDER).glob("step-*"))
    return [path for path in folders if path.name[5:].isdigit() and not (path / MANIFEST).exists()]


def begin(run: str, step: int) -> Path:
    """A new empty folder for the files of a checkpoint. A rank of a killed run may still write into an older one."""
    target = checkpoint_path(run, step)
    partial = target.with_name(f"{target.name}.{secrets.token_hex(4)}{storage.PARTIAL}")
    with writing(partial):
        partial.mkdir(parents=True)
    return partial


def describe(folder: Path, file: Path) -> dict[str, Any]:
    """A file's entry in the manifest."""
    return {"path": str(file.relative_to(folder)), "bytes": file.stat().st_size, "sha256": _sha256(file)}


def seal(partial: Path, entries: list[dict[str, Any]]) -> None:
    """Write the manifest."""
    with writing(partial):
        text = json.dumps({"format_version": FORMAT_VERSION, "files": entries}, indent=1) + "\n"
        storage.publish(str(partial / MANIFEST), text.encode())


def publish(partial: Path, target: Path) -> None:
    """Let the folder take its name in one step. A good checkpoint of that step stays as it is.

    There is one only when the same step is saved twice, and then both are as good.
    """
    with writing(partial):
        if target.exists():
            if verify(target) is None:
                shutil.rmtree(partial)
                return
            discard(target)
        os.replace(partial, target)
        storage.sync_folder(str(target.parent))


def best(run: str) -> int | None:
    """The step whose checkpoint has the lowest loss on held-out pairs, the first of equals; None when none has one.

    `run` may be a URL.
    """
    losses = [(read_evaluation(location(run, step)).get("eval_mlm_loss"), step) for step in steps_saved(run)]
    known = [(loss, step) for loss, step in losses if loss is not None and isfinite(loss)]
    return min(known)[1] if known else None


def read_evaluation(folder: str) -> dict[str, Any]:
    """What an evaluation of a checkpoint found, by the names of the metrics; empty when there was none.

    A file of another form counts as none: it decides which checkpoint is the best and nothing else.
    """
    try:
        figures = json.loads(storage.read(storage.join(folder, FIGURES)))
    except (DataError, UsageError, ValueError, RecursionError):
        return {}

    if not isinstance(figures, dict) or not all(_is_figure(value) for value in figures.values()):
        return {}
    return figures


def _is_figure(value: object) -> bool:
    return value is None or type(value) is float or (type(value) is int and abs(value) < 1 << 53)


def add_evaluation(folder: Path, figures: dict[str, Any]) -> None:
    """Write an evaluation's figures into a checkpoint, published or not."""
    with writing(folder):
        if (folder / FIGURES).is_dir():
            shutil.rmtree(folder / FIGURES)
        _unlist(folder, FIGURES)
        storage.publish(str(folder / FIGURES), json.dumps(figures).encode())


def _unlist(folder: Path, name: str) -> None:
    """Take a file out of a manifest that lists it, before it changes: the manifest must hold at every moment."""
    if not (folder / MANIFEST).exists():
        return
    manifest = json.loads((folder / MANIFEST).read_text())
    entries = [entry for entry in manifest["files"] if entry["path"] != name]
    if len(entries) < len(manifest["files"]):
        seal(folder, entries)


def prune(run: str, keep: int) -> None:
    """Remove all but the newest `keep` whole checkpoints and the best one, and what unfinished saves left behind."""
    whole = [step for step in steps_saved(run) if verify(checkpoint_path(run, step), hashes=False) is None]
    newest_whole, good = whole[-keep:], best(run)
    for step in steps_saved(run):
        if newest_whole and step < newest_whole[0] and step != good:
            discard(checkpoint_path(run, step))
    remove_partial(run)


def discard(path: Path) -> None:
    """Remove a checkpoint, its name first: a kill half way must not leave half of one that looks published."""
    with contextlib.suppress(OSError):  # one that cannot be removed is tried again by the next save
        gone = path.with_name(f"{path.name}.{secrets.token_hex(4)}{storage.PARTIAL}")
        path.rename(gone)
        shutil.rmtree(gone)


def remove_partial(run: str) -> None:
    for path in Path(run, FOLDER).glob(f"*{storage.PARTIAL}"):
        shutil.rmtree(path, ignore_errors=True)


def verify(path: Path, hashes: bool = True) -> str | None:
    """What is wrong with a checkpoint, or None when every file is as its manifest says; without `hashes`, in size.

    Raises CheckpointError for a checkpoint of a newer format: an older one must not be taken in its place.
    """
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        if manifest["format_version"] > FORMAT_VERSION:
            raise CheckpointError(
                f"{path} has format version {manifest['format_version']}, but this Clozeline reads up to "
                f"{FORMAT_VERSION}. Upgrade it."
            )
        for entry in manifest["files"]:
            file = path / entry["path"]
            if not file.exists():
                return f"{file} is missing"
            if file.stat().st_size != entry["bytes"] or (hashes and _sha256(file) != entry["sha256"]):
                return f"{file} was cut or changed"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{path / MANIFEST} cannot be read ({error!r})"
    return None


def newest(run: str) -> tuple[Path, list[str]] | None:
    """(newest checkpoint that verifies, what was wrong with newer ones), or None when nothing was ever published.

    Raises CheckpointError when there are checkpoints but none verifies.
    """
    unsealed = without_manifest(run)
    faults: list[str] = []
    for step in reversed(steps_saved(run)):
        path = checkpoint_path(run, step)
        fault = verify(path)
        if fault is None:
            newer = [folder for folder in unsealed if folder.name > path.name]
            return path, [*(f"{folder} has no {MANIFEST}" for folder in newer), *faults]
        faults.append(fault)

    faults += [f"{folder} has no {MANIFEST}" for folder in unsealed]
    if faults:
        raise CheckpointError(
            f"No checkpoint of {run} verifies: {'; '.join(faults)}. Restore what is missing, or use another "
            "run.output to start again."
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
        f"{name} was {shown(saved.get(name))}, is {shown(now.get(name))}"
        for name in names
        if saved.get(name) != now.get(name)
    ]
    if changed:
        raise CheckpointError(
            f"{path} belongs to a run with other settings: {'; '.join(changed)}. "
            "Put them back, or give another run.output."
        )


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the disk refuses into a StorageError that names the checkpoint."""
    try:
        yield
    except (OSError, StorageError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise StorageError(f"{path} could not be written: {reason}.") from error


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what the disk refuses to read back into a StorageError that names the file."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"{path} could not be read back: {error.strerror or error}.") from error


def _sha256(path: Path) -> str:
    sha256 = hashlib.sha256()
    with path.open("rb") as file:
        while data := file.read(1 << 24):
            sha256.update(data)
            progress()
    return sha256.hexdigest()
