"""The format of a checkpoint on disk or at a URL, and how checkpoints are found.

    RUN/checkpoints/step-00000100/
        rank-00000.safetensors   the float32 weights and optimizer moments that rank 0 held; one file for each rank
        state.json               progress and facts of the run, see state.py
        manifest.json            size and SHA-256 of every file above, written last
        evaluation.json          metrics on the held-out pairs, added later if these weights were evaluated

Nothing depends on the number of ranks or the ZeRO stage that wrote a checkpoint (rank_files.py), so a run may resume
with others. What looks for checkpoints loads no torch.

A folder is a checkpoint only if all its files agree with its manifest. The evaluation is not listed there: it only
decides which checkpoint is the best, and readers treat a damaged one as missing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from schemas import storage
from schemas.errors import CheckpointError, DataError, StorageError, UsageError
from schemas.folder_kinds import EMPTY, RECIPE, RUN, what_is

if TYPE_CHECKING:
    from trainer.checkpoint.state import TrainingState

CHECKPOINTS_FOLDER = "checkpoints"
STATE = "state.json"
EVALUATION = "evaluation.json"
MANIFEST = "manifest.json"
CHECKPOINT_VERSION = 1

_STEP_PREFIX = "step-"
_HASH_CHUNK = 1 << 24  # bytes read at once


class ManifestEntry(TypedDict):
    """A file as the manifest lists it. path: relative to the checkpoint's folder."""

    path: str
    bytes: int
    sha256: str


class FoundCheckpoint(NamedTuple):
    """The newest checkpoint that verifies, its state, and what is wrong with newer ones."""

    path: Path
    state: TrainingState
    faults: list[str]


# Where checkpoints are


def location(run: str, step: int) -> str:
    """Return the folder of a checkpoint. `run` may be a URL."""
    return storage.join(run, CHECKPOINTS_FOLDER, f"{_STEP_PREFIX}{step:08d}")


def checkpoint_path(run: str, step: int) -> Path:
    """Return the folder of a checkpoint of a local run."""
    return Path(location(run, step))


def steps_saved(run: str) -> list[int]:
    """Return the steps that have a checkpoint with a manifest, oldest first. `run` may be a URL."""
    return [step for step in steps_named(run) if storage.exists(storage.join(location(run, step), MANIFEST))]


def no_checkpoint(run: str) -> UsageError:
    """Return the error for a path without checkpoints, which says what it is, if it is something else than a run."""
    if storage.is_local(run) and not Path(storage.filesystem(run)[1]).exists():
        return UsageError(f"{run} does not exist. Check the path, the run.output of a training.")
    what = what_is(run)
    is_what = f"is {what} and " if what not in ("", EMPTY, RUN) else ""
    inside = storage.join(run, "run")
    where = f" {inside} is a run." if storage.exists(storage.join(inside, RECIPE)) else ""
    return UsageError(
        f"{run} {is_what}holds no checkpoint.{where} Give the run.output of a recipe that has been trained."
    )


def steps_named(run: str) -> list[int]:
    """Return the steps that have a folder with the name of a checkpoint, oldest first. `run` may be a URL.

    A save never leaves one without a manifest in a local folder; an upload that was cut short does at a URL.
    """
    names = storage.names(storage.join(run, CHECKPOINTS_FOLDER))
    digits = [name.removeprefix(_STEP_PREFIX) for name in names if name.startswith(_STEP_PREFIX)]
    return sorted(int(step) for step in digits if step.isdecimal())


# The manifest


def manifest_of(entries: list[ManifestEntry]) -> bytes:
    """Return the content of a manifest."""
    manifest = {"format_version": CHECKPOINT_VERSION, "files": entries}
    return (json.dumps(manifest, indent=1) + "\n").encode()


def describe(file: Path) -> ManifestEntry:
    """Return a file's entry in the manifest. Reads all of the file."""
    return {"path": file.name, "bytes": file.stat().st_size, "sha256": _sha256(file)}


def listed_files(manifest: bytes, path: str) -> list[ManifestEntry]:
    """Return the entries of a manifest, given its content. path: of the checkpoint.

    Raises CheckpointError for a newer format, because falling back to an older checkpoint would lose training, and
    ValueError, KeyError, TypeError or RecursionError if it is not a manifest, or names a file outside of the
    checkpoint's folder.
    """
    content = json.loads(manifest)
    version = content["format_version"]
    if version > CHECKPOINT_VERSION:
        raise CheckpointError(
            f"{path} has format version {version}, but this Clozeline reads up to {CHECKPOINT_VERSION}. "
            "Upgrade it to resume from this checkpoint."
        )
    entries: list[ManifestEntry] = []
    for entry in content["files"]:
        if entry["path"] != Path(entry["path"]).name or entry["path"] == "..":
            raise ValueError(f"{entry['path']!r} is not the name of a file")
        entries.append({"path": entry["path"], "bytes": entry["bytes"], "sha256": entry["sha256"]})
    return entries


def fault_of_checkpoint(path: Path, share: tuple[int, int] = (0, 1)) -> str | None:
    """Return what is wrong with a checkpoint, or None if every file agrees with the manifest.

    share: (reader, readers). Of several readers, each compares the sizes of all files, but hashes only its own.
    Raises CheckpointError for a checkpoint of a newer format.
    """
    fault = fault_of_sizes(path)
    if fault is not None:
        return fault

    reader, readers = share
    for entry in listed_files((path / MANIFEST).read_bytes(), str(path))[reader::readers]:
        file = path / entry["path"]
        try:
            if _sha256(file) != entry["sha256"]:
                return f"{file} was cut or changed"
        except OSError as error:
            return f"{file} cannot be read ({error!r})"
    return None


def fault_of_sizes(path: Path) -> str | None:
    """Return what is wrong with a checkpoint's manifest or with the size of a file. Raises as `fault_of_checkpoint`."""
    if not (path / MANIFEST).exists():
        return f"{path} has no {MANIFEST}"
    try:
        for entry in listed_files((path / MANIFEST).read_bytes(), str(path)):
            file = path / entry["path"]
            if not file.exists():
                return f"{file} is missing"
            if file.stat().st_size != entry["bytes"]:
                return f"{file} was cut or changed"
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        return f"{path / MANIFEST} cannot be read ({error!r})"
    return None


def _sha256(path: Path) -> str:
    from trainer.distributed.watchdog import progress

    sha256 = hashlib.sha256()
    with path.open("rb") as file:
        while data := file.read(_HASH_CHUNK):
            sha256.update(data)
            progress()
    return sha256.hexdigest()


# Evaluations, which only decide which checkpoint is the best

EVALUATED_PAIRS = "pairs"
"""The name, in evaluation.json, of the fingerprint of the held-out pairs."""

LOSSES_OF_BEST = ("eval_mlm_loss_masked", "eval_mlm_loss")
"""Held-out losses by which the best checkpoint is chosen, in order of preference.

80/10/10 masking leaves some tokens unchanged, and a model lowers its mean loss by copying them, so the loss at [MASK]
comes first. Objectives without [MASK] have only the mean.
"""


def best_step(run: str) -> int | None:
    """Return the step of the checkpoint with the lowest held-out loss, or None if none was evaluated.

    Only checkpoints that were evaluated on the same pairs as the newest one are compared. The loss is the first of
    LOSSES_OF_BEST that all of them have. The earliest step wins a tie. `run` may be a URL.
    """
    evaluations = {step: read_evaluation(location(run, step)) for step in steps_saved(run)}
    evaluated = {step: figures for step, figures in evaluations.items() if _is_loss(figures.get("eval_mlm_loss"))}
    if not evaluated:
        return None
    pairs = evaluated[max(evaluated)].get(EVALUATED_PAIRS)
    evaluated = {step: figures for step, figures in evaluated.items() if figures.get(EVALUATED_PAIRS) == pairs}

    def is_in_all(name: str) -> bool:
        return all(_is_loss(figures.get(name)) for figures in evaluated.values())

    loss = next(filter(is_in_all, LOSSES_OF_BEST))
    return min(evaluated, key=lambda step: (evaluated[step][loss], step))


def _is_loss(value: Any) -> bool:
    return type(value) is float and isfinite(value)


def read_evaluation(folder: str) -> dict[str, Any]:
    """Return a checkpoint's evaluation metrics by name, or an empty dict if it was not evaluated.

    A damaged file counts as no evaluation. `folder` may be a URL.
    """
    try:
        metrics = json.loads(storage.read(storage.join(folder, EVALUATION)), parse_int=float)
        return {
            name: value
            for name, value in metrics.items()
            if value is None or type(value) is float or name == EVALUATED_PAIRS
        }
    except (DataError, UsageError, ValueError, AttributeError, RecursionError):
        return {}


def add_evaluation(folder: Path, metrics: dict[str, Any]) -> None:
    """Write evaluation metrics into a checkpoint's folder. Raises StorageError."""
    with write_errors_of(folder):
        storage.publish(str(folder / EVALUATION), json.dumps(metrics).encode())


# Reading


def newest_sound(run: str, steps: list[int], fault_of: Callable[[int], str | None]) -> tuple[int, list[str]]:
    """Return the newest of these steps, which ascend, whose checkpoint has no fault, and the faults of newer ones.

    Raises CheckpointError if each has a fault: silently starting over would lose the run.
    """
    faults = []
    for step in reversed(steps):
        fault = fault_of(step)
        if fault is None:
            return step, faults
        faults.append(fault)
    raise CheckpointError(
        f"No checkpoint of {run} verifies: {'; '.join(faults)}. Restore these files, or start a new run "
        "with another run.output."
    )


@contextlib.contextmanager
def write_errors_of(path: Path) -> Iterator[None]:
    """Turn an OSError or StorageError of the block into a StorageError that says that `path` could not be written."""
    try:
        yield
    except (OSError, StorageError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise StorageError(f"{path} could not be written: {reason}.") from error
