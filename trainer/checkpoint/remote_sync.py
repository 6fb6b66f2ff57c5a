"""Keeps a run's URL up to date when run.output is a URL, and downloads a run from there to another machine.

Ranks write to one file at offsets, and a checkpoint is published by a rename. Object stores support neither, so every
run works in a local folder (run.local), and a thread of rank 0 copies what is new to the URL after each checkpoint:

    1. other files than checkpoints, if they changed
    2. each new checkpoint: first its files, then its manifest, which makes it a checkpoint for readers
    3. old checkpoints are removed from the URL, the manifest of each first

So a kill leaves complete checkpoints at the URL, and perhaps files without a manifest, which readers ignore and the
next copy removes. A failed copy does not stop training: the next checkpoint tries again. When the run ends, all ranks
wait for the last copy, because launchers kill the remaining ranks once one has ended.

A run that starts resumes from the newest checkpoint that verifies, at the URL or in the local folder.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from time import monotonic

from schemas import storage
from schemas.errors import ClozelineError, StorageError
from trainer.checkpoint.layout import steps_saved
from trainer.checkpoint.run_dir import RECIPE, RUN_LOCK_FILE
from trainer.checkpoint.url_checkpoints import (
    TransferProgress,
    bring_run,
    newest_local_step,
    prune_url,
    upload_checkpoint,
    upload_file,
)
from trainer.distributed.watchdog import progress
from trainer.logs import EVERY_RANK, logger

UPLOADED = (
    RECIPE,
    "recipe_history.jsonl",
    "micro_batches.json",
    "unigram.json",
    "run_id",
    "metrics.jsonl",
    "ranks.json",
    "report.html",
    "vocabulary",
    "tensorboard",
)
"""Files and folders of a run, besides its checkpoints, that are copied to the URL."""


class RemoteRun:
    """The URL of a run and the local folder that is copied to it. Only rank 0 copies."""

    def __init__(self, url: str, folder: str, keep: int, timeout: float = 600.0):
        """keep: see `prune_url`. timeout: seconds without progress after which waiting for a copy is given up."""
        self._url = url
        self._folder = folder
        self._keep = keep
        self._timeout = timeout
        self._transfers = TransferProgress()

        # For each file other than checkpoints, by path, its modification time (ns) at the last upload.
        self._uploaded: dict[str, int] = {}

        # Whether this process created the lock file at the URL. It is removed again if training never begins.
        self._brought_lock = False

        # Steps at the URL that are newer than the one that the run resumed from, because they did not verify.
        self._passed_over: set[int] = set()

        self._work_waiting = Event()
        self._settled: list[Event] = []
        self._closing = False
        self._failure = ""  # why the last copy failed; empty if it did not
        self._thread = Thread(target=self._work, name="remote run", daemon=True)

    def fetch(self) -> None:
        """Download the newest checkpoint and the metrics if the URL is ahead of the local folder. Start the thread.

        Raises StorageError if the URL cannot be read or written, and CheckpointError if it has checkpoints but none
        verifies.
        """
        with storage.storage_errors_of(self._url):
            # The lock file names the running process. Uploading it first also proves early that the URL is writable.
            self._brought_lock = not storage.exists(self._lock_url)
            upload_file(Path(self._folder, RUN_LOCK_FILE), self._lock_url)

            newest_at_url = max(steps_saved(self._url), default=-1)
            if newest_at_url > newest_local_step(self._folder):
                faults = bring_run(self._url, self._folder, None)
                for fault in faults:
                    logger.info("Passed over a checkpoint: %s.", fault)
                step = newest_local_step(self._folder)
                logger.info("Brought step %d of %s to %s.", step, self._url, self._folder)
                self._pass_over_after(step)
        self._thread.start()

    @property
    def _lock_url(self) -> str:
        return storage.join(self._url, RUN_LOCK_FILE)

    def _pass_over_after(self, step: int) -> None:
        """Remember that checkpoints at the URL after `step` are damaged, until the run saves those steps again."""
        self._passed_over = {other for other in steps_saved(self._url) if other > step}

    def follow(self) -> None:
        """Start to copy what is new, in the background."""
        self._work_waiting.set()

    def close(self) -> None:
        """Wait until everything is copied, and end the thread. A second call does nothing.

        Raises StorageError if the copy failed, or made no progress for `timeout` seconds.
        """
        if self._closing:
            return
        logger.info("Copying what is new to %s.", self._url)
        self._closing = True
        self._work_waiting.set()
        self._wait_until(lambda: not self._thread.is_alive())

    def settle(self) -> None:
        """Copy what is new and wait for it. Raises StorageError as `close` does."""
        settled = Event()
        self._settled.append(settled)
        self._work_waiting.set()
        self._wait_until(settled.is_set)

    def _wait_until(self, is_done: Callable[[], bool]) -> None:
        """Wait for the thread. Raises StorageError if its last copy failed, or made no progress for too long."""
        self._transfers.last_advance = monotonic()
        while not is_done():
            self._thread.join(min(0.2, self._timeout))
            progress()  # the timeout below applies here, not the watchdog's
            stalled_for = monotonic() - self._transfers.last_advance
            if not is_done() and stalled_for > self._timeout:
                self._failure = f"{self._url} has taken nothing for engine.timeout_seconds."
                break

        if self._failure:
            raise StorageError(f"{self._failure} {self._advice()}")

    def _advice(self) -> str:
        return f"What is missing there lies in {self._folder}. Run the same command again to copy it."

    # In the thread

    def _work(self) -> None:
        """Copy whenever `_work_waiting` is set. If it is set during a copy, one more copy follows."""
        while True:
            self._work_waiting.wait(self._look_again_after())
            self._work_waiting.clear()
            is_last_copy = self._closing
            # Take the waiting events before the copy: only what was requested by then is covered by it.
            settled, self._settled = self._settled, []
            self._copy()
            for event in settled:
                event.set()
            if is_last_copy:
                return

    def _look_again_after(self) -> float | None:
        """Return the seconds after which to copy again without a request, or None to wait for one."""
        return None

    def _copy(self) -> None:
        """Bring the URL up to date. Logs an error and keeps it for `close` and `settle`."""
        try:
            with storage.storage_errors_of(self._url):
                self._update_url()
            self._failure = ""
        except ClozelineError as error:
            self._failure = str(error)
            # Where nodes have separate folders, ranks other than 0 copy too.
            logger.warning("%s Training continues, and the next checkpoint tries again.", error, extra=EVERY_RANK)

    def _update_url(self) -> None:
        """Copy everything that is new. If the run was refused before training began, remove the lock file instead.

        Raises ClozelineError.
        """
        if self._closing and not Path(self._folder, RECIPE).exists() and self._brought_lock:
            storage.remove(self._lock_url)
            return

        self._send_other_files()
        self._send_checkpoints()
        prune_url(self._url, self._keep, self._passed_over)

    def _send_checkpoints(self) -> None:
        at_url = [step for step in steps_saved(self._url) if step not in self._passed_over]
        newest_at_url = max(at_url, default=-1)

        for step in steps_saved(self._folder):
            # An older step that is not at the URL was there before and has been pruned.
            if step in at_url or step > newest_at_url:
                self._send(step)

    def _send(self, step: int) -> None:
        try:
            upload_checkpoint(self._folder, self._url, step, self._transfers)
            self._passed_over.discard(step)
        except FileNotFoundError:
            # The run prunes its folder while this thread copies. If the step still exists, files are really missing.
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
