"""The checkpoints of a run at a URL: uploads and downloads them, and removes old ones.

A checkpoint at a URL is either whole, with the same files as on a disk, or in parts (parts.py), which are assembled
when it is downloaded.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection
from pathlib import Path
from time import monotonic

from fsspec.callbacks import Callback

from schemas import storage
from schemas.errors import CheckpointError, DataError
from trainer.checkpoint import layout, publication
from trainer.checkpoint.disk_errors import write_errors_of
from trainer.checkpoint.layout import EVALUATION, checkpoint_path, location, steps_saved
from trainer.checkpoint.manifest import MANIFEST, ManifestEntry, describe_file, fault_of_checkpoint, listed_files, seal
from trainer.checkpoint.parts import PartsManifest, manifest_in_parts, scatter
from trainer.distributed.watchdog import progress

DOWNLOADED = ("recipe.toml", "recipe_history.jsonl", "micro_batches.json", "unigram.json", "run_id", "metrics.jsonl")
"""Files of a run that another machine needs to resume or export it, besides a checkpoint and the vocabulary."""


def upload_checkpoint(run: str, url: str, step: int, callback: Callback | None = None) -> None:
    """Copy a checkpoint to a URL, unless the URL holds the same one.

    Raises StorageError if the URL refuses, and FileNotFoundError if the checkpoint is removed meanwhile.
    """
    source = checkpoint_path(run, step)
    target = location(url, step)
    if not is_same(url, run, step):
        manifest = (source / MANIFEST).read_bytes()
        storage.remove(target)
        for entry in listed_files(json.loads(manifest)):
            upload_file(source / entry["path"], storage.join(target, entry["path"]), callback)
        storage.publish(storage.join(target, MANIFEST), manifest)

    # An evaluation that was added to a published checkpoint is not in the manifest.
    target_evaluation = storage.join(target, EVALUATION)
    if (source / EVALUATION).exists() and not storage.exists(target_evaluation):
        upload_file(source / EVALUATION, target_evaluation)


def is_same(url: str, run: str, step: int) -> bool:
    """Return whether the URL holds the local folder's checkpoint, whole or in parts. Compares only manifests."""
    at_url = storage.join(location(url, step), MANIFEST)
    if not storage.exists(at_url):
        return False

    local_manifest = (checkpoint_path(run, step) / MANIFEST).read_bytes()
    manifest_at_url = storage.read(at_url)
    assembled_from = json.loads(local_manifest).get("assembled_from")
    return local_manifest == manifest_at_url or assembled_from == storage.sha256(manifest_at_url)


def newest_local_step(run: str) -> int:
    """Return the step of a local folder's newest checkpoint that verifies, or -1 if there is none."""
    for step in reversed(steps_saved(run)):
        if fault_of_checkpoint(checkpoint_path(run, step)) is None:
            return step
    return -1


def bring_run(url: str, run: str, step: int | None) -> list[str]:
    """Download a checkpoint, and the other files that are needed to resume or export the run.

    step: the checkpoint to download; None takes the newest that verifies.

    Returns what is wrong with newer checkpoints. Raises CheckpointError if the given checkpoint does not verify, or
    none does, and StorageError if the URL cannot be read.
    """
    faults = bring_checkpoint(url, run, step)
    _bring_other_files(url, run)
    return faults


def bring_checkpoint(url: str, run: str, step: int | None) -> list[str]:
    """Download only a checkpoint. Arguments, result and errors are those of `bring_run`."""
    candidates = [step] if step is not None else list(reversed(steps_saved(url)))
    faults: list[str] = []
    for candidate in candidates:
        fault = _bring_checkpoint(url, run, candidate)
        if fault is None:
            return faults
        faults.append(fault)

    raise CheckpointError(
        f"No checkpoint of {url} verifies: {'; '.join(faults)}. Restore the missing files, or use another run."
    )


def _bring_checkpoint(url: str, run: str, step: int) -> str | None:
    """Download and publish a checkpoint. If it does not verify, discards it and returns what is wrong with it."""
    source = location(url, step)
    partial = publication.begin(run, step)
    try:
        text = storage.read(storage.join(source, MANIFEST))
        manifest = manifest_in_parts(text, source)
    except CheckpointError:
        shutil.rmtree(partial)
        raise
    except (DataError, ValueError, RecursionError) as error:
        shutil.rmtree(partial)
        return f"{storage.join(source, MANIFEST)} cannot be read ({error!r})"

    if manifest is None:
        for name in storage.names(source):
            download_file(storage.join(source, name), partial / name)
        fault = fault_of_checkpoint(partial)
    else:
        fault = _assemble(source, partial, manifest, storage.sha256(text))

    if fault is not None:
        shutil.rmtree(partial)
        return fault.replace(str(partial), source)

    publication.publish_checkpoint(partial, checkpoint_path(run, step))
    return None


def _assemble(source: str, partial: Path, manifest: PartsManifest, manifest_sha256: str) -> str | None:
    """Download the parts of a checkpoint and assemble its files. Returns what is wrong with it, or None."""
    present = storage.names(source)
    for file in manifest.assembled:
        with write_errors_of(partial / file.path), (partial / file.path).open("wb") as target:
            target.truncate(file.bytes)

        for part in file.parts:
            if part.path not in present:
                return f"{storage.join(source, part.path)} is missing"
            downloaded = partial / part.path
            download_file(storage.join(source, part.path), downloaded)
            fault = scatter(downloaded, part, partial / file.path)
            if fault is not None:
                return storage.join(source, fault)
            downloaded.unlink()

    for name in {EVALUATION, *(whole.path for whole in manifest.files)}:
        if name in present:
            download_file(storage.join(source, name), partial / name)

    # Whole files keep the hashes of the manifest at the URL, against which `fault_of_checkpoint` checks them below. The
    # parts of assembled files have already been checked, so those files are hashed as they are.
    whole_files: list[ManifestEntry] = [
        {"path": whole.path, "bytes": whole.bytes, "sha256": whole.sha256} for whole in manifest.files
    ]
    assembled = [describe_file(partial, partial / file.path) for file in manifest.assembled]
    seal(partial, [*whole_files, *assembled], manifest_sha256)
    return fault_of_checkpoint(partial)


def _bring_other_files(url: str, run: str) -> None:
    present = storage.names(url)
    for name in DOWNLOADED:
        if name in present:
            download_file(storage.join(url, name), Path(run, name))

    for name in storage.names(storage.join(url, "vocabulary")):
        download_file(storage.join(url, "vocabulary", name), Path(run, "vocabulary", name))


def remove_unfinished(url: str, going_on: Collection[int] = ()) -> None:
    """Remove what unfinished uploads left at a URL, except for the steps in `going_on`. Call before uploads begin."""
    folder = storage.join(url, layout.CHECKPOINTS_FOLDER)
    kept = {Path(location(url, step)).name for step in [*steps_saved(url), *going_on]}
    for name in storage.names(folder):
        if name not in kept:
            storage.remove(storage.join(folder, name))


def prune_url(url: str, keep: int, passed_over: Collection[int] = (), spare_newer: bool = False) -> None:
    """Remove all but the newest `keep` checkpoints and the best one, and also what unfinished uploads left behind.

    passed_over: steps that do not verify. They stay until they are saved again, and do not count toward `keep`.
    spare_newer: keep everything newer than the newest checkpoint, because other nodes are uploading it.

    A checkpoint's manifest is removed first, so that a kill leaves nothing that looks like a checkpoint.
    """
    saved = [step for step in steps_saved(url) if step not in passed_over]
    kept_steps = {*saved[-keep:], *passed_over}
    best_step = layout.best_step(url)
    if best_step is not None:
        kept_steps.add(best_step)

    newest_name = Path(location(url, saved[-1])).name if saved else ""
    kept_names = {Path(location(url, step)).name for step in kept_steps}
    for name in storage.names(storage.join(url, layout.CHECKPOINTS_FOLDER)):
        is_being_copied = spare_newer and name > newest_name
        if name not in kept_names and not is_being_copied:
            storage.remove(storage.join(url, layout.CHECKPOINTS_FOLDER, name, MANIFEST))
            storage.remove(storage.join(url, layout.CHECKPOINTS_FOLDER, name))


# Single files


def upload_file(path: Path, url: str, callback: Callback | None = None) -> None:
    """Copy a file to a URL. Raises StorageError if the URL refuses, and FileNotFoundError if there is no such file."""
    if callback is None:
        callback = TransferProgress()
    file_system, target = storage.filesystem(url)
    with storage.storage_errors_of(url, FileNotFoundError):
        file_system.put_file(str(path), target, callback=callback)
    callback.relative_update(0)


def download_file(url: str, path: Path) -> None:
    """Copy a file from a URL, creating its local folder. Raises StorageError if the URL cannot be read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file_system, source = storage.filesystem(url)
    with storage.storage_errors_of(url):
        file_system.get_file(source, str(path), callback=TransferProgress())


class TransferProgress(Callback):
    """Reports every chunk of a transfer to the watchdog, and records the time of the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.last_advance = monotonic()

    def relative_update(self, inc: int = 1) -> None:
        super().relative_update(inc)
        self.last_advance = monotonic()
        progress()
