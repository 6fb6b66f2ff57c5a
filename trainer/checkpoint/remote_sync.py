"""Keeps a run's URL up to date when run.output is a URL, and brings a run from there to another machine.

Ranks write into one file at offsets, and a checkpoint gets its name by a rename. Object stores can do neither, so every
run works in a local folder (run.local), and a thread of rank 0 copies what is new to the URL after each checkpoint:

    1. files besides the checkpoints, if they changed
    2. each new checkpoint: first the files, last its manifest, which makes it a checkpoint for readers
    3. then old checkpoints are removed from the URL, the manifest of each first

So a kill leaves complete checkpoints at the URL, and perhaps files without a manifest, which readers ignore and the
next copy removes. A copy that fails does not stop training: the next checkpoint tries again. When the run ends it waits
for the last copy.

A run that starts resumes from the newest checkpoint that verifies, at the URL or in the local folder.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path
from threading import Event, Thread
from time import monotonic

from fsspec.callbacks import Callback

from schemas import storage
from schemas.errors import CheckpointError, ClozelineError, StorageError
from trainer.checkpoint import layout
from trainer.checkpoint.layout import EVALUATION, checkpoint_path, location, steps_saved
from trainer.checkpoint.manifest import MANIFEST, fault_of_checkpoint
from trainer.checkpoint.run_dir import RUN_LOCK_FILE
from trainer.distributed.watchdog import progress
from trainer.logs import logger

UPLOADED = (
    "recipe.toml",
    "recipe_history.jsonl",
    "run_id",
    "metrics.jsonl",
    "report.html",
    "vocabulary",
    "tensorboard",
)
"""Files and folders of a run, besides its checkpoints, that are copied to the URL."""

DOWNLOADED = ("recipe.toml", "recipe_history.jsonl", "run_id", "metrics.jsonl")
"""Files of a run, besides its checkpoint and vocabulary, that another machine needs to resume or export it."""


class RemoteRun:
    """The URL of a run and the local folder that it follows. Only rank 0 copies."""

    def __init__(self, url: str, folder: str, keep: int, timeout: float = 600.0):
        """keep: as for `prune_url`. timeout: seconds without progress after which the last copy is given up."""
        self._url = url
        self._folder = folder
        self._keep = keep
        self._timeout = timeout
        self._transfers = TransferProgress()

        # By path, the modification time (ns) that a file besides the checkpoints had at its last upload.
        self._uploaded: dict[str, int] = {}

        self._work_waiting = Event()
        self._closing = False
        self._failure = ""  # why the last copy failed; empty if it did not
        self._thread = Thread(target=self._work, name="remote run", daemon=True)

    def fetch(self) -> None:
        """Download the newest checkpoint and the metrics if the URL is ahead of the local folder; start the thread.

        Raises StorageError if the URL cannot be read or written, and CheckpointError if no checkpoint there verifies.
        """
        with storage.storage_errors_of(self._url):
            # The lock file shows who runs, and uploading it shows early on that the URL can be written.
            upload_file(Path(self._folder, RUN_LOCK_FILE), storage.join(self._url, RUN_LOCK_FILE))

            newest_at_url = max(steps_saved(self._url), default=-1)
            if newest_at_url > newest_local_step(self._folder):
                faults = bring_run(self._url, self._folder, None)
                for fault in faults:
                    logger.info("Passed over a checkpoint: %s.", fault)
                step = newest_local_step(self._folder)
                logger.info("Brought step %d of %s to %s.", step, self._url, self._folder)
        self._thread.start()

    def follow(self) -> None:
        """Copy what is new, in the background."""
        self._work_waiting.set()

    def close(self) -> None:
        """Wait until everything is copied. Raises StorageError if that failed, or if nothing moved for too long."""
        logger.info("Copying what is new to %s.", self._url)
        self._closing = True
        self._work_waiting.set()

        self._transfers.last_advance = monotonic()
        while self._thread.is_alive():
            self._thread.join(min(1.0, self._timeout))
            stalled_for = monotonic() - self._transfers.last_advance
            if self._thread.is_alive() and stalled_for > self._timeout:
                self._failure = f"{self._url} has taken nothing for engine.timeout_seconds."
                break

        if self._failure:
            raise StorageError(
                f"{self._failure} What is missing there lies in {self._folder}. Run the same command again to copy it."
            )

    # In the thread

    def _work(self) -> None:
        """Copy whenever there is work. What is set while a copy runs leads to one more copy."""
        while True:
            self._work_waiting.wait()
            self._work_waiting.clear()
            is_last_copy = self._closing
            self._copy()
            if is_last_copy:
                return

    def _copy(self) -> None:
        """Bring the URL up to date. An error is kept for `close`."""
        try:
            with storage.storage_errors_of(self._url):
                self._send_other_files()
                self._send_checkpoints()
                prune_url(self._url, self._keep)
            self._failure = ""
        except ClozelineError as error:
            self._failure = str(error)
            logger.warning("%s Training continues, and the next checkpoint tries again.", error)

    def _send_checkpoints(self) -> None:
        at_url = steps_saved(self._url)
        newest_at_url = max(at_url, default=-1)

        for step in steps_saved(self._folder):
            # An older step that is not at the URL has been there and was pruned.
            if step in at_url or step > newest_at_url:
                self._send(step)

    def _send(self, step: int) -> None:
        try:
            upload_checkpoint(self._folder, self._url, step, self._transfers)
        except FileNotFoundError:
            # The run prunes its folder while this thread copies. A step that is still there should be complete.
            if step in steps_saved(self._folder):
                raise

    def _send_other_files(self) -> None:
        paths: list[Path] = []
        for name in UPLOADED:
            path = Path(self._folder, name)
            paths += [path, *path.rglob("*")]

        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                changed_at = path.stat().st_mtime_ns
                if path.is_file() and self._uploaded.get(str(path)) != changed_at:
                    name = path.relative_to(self._folder).as_posix()
                    upload_file(path, storage.join(self._url, name), self._transfers)
                    self._uploaded[str(path)] = changed_at


# Checkpoints at a URL


def upload_checkpoint(run: str, url: str, step: int, callback: Callback | None = None) -> None:
    """Copy a checkpoint to a URL, unless the URL holds the same one.

    Raises StorageError if the URL refuses, and FileNotFoundError if the checkpoint is removed meanwhile.
    """
    source = checkpoint_path(run, step)
    target = location(url, step)
    manifest = (source / MANIFEST).read_bytes()
    target_manifest = storage.join(target, MANIFEST)

    is_there = storage.exists(target_manifest) and storage.read(target_manifest) == manifest
    if not is_there:
        storage.remove(target)
        for entry in json.loads(manifest)["files"]:
            upload_file(source / entry["path"], storage.join(target, entry["path"]), callback)
        storage.publish(target_manifest, manifest)

    # An evaluation may be added to a published checkpoint; the manifest does not list it then.
    target_evaluation = storage.join(target, EVALUATION)
    if (source / EVALUATION).exists() and not storage.exists(target_evaluation):
        upload_file(source / EVALUATION, target_evaluation)


def newest_local_step(run: str) -> int:
    """Return the step of the newest checkpoint of a local folder that verifies, or -1 if there is none."""
    for step in reversed(steps_saved(run)):
        if fault_of_checkpoint(checkpoint_path(run, step)) is None:
            return step
    return -1


def bring_run(url: str, run: str, step: int | None) -> list[str]:
    """Download a checkpoint and what is needed besides it to resume or export the run.

    step: the checkpoint to take; None takes the newest that verifies.

    Returns what is wrong with newer checkpoints. Raises CheckpointError if the checkpoint, or each of them, does not
    verify, and StorageError if the URL cannot be read.
    """
    candidates = [step] if step is not None else list(reversed(steps_saved(url)))
    faults: list[str] = []
    for candidate in candidates:
        fault = _bring_checkpoint(url, run, candidate)
        if fault is None:
            _bring_other_files(url, run)
            return faults
        faults.append(fault)

    raise CheckpointError(
        f"No checkpoint of {url} verifies: {'; '.join(faults)}. Restore the missing files, or use another run."
    )


def _bring_checkpoint(url: str, run: str, step: int) -> str | None:
    """Download and publish a checkpoint. Returns what is wrong with it, if it does not verify, and drops it then."""
    source = location(url, step)
    partial = layout.begin(run, step)
    for name in storage.names(source):
        download_file(storage.join(source, name), partial / name)

    fault = fault_of_checkpoint(partial)
    if fault is not None:
        shutil.rmtree(partial)
        return fault.replace(str(partial), source)

    layout.publish_checkpoint(partial, checkpoint_path(run, step))
    return None


def _bring_other_files(url: str, run: str) -> None:
    present = storage.names(url)
    for name in DOWNLOADED:
        if name in present:
            download_file(storage.join(url, name), Path(run, name))

    for name in storage.names(storage.join(url, "vocabulary")):
        download_file(storage.join(url, "vocabulary", name), Path(run, "vocabulary", name))


def prune_url(url: str, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints and the best one, and files of unfinished copies.

    A checkpoint's manifest goes first, so that a kill leaves nothing that looks like a checkpoint.
    """
    saved = steps_saved(url)
    kept_steps = set(saved[-keep:])
    best_step = layout.best_step(url)
    if best_step is not None:
        kept_steps.add(best_step)

    kept_names = {Path(location(url, step)).name for step in kept_steps}
    for name in storage.names(storage.join(url, layout.CHECKPOINTS_FOLDER)):
        if name not in kept_names:
            storage.remove(storage.join(url, layout.CHECKPOINTS_FOLDER, name, MANIFEST))
            storage.remove(storage.join(url, layout.CHECKPOINTS_FOLDER, name))


# Single files


def upload_file(path: Path, url: str, callback: Callback | None = None) -> None:
    """Copy a file to a URL. Raises StorageError if the URL refuses, FileNotFoundError if there is no local file."""
    if callback is None:
        callback = TransferProgress()
    file_system, target = storage.filesystem(url)
    with storage.storage_errors_of(url, FileNotFoundError):
        file_system.put_file(str(path), target, callback=callback)
    callback.relative_update(0)


def download_file(url: str, path: Path) -> None:
    """Copy a file from a URL, creating its folder. Raises StorageError if the URL cannot be read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file_system, source = storage.filesystem(url)
    with storage.storage_errors_of(url):
        file_system.get_file(source, str(path), callback=TransferProgress())


class TransferProgress(Callback):
    """Reports every chunk of a transfer to the watchdog, and remembers when the last one came."""

    def __init__(self) -> None:
        super().__init__()
        self.last_advance = monotonic()

    def relative_update(self, inc: int = 1) -> None:
        super().relative_update(inc)
        self.last_advance = monotonic()
        progress()
