"""Keeps copies of remote shards on a local disk: fetched ahead, bounded in size, shared by all processes of a host.

A copy is named by its sha256, so runs, ranks and folders share copies, and a rebuilt shard is a different file. A copy
is written under a partial name, checked and renamed, so it exists completely or not at all. Whoever fetches a shard
holds its lock, which the kernel releases when the process dies; a partial file whose lock is free is abandoned.

A shard is fetched by one of two threads: the caller of `path`, which waits for it, or the background thread, which
works through the shards given to `fetch_ahead`. The shard's lock keeps these threads apart, as it does processes.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque

from schemas import storage
from schemas.errors import ClozelineError, DataError, StorageError, UsageError
from schemas.manifest import Shard
from trainer.data.shard_cache.download import FailedTryError, WrongBytesError, pieces
from trainer.data.shard_cache.files import COPY, CacheFiles

WAITS = (0.5, 1.0, 2.0, 4.0)
"""Seconds between attempts to fetch a shard; there is one more attempt than there are waits."""

READ_ATTEMPTS = 5
"""Attempts to read a copy that other processes may remove before it is opened."""

CLOSE_SECONDS = 5.0
"""How long close() waits for the background thread, which stops at the next piece of a shard."""


class ShardCache:
    """Copies of a remote folder's shards in a local folder.

    Create it in the process that uses it, because neither its thread nor a connection to a store survives a fork.
    """

    def __init__(self, folder: str, shards: list[Shard], cache: str, max_bytes: int):
        """Use the local folder `cache`, whose copies may take `max_bytes` in all, for the shards of `folder`.

        Raises UsageError if the cache cannot be used or a shard does not fit, and DataError for a bad sha256.
        """
        self._folder = folder
        self._store, self._root = storage.filesystem(folder)
        self._closing = threading.Event()
        self._copies = CacheFiles(cache, max_bytes, self._pause)

        # Errors of fetching ahead, by sha256, kept until path() raises them.
        self._failures: dict[str, Exception] = {}

        # The shards to fetch ahead. The condition guards the queue, and is notified of changes to it and of close().
        self._queue: deque[Shard] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

        for shard in shards:
            self._check(shard)
        self._copies.expect(shards)

    def path(self, shard: Shard) -> str:
        """Return the local path of a copy with the manifest's size and sha256. Waits until it has been fetched.

        Open it right away, and call this again on FileNotFoundError: if the cache is nearly full, another process may
        have removed the copy to make room. Once it is open or mapped, removing it does no harm.
        """
        with self._copies.errors():
            if not self._copies.is_complete(shard):
                with self._copies.lock(shard.sha256):
                    self._fetch_locked(shard)

        self._failures.pop(shard.sha256, None)
        return self._copies.path(shard)

    def _fetch_locked(self, shard: Shard) -> None:
        """Fetch a shard whose lock is held, unless that was done while we waited. Raises the error of a failed one."""
        failure = self._failures.pop(shard.sha256, None)
        if failure is not None:
            raise failure
        if not self._copies.is_complete(shard):
            self._download(shard)

    def read(self, shard: Shard) -> bytes:
        """Return the shard's bytes, which are fetched if there is no copy."""
        for _ in range(READ_ATTEMPTS):
            with self._copies.errors():
                data = self._copies.read(shard)
            if data is not None:
                self._failures.pop(shard.sha256, None)
                return data
            self.path(shard)
        raise UsageError(
            f"The cache {self._copies.folder} is too small for the processes that share it: copies were removed "
            "before they could be read. Increase data.cache_gigabytes."
        )

    def fetch_ahead(self, shards: list[Shard]) -> None:
        """Start fetching these shards in the background, in this order, up to the first that does not fit.

        They replace the shards of earlier calls whose fetching has not begun.
        """
        queue: deque[Shard] = deque()
        room = self._copies.window_bytes
        for shard in shards:
            room -= shard.bytes
            if room < 0:  # this shard would evict one that is needed earlier
                break
            queue.append(shard)

        with self._changed:
            self._queue = queue
            self._changed.notify_all()

        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="shard cache", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop fetching. The copies stay on disk for the next run."""
        self._closing.set()
        with self._changed:
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)

    def _pause(self, seconds: float) -> None:
        """Sleep. Raises ClosedError as soon as the cache is closed."""
        if self._closing.wait(seconds):
            raise ClosedError("the cache was closed")

    def _work(self) -> None:
        """Fetch the queue's shards until the cache is closed."""
        while True:
            shard = self._next_in_queue()
            if shard is None:
                return

            # Errors are not lost: a failed fetch is in `_failures`, and a folder that cannot be locked fails in path().
            with contextlib.suppress(ClozelineError, ClosedError), self._copies.errors():
                self._fetch_in_background(shard)

    def _next_in_queue(self) -> Shard | None:
        """Wait for the next shard to fetch. Returns None once the cache is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closing.is_set())
            if self._closing.is_set():
                return None
            return self._queue.popleft()

    def _fetch_in_background(self, shard: Shard) -> None:
        """Fetch a shard unless there is a copy, another thread or process is fetching it, or it has failed before."""
        with self._copies.lock(shard.sha256, wait=False) as locked:
            if not locked or shard.sha256 in self._failures:
                return
            if self._copies.touch(shard) == shard.bytes:
                return

            # Record a failure while the lock is held, because path() looks for it as soon as it gets the lock.
            try:
                self._download(shard)
            except Exception as error:
                self._failures[shard.sha256] = error

    def _download(self, shard: Shard) -> None:
        """Fetch a shard whose lock is held. Errors that may be temporary are retried, wrong bytes only once."""
        self._check(shard)
        wrong_bytes = 0
        for wait in (*WAITS, None):
            try:
                return self._try_once(shard)
            except FailedTryError as failure:
                if isinstance(failure, WrongBytesError):
                    wrong_bytes += 1
                if wait is None or wrong_bytes == 2 or not failure.may_pass:
                    raise self._final_error(shard, failure) from failure
                self._pause(wait)

    def _try_once(self, shard: Shard) -> None:
        """Fetch a shard. The copy is not synced to disk, because path() and read() check every copy that they find."""
        partial = self._copies.reserve(shard)
        try:
            with open(partial, "r+b") as file:
                for piece in pieces(self._store, storage.join(self._root, shard.path), shard):
                    file.write(piece)
                    self._pause(0)  # ends the download if the cache was closed
            self._copies.publish(partial, shard)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(partial)
            raise

    def _check(self, shard: Shard) -> None:
        """Raise DataError if the sha256, which becomes a file name, is not one; UsageError if the shard never fits."""
        url = storage.join(self._folder, shard.path)
        if not COPY.fullmatch(f"{shard.sha256}.arrow"):
            raise DataError(
                f"The manifest of {url} says sha256 {shard.sha256!r}, which is not a SHA-256 hash. Rebuild the folder."
            )
        if shard.bytes > self._copies.max_bytes:
            raise UsageError(
                f"{url} has {shard.bytes:,} bytes, but the cache {self._copies.folder} may hold "
                f"{self._copies.max_bytes:,}. Increase data.cache_gigabytes, so that several shards fit."
            )

    def _final_error(self, shard: Shard, failure: FailedTryError) -> DataError | StorageError:
        """Return the error to raise after the last attempt: DataError for a bad shard, StorageError for the store."""
        url = storage.join(self._folder, shard.path)
        if isinstance(failure, WrongBytesError):
            return DataError(f"{url} {failure}. Copy it again or rebuild the folder with --overwrite.")
        if isinstance(failure.__cause__, FileNotFoundError):
            return DataError(f"{url} does not exist, but its manifest names it. Copy it there or rebuild the folder.")
        if not failure.may_pass:
            return StorageError(
                f"{url}, a shard of {shard.bytes:,} bytes, cannot be read: {failure}. "
                "Check the address, the credentials, and their permission to read it."
            )
        return StorageError(
            f"{url}, a shard of {shard.bytes:,} bytes, could not be read in {len(WAITS) + 1} tries; the last one "
            f"failed with {failure}. Check the network and the store, then run the same command again."
        )


class ClosedError(RuntimeError):
    """The cache was closed while a thread was still fetching or waiting."""
