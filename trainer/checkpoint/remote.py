"""The run at a URL: uploads its checkpoints and other files, and downloads them to another machine.

A checkpoint is published by a rename and metrics are appended to, neither of which an object store can do. So every run
works in a local folder (run.local), and copies what is new to the URL after each save:

    1. rank 0: files other than checkpoints, if they changed
    2. each rank: its own file of the checkpoint
    3. rank 0: state.json, and then the manifest, which makes it a checkpoint for readers
    4. rank 0: removes old checkpoints from the URL, the manifest of each first

A kill leaves complete checkpoints at the URL, and perhaps files without a manifest, which readers ignore and the next
save removes. What a store refuses is tried again after some seconds (DELAYS). If that does not help, training
continues and the next checkpoint is the next try, except for the last one.

A run that starts or goes back takes the newest checkpoint that verifies, at the URL or in the local folder. If both
have a checkpoint of that step, the URL's counts, because another machine may have continued the run.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path
from time import sleep
from typing import TypeVar

import torch.distributed as dist
from fsspec.callbacks import Callback

from schemas import storage
from schemas.errors import DataError, StorageError
from trainer.checkpoint.format import (
    CHECKPOINTS_FOLDER,
    EVALUATION,
    MANIFEST,
    STATE,
    best_step,
    checkpoint_path,
    fault_of_checkpoint,
    listed_files,
    location,
    steps_saved,
)
from trainer.checkpoint.rank_files import rank_file
from trainer.checkpoint.run_folder import APPENDED, FILES, NEEDED, SHARED_FOLDERS
from trainer.checkpoint.run_lock import RUN_LOCK_FILE
from trainer.checkpoint.write import discard, partial_path, publish
from trainer.config.record import RECIPE
from trainer.distributed.collectives import run_on_all_ranks, run_on_rank_0
from trainer.distributed.watchdog import progress
from trainer.logs import EVERY_RANK, LOG_FILE, logger

T = TypeVar("T")

DELAYS = (1.0, 4.0, 16.0)
"""Seconds before each further try of an upload that the store refused. Its library has tried several times by then."""


class RunUrl:
    """The URL of a run, and the local folder that is copied to it. Every rank has one."""

    def __init__(self, url: str, folder: str, keep: int):
        """keep: checkpoint.keep."""
        self.url = url
        self._lock_url = storage.join(url, RUN_LOCK_FILE)
        self._folder = folder
        self._keep = keep

        # For each file other than checkpoints, by path, its modification time (ns) at the last upload.
        self._uploaded: dict[str, int] = {}

        # Whether this process created the lock file at the URL. It is removed again if training never begins.
        self._brought_lock = False
        self._has_begun = False

    # Uploads

    def check(self) -> None:
        """Prove that the URL can be written, before training begins. One rank of each machine calls this.

        Without this check, a run with a machine that lacks credentials would train but never publish a checkpoint.
        Raises StorageError.
        """
        lock = Path(self._folder, RUN_LOCK_FILE)
        with storage.storage_errors_of(self.url):
            if dist.get_rank() == 0:
                self._brought_lock = not storage.exists(self._lock_url)
                upload_file(lock, self._lock_url)
                return
            probe = storage.join(self.url, f"rank-{dist.get_rank()}")
            upload_file(lock, probe)
            storage.remove(probe)

    def send(self, folder: Path, step: int) -> None:
        """Upload a checkpoint and what else is new. A collective call.

        folder: with the files of this rank, and on rank 0 with the other files, too.
        Raises StorageError on every rank if the store refuses the files of one of them.
        """
        run_on_rank_0(lambda: self._begin(step))
        run_on_all_ranks(lambda: self._send_files(folder, step, [rank_file(dist.get_rank())]))
        run_on_rank_0(lambda: self._send_files(folder, step, [STATE, MANIFEST]))
        run_on_rank_0(lambda: self._prune(step))

    def finish(self) -> None:
        """Upload what has changed since the last checkpoint. Rank 0 calls this at the end of a run.

        If the run was refused before training began, removes its lock file instead. Raises StorageError.
        """
        if self._brought_lock and not Path(self._folder, RECIPE).exists():
            storage.remove(self._lock_url)
            return
        logger.info("Copying what is new to %s.", self.url)
        self._send_other_files()

    def send_log(self) -> None:
        """Upload the log once more, if it is there. What the store refuses, the next start in this folder sends."""
        path = Path(self._folder, LOG_FILE)
        if str(path) in self._uploaded:
            with contextlib.suppress(StorageError, FileNotFoundError):
                upload_file(path, storage.join(self.url, LOG_FILE))

    def _begin(self, step: int) -> None:
        """Prepare a checkpoint's upload. If it replaces one, that is no checkpoint from now on."""
        self._send_other_files()
        manifest = storage.join(location(self.url, step), MANIFEST)
        trying(lambda: storage.remove(manifest))

    def _send_files(self, folder: Path, step: int, names: list[str]) -> None:
        for name in names:
            upload_file(folder / name, storage.join(location(self.url, step), name), DELAYS)

    def _send_other_files(self) -> None:
        paths: list[Path] = []
        for name in (*FILES, *SHARED_FOLDERS):
            path = Path(self._folder, name)
            paths += [path, *path.rglob("*")]
        for step in trying(lambda: steps_saved(self.url)):
            paths.append(checkpoint_path(self._folder, step) / EVALUATION)

        for path in paths:
            # Some files do not exist, and training may replace or remove others at any time.
            with contextlib.suppress(FileNotFoundError):
                changed_at = path.stat().st_mtime_ns
                if path.is_file() and self._uploaded.get(str(path)) != changed_at:
                    name = path.relative_to(self._folder).as_posix()
                    upload_file(path, storage.join(self.url, name), DELAYS)
                    self._uploaded[str(path)] = changed_at

    def _prune(self, newest: int) -> None:
        """Remove all but the newest checkpoints and the best one, and what unfinished uploads left behind.

        newest: the step that was just saved. Later ones were damaged when the run began. They stay until they are saved
        again, and do not count. A checkpoint's manifest is removed first: a kill must leave nothing that looks whole.
        """
        try:
            trying(lambda: self._remove_old(newest))
        except StorageError as error:
            logger.warning("%s Old checkpoints stay there until the next save.", error)

    def _remove_old(self, newest: int) -> None:
        saved = steps_saved(self.url)
        counted = [step for step in saved if step <= newest]
        kept_steps = {*counted[-self._keep :], *(step for step in saved if step > newest), best_step(self.url)}
        kept_names = {Path(location(self.url, step)).name for step in kept_steps if step is not None}

        folder = storage.join(self.url, CHECKPOINTS_FOLDER)
        for name in storage.names(folder):
            if name not in kept_names:
                storage.remove(storage.join(folder, name, MANIFEST))
                storage.remove(storage.join(folder, name))

    # Downloads

    def bring(self, step: int) -> str | None:
        """Download a checkpoint, unless the local folder holds the same one. Returns what is wrong with it, or None.

        One rank of each machine calls this. Raises StorageError.
        """
        path = checkpoint_path(self._folder, step)
        manifest = _manifest_at(self.url, step)
        if manifest is None:  # only the local folder has it
            return fault_of_checkpoint(path)
        is_same = (path / MANIFEST).exists() and (path / MANIFEST).read_bytes() == manifest
        if is_same and fault_of_checkpoint(path) is None:
            return None

        fault = bring_checkpoint(self.url, self._folder, step)
        if fault is None:
            logger.info("Brought step %d of %s to %s.", step, self.url, self._folder)
        return fault

    def begin_from(self, step: int) -> None:
        """Make the local folder and the URL agree when a run starts from a checkpoint. Rank 0 calls this.

        Downloads the metrics and other files up to the checkpoint, because another machine may have written them. If
        the store did not answer when an earlier run ended here, the checkpoint is only in the local folder, and is
        uploaded. A later call does nothing: by then, the local files are newer. Raises StorageError.
        """
        if self._has_begun:
            return
        self._has_begun = True
        if _manifest_at(self.url, step) is not None:
            bring_other_files(self.url, self._folder)
            return

        logger.info("Copying step %d, which an earlier run could not copy, to %s.", step, self.url)
        folder = checkpoint_path(self._folder, step)
        names = [entry["path"] for entry in listed_files((folder / MANIFEST).read_bytes(), str(folder))]
        self._begin(step)
        self._send_files(folder, step, [*names, MANIFEST])
        self._prune(step)


def bring_checkpoint(url: str, run: str, step: int) -> str | None:
    """Download and publish a checkpoint. If it does not verify, discards it and returns what is wrong with it.

    Raises CheckpointError for a checkpoint of a newer format, and StorageError.
    """
    source = location(url, step)
    path = checkpoint_path(run, step)
    partial = partial_path(path)
    try:
        manifest = storage.read(storage.join(source, MANIFEST))
        for entry in listed_files(manifest, source):
            download_file(storage.join(source, entry["path"]), partial / entry["path"])
        storage.publish(str(partial / MANIFEST), manifest)
        fault = fault_of_checkpoint(partial)
        if fault is not None:
            return fault.replace(str(partial), source)

        with contextlib.suppress(DataError):
            storage.publish(str(partial / EVALUATION), storage.read(storage.join(source, EVALUATION)))
        discard(path)
        publish(partial, path)
        return None
    except DataError as error:
        return str(error)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        return f"{storage.join(source, MANIFEST)} cannot be read ({error!r})"
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def bring_other_files(url: str, run: str) -> None:
    """Download what another machine needs besides a checkpoint. Raises StorageError.

    The log and the starts may end with lines that an earlier run here could not copy. They stay.
    """
    present = storage.names(url)
    for name in [name for name in NEEDED if name in present]:
        source, path = storage.join(url, name), Path(run, name)
        has_more = name in APPENDED and path.exists() and path.read_bytes().startswith(storage.read(source))
        if not has_more:
            download_file(source, path)
    for name in storage.names(storage.join(url, "vocabulary")):
        download_file(storage.join(url, "vocabulary", name), Path(run, "vocabulary", name))


def _manifest_at(url: str, step: int) -> bytes | None:
    try:
        return storage.read(storage.join(location(url, step), MANIFEST))
    except DataError:
        return None


# Single files


def upload_file(path: Path, url: str, delays: tuple[float, ...] = ()) -> None:
    """Copy a file to a URL, trying again after each of `delays` seconds.

    Raises StorageError if the URL refuses, and FileNotFoundError if there is no such file.
    """
    file_system, target = storage.filesystem(url)

    def put() -> None:
        with storage.storage_errors_of(url, FileNotFoundError):
            file_system.put_file(str(path), target, callback=TransferProgress())

    trying(put, delays)


def trying(act: Callable[[], T], delays: tuple[float, ...] = DELAYS) -> T:
    """Return what `act` returns, trying again after each of `delays` seconds if it raises StorageError."""
    for delay in delays:
        try:
            return act()
        except StorageError as error:
            logger.info("%s Trying again in %g s.", error, delay, extra=EVERY_RANK)
            progress()
            sleep(delay)
    return act()


def download_file(url: str, path: Path) -> None:
    """Copy a file from a URL, creating its local folder. Raises DataError if it does not exist, and StorageError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file_system, source = storage.filesystem(url)
    try:
        with storage.storage_errors_of(url, FileNotFoundError):
            file_system.get_file(source, str(path), callback=TransferProgress())
    except FileNotFoundError as error:
        raise DataError(f"{url} is missing.") from error


class TransferProgress(Callback):
    """Reports every chunk of a transfer to the watchdog."""

    def relative_update(self, inc: int = 1) -> None:
        super().relative_update(inc)
        progress()
