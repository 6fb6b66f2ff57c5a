"""A run whose run.output is a URL: it works in a folder of this machine, and the URL follows it.

Ranks write into one file at offsets and a checkpoint takes its name by a rename; object stores can do neither. So every
run works in a folder. After each checkpoint a thread copies what is new to the URL, a checkpoint's manifest last, so
what lies there is a run folder like any other: whole checkpoints, and parts that nobody reads. A run that begins goes
on from the newest checkpoint that verifies, there or here.
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
from trainer.checkpoint import layout as checkpoints
from trainer.checkpoint.layout import FIGURES, MANIFEST, location
from trainer.checkpoint.run_dir import LOCK
from trainer.distributed.watchdog import progress

BESIDE = ("recipe.toml", "recipe_history.jsonl", "run_id", "metrics.jsonl", "report.html", "vocabulary", "tensorboard")
"""What a run folder holds besides checkpoints, and others may want to see."""


class RemoteRun:
    """The URL of a run and the folder it works in. One rank has one."""

    def __init__(self, url: str, folder: str, keep: int, patience: float = 600.0):
        """patience: seconds without a byte sent after which the last copy is given up."""
        self._patience = patience
        self._callback = _Progress()
        self._url, self._folder, self._keep = url, folder, keep
        self._sent: dict[str, int] = {}  # when a file beside the checkpoints last changed, at its last copy
        self._wanted, self._closing, self._failed = Event(), False, ""
        self._thread = Thread(target=self._work, name="remote run", daemon=True)

    def fetch(self) -> None:
        """Bring the newest checkpoint and the metrics, when there is a newer one than here, and begin to follow.

        Raises StorageError when the URL cannot be read or written, CheckpointError when no checkpoint there verifies.
        """
        with storage.storage_errors_of(self._url):
            put(Path(self._folder, LOCK), storage.join(self._url, LOCK))  # tells who runs, and that it can be written
            there = max(checkpoints.steps_saved(self._url), default=-1)
            if there > newest_here(self._folder):
                for fault in bring_run(self._url, self._folder, None):
                    print(f"Passed over a checkpoint: {fault}.", flush=True)
                print(f"Brought step {newest_here(self._folder)} of {self._url} to {self._folder}.", flush=True)
        self._thread.start()

    def follow(self) -> None:
        """Copy what is new, in the background."""
        self._wanted.set()

    def close(self) -> None:
        """Wait until all is copied. Raises StorageError when it could not be, or when nothing moves for too long."""
        print(f"Copying what is new to {self._url}.", flush=True)
        self._closing = True
        self._wanted.set()
        self._callback.last = monotonic()
        while self._thread.is_alive():
            self._thread.join(min(1.0, self._patience))
            if self._thread.is_alive() and monotonic() - self._callback.last > self._patience:
                self._failed = f"{self._url} has taken nothing for engine.timeout_seconds."
                break
        if self._failed:
            raise StorageError(
                f"{self._failed} What is missing there lies in {self._folder}; the same command copies it."
            )

    def _work(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            last = self._closing
            self._copy()
            if last:
                return

    def _copy(self) -> None:
        try:
            with storage.storage_errors_of(self._url):
                self._send_beside()
                there = checkpoints.steps_saved(self._url)
                for step in checkpoints.steps_saved(self._folder):
                    if step in there or step > max(there, default=-1):  # else it was there and is no longer kept
                        self._send(step)
                prune(self._url, self._keep)
            self._failed = ""
        except ClozelineError as error:
            self._failed = str(error)
            print(f"{error} Training continues, and the next checkpoint tries again.", flush=True)

    def _send(self, step: int) -> None:
        try:
            send_checkpoint(self._folder, self._url, step, self._callback)
        except FileNotFoundError:
            if step in checkpoints.steps_saved(self._folder):  # else a newer one has taken its place meanwhile
                raise

    def _send_beside(self) -> None:
        paths = [path for name in BESIDE for path in [Path(self._folder, name), *Path(self._folder, name).rglob("*")]]
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                changed = path.stat().st_mtime_ns
                if path.is_file() and self._sent.get(str(path)) != changed:
                    put(path, storage.join(self._url, path.relative_to(self._folder).as_posix()), self._callback)
                    self._sent[str(path)] = changed


def send_checkpoint(run: str, url: str, step: int, callback: Callback | None = None) -> None:
    """Copy a whole checkpoint to a URL, unless it is there."""
    here, there = checkpoints.checkpoint_path(run, step), location(url, step)
    manifest = (here / MANIFEST).read_bytes()
    remote_manifest = storage.join(there, MANIFEST)
    if not (storage.exists(remote_manifest) and storage.read(remote_manifest) == manifest):
        storage.remove(there)
        for entry in json.loads(manifest)["files"]:
            put(here / entry["path"], storage.join(there, entry["path"]), callback)
        storage.publish(remote_manifest, manifest)
    if (here / FIGURES).exists() and not storage.exists(storage.join(there, FIGURES)):
        put(here / FIGURES, storage.join(there, FIGURES))


def newest_here(run: str) -> int:
    """The step of the newest checkpoint that verifies in a local folder; -1 when there is none."""
    steps = reversed(checkpoints.steps_saved(run))
    return next((step for step in steps if checkpoints.verify(checkpoints.checkpoint_path(run, step)) is None), -1)


def bring_run(url: str, run: str, step: int | None) -> list[str]:
    """Copy a checkpoint, by default the newest that verifies, and what lies beside checkpoints into a local folder.

    Returns what was wrong with newer ones. Raises CheckpointError when none of those asked for verifies.
    """
    faults = []
    for candidate in [step] if step is not None else reversed(checkpoints.steps_saved(url)):
        partial = checkpoints.begin(run, candidate)
        for name in storage.names(location(url, candidate)):
            get(storage.join(location(url, candidate), name), partial / name)
        fault = checkpoints.verify(partial)
        if fault is None:
            checkpoints.publish(partial, checkpoints.checkpoint_path(run, candidate))
            break
        shutil.rmtree(partial)
        faults.append(fault.replace(str(partial), location(url, candidate)))
    else:
        raise CheckpointError(f"No checkpoint of {url} verifies: {'; '.join(faults)}. Give another run.")
    for name in {"recipe.toml", "recipe_history.jsonl", "run_id", "metrics.jsonl"} & {*storage.names(url)}:
        get(storage.join(url, name), Path(run, name))
    for name in storage.names(storage.join(url, "vocabulary")):
        get(storage.join(url, "vocabulary", name), Path(run, "vocabulary", name))
    return faults


def prune(url: str, keep: int) -> None:
    """Leave the newest `keep` checkpoints and the best one, and no parts of others. A manifest goes first."""
    saved = checkpoints.steps_saved(url)
    kept = {*saved[-keep:], checkpoints.best(url)}
    for name in storage.names(storage.join(url, checkpoints.FOLDER)):
        if name not in {Path(location(url, step)).name for step in kept if step is not None}:
            storage.remove(storage.join(url, checkpoints.FOLDER, name, MANIFEST))
            storage.remove(storage.join(url, checkpoints.FOLDER, name))


def put(path: Path, url: str, callback: Callback | None = None) -> None:
    """Raises StorageError when the URL refuses, FileNotFoundError when there is no such file here."""
    fs, there = storage.filesystem(url)
    callback = callback or _Progress()
    with storage.storage_errors_of(url, FileNotFoundError):
        fs.put_file(str(path), there, callback=callback)
    callback.relative_update(0)


def get(url: str, path: Path) -> None:
    """Raises StorageError when the URL cannot be read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fs, there = storage.filesystem(url)
    with storage.storage_errors_of(url):
        fs.get_file(there, str(path), callback=_Progress())


class _Progress(Callback):
    """Tells the watchdog of every chunk that arrives, and when the last one did."""

    def __init__(self) -> None:
        super().__init__()
        self.last = monotonic()

    def relative_update(self, inc: int = 1) -> None:
        super().relative_update(inc)
        self.last = monotonic()
        progress()
