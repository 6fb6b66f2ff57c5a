"""Saves in the background: a thread writes the checkpoint from a copy of the weights, while training continues.

Training pauses only for the copy into host memory (snapshot.py). Then the save threads of all ranks together write,
publish and upload it (write.py, remote.py). Their collective calls use a separate gloo group, because two threads
cannot share a group: its calls must come in the same order on every rank.

There is one save at a time. Call `wait` before the next save, and before anything that depends on which checkpoints
exist. All ranks call `start` and `wait` at the same places of the training loop, so no rank waits for a thread that
another rank never starts.

A save that is cut short, by a kill or a second interrupt, leaves the older checkpoints and a partial folder that is
never read. After any other error, the main thread waits for the save before the process ends, because the other ranks'
main threads may be blocked while their save threads can still finish. The watchdog ends that wait if a rank is lost.
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
from trainer.distributed.process_group import open_host_group
from trainer.distributed.watchdog import working_in_background
from trainer.logs import EVERY_RANK, logger

NO_LIMIT = timedelta(days=365).total_seconds()
"""The timeout of the group's collective calls, in seconds. Ranks may wait for one that writes to a slow disk, and the
watchdog ends a wait for a rank that has died."""

LEFT_PINNED: list[HostMemory] = []
"""The memory of runs that failed, until the process ends. Unpinning it could wait for a device that is stuck in NCCL.
Memory that stays pinned must not be freed: copies from the device to its address would still go to the old pages."""


class BackgroundSaves:
    """This rank's saves in the background, each in its own thread. Creating and closing this are collective calls."""

    def __init__(self, enabled: bool):
        """enabled: checkpoint.background. Raises UsageError on every rank if one of them cannot connect."""
        self._enabled = enabled
        self._memory = HostMemory()
        self._thread: Thread | None = None
        self._error: BaseException | None = None

        self._group: Any = None
        if enabled and dist.get_world_size() > 1:
            self._group = open_host_group(NO_LIMIT)

    def copy(self, snapshot: Snapshot) -> Snapshot | None:
        """Return a copy of a snapshot in host memory, or None if saves are not made in the background.

        A collective call. Call `wait` first. If there is not enough memory for a copy, that is logged once, and all
        later saves are made in the foreground.
        """
        if not self._enabled:
            return None
        if not self._memory.is_ready(snapshot):
            self._enabled = False
            self._memory.free()
            logger.info(
                "There is not enough host memory for a copy of weights and moments (%s bytes on rank 0), so training "
                "stands still while checkpoints are written.",
                f"{copied_bytes(snapshot):,}",
            )
            return None
        return self._memory.copy(snapshot)

    def start(self, place: str, save: Callable[[], None]) -> None:
        """Call `save` in a new thread, with its collective calls in the separate group. Call `wait` first.

        place: how the watchdog describes what the thread does, such as "saving step 7".
        """
        assert self._thread is None, "one save at a time"
        self._thread = Thread(target=self._work, args=(place, save), name="checkpoint", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether this rank's thread is saving."""
        return self._thread is not None and self._thread.is_alive()

    def is_busy(self) -> bool:
        """Return whether a save is in progress on any rank. A collective call."""
        return any(run_on_all_ranks(lambda: self.is_running))

    def wait(self) -> None:
        """Wait until no save is in progress. Raises the error of the last save, once."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

        error = self._error
        self._error = None
        if error is not None:
            raise error

    def __enter__(self) -> BackgroundSaves:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(has_failed=kind is not None)

    def close(self, has_failed: bool = False) -> None:
        """Wait until no save is in progress, and release the group. Logs an error of the last save.

        has_failed: the run ends with an error. The memory is then kept.
        """
        try:
            self.wait()
        except Exception as error:
            # The error that ends the run is about to be reported, and this one must not replace it.
            logger.warning("The last checkpoint was not saved: %s", error, extra=EVERY_RANK)

        if has_failed:
            LEFT_PINNED.append(self._memory)
        else:
            self._memory.free()
        if self._group is not None:
            # If a rank was lost, its connections are gone.
            with contextlib.suppress(RuntimeError):
                dist.destroy_process_group(self._group)
            self._group = None

    def _work(self, place: str, save: Callable[[], None]) -> None:
        """Save. Keep an error for `wait`, where the main thread raises it."""
        try:
            with working_in_background(place), collectives_over(self._group):
                save()
        except BaseException as error:
            # Logged at once, because `wait` may come much later, or never if the other ranks hang in this save.
            logger.error("While %s: %s: %s", place, type(error).__name__, error, extra=EVERY_RANK)
            self._error = error
