"""Saves in the background: training continues from a copy of the weights on, while a thread writes the checkpoint.

What stops training is the copy into host memory (snapshot.py). Then each rank's thread does together with those of the
other ranks what sharded.py describes: write, read back, hash, publish. Their collective calls are made over a gloo
group of their own, because two threads cannot share one: its calls must come in the same order on every rank.

One save at a time: `wait` comes before the next one, and before anything that depends on which checkpoints exist. All
ranks call `start` and `wait` at the same places of the training loop, so no rank waits for a thread that another rank
never starts.

What ends a save early, a kill or a second interrupt, leaves the older checkpoints and a partial folder that nobody
reads. After any other error the main thread waits for the save before the process ends, because the other ranks' main
threads may be blocked while their threads can still finish. The watchdog ends that wait if a rank is lost.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import timedelta
from threading import Thread
from typing import Any

import torch.distributed as dist

from trainer.checkpoint.snapshot import HostMemory, Snapshot, copied_bytes
from trainer.distributed.collectives import collectives_over, run_on_all_ranks
from trainer.distributed.stop_agreement import open_host_group
from trainer.distributed.watchdog import working_in_background
from trainer.logs import EVERY_RANK, logger

NO_LIMIT = timedelta(days=365).total_seconds()
"""The timeout of the group's collective calls: ranks may wait while one writes to a slow disk. The watchdog ends a wait
for a rank that has died."""


class BackgroundSaves:
    """The thread that saves, on this rank. Creating and closing it are collective calls."""

    def __init__(self, enabled: bool):
        """enabled: checkpoint.background. Raises UsageError on every rank when one of them cannot connect."""
        self._enabled = enabled
        self._memory = HostMemory()
        self._thread: Thread | None = None
        self._error: BaseException | None = None

        self._group: Any = None
        if enabled and dist.get_world_size() > 1:
            run_on_all_ranks(self._connect)

    def copy(self, snapshot: Snapshot) -> Snapshot | None:
        """Return a copy of a snapshot in host memory, or None if saves are not made in the background.

        A collective call. That there is no memory for a copy is logged once. Call `wait` first.
        """
        if not self._enabled:
            return None
        if not self._memory.is_ready(snapshot):
            self._enabled = False
            logger.info(
                "There is not enough host memory for a copy of weights and moments (%s bytes on rank 0), so training "
                "stands still while checkpoints are written.",
                f"{copied_bytes(snapshot):,}",
            )
            return None
        return self._memory.copy(snapshot)

    def start(self, place: str, save: Callable[[], None]) -> None:
        """Let a thread call `save`, whose collective calls have an order of their own. Call `wait` first.

        place: what the watchdog says about the thread, as in "saving step 7".
        """
        assert self._thread is None, "one save at a time"
        self._thread = Thread(target=self._work, args=(place, save), name="checkpoint", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until no save is in progress. Raises what the last one raised."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

        error = self._error
        self._error = None
        if error is not None:
            raise error

    def close(self) -> None:
        """Wait until no save is in progress, and release the group."""
        try:
            self.wait()
        except Exception as error:
            # Whatever ends the run is about to be reported, and this must not take its place.
            logger.warning("The last checkpoint was not saved: %s", error, extra=EVERY_RANK)

        if self._group is not None:
            # If a rank was lost, its connections are gone.
            with contextlib.suppress(RuntimeError):
                dist.destroy_process_group(self._group)
            self._group = None

    def _connect(self) -> None:
        self._group = open_host_group(NO_LIMIT)

    def _work(self, place: str, save: Callable[[], None]) -> None:
        """Save, and keep an error for `wait`, where the main thread raises it."""
        try:
            with working_in_background(place), collectives_over(self._group):
                save()
        except BaseException as error:
            # Said at once: `wait` may come much later, or never if the other ranks hang in this save.
            logger.error("While %s: %s: %s", place, type(error).__name__, error, extra=EVERY_RANK)
            self._error = error
