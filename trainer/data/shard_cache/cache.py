"""Copies of remote shards on a local disk: fetched ahead, bounded, shared by all processes of a host.

A copy is named by its sha256, so runs, ranks and folders share copies and a rebuilt shard is another file. It is
written under a partial name, checked and renamed, so it is there whole or not at all. Whoever fetches a shard holds a
lock that the kernel takes back when the process dies; that is also how a partial file tells whether it is abandoned.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque

from schemas import storage
from schemas.errors import ClozelineError, DataError, UsageError
from schemas.manifest import Shard
from trainer.data.shard_cache.download import FailedTryError, WrongBytesError, pieces
from trainer.data.shard_cache.files import COPY, CacheFiles

WAITS = (0.5, 1.0, 2.0, 4.0)
"""Seconds between the tries to fetch a shard; there is one try more than there are waits."""
ATTEMPTS = 5  # to read a copy that other processes may remove
CLOSING = 5.0
"""Seconds that close() waits for the thread, which stops at the next block."""


class ShardCache:
    """Copies of a remote folder's shards in a local folder, fetched ahead, bounded, shared between processes.

    Make one in the process that uses it: neither its thread nor a connection to a store survives a fork.
    """

    def __init__(self, folder: str, shards: list[Shard], cache: str, most_bytes: int):
        self._folder = folder
        self._fs, self._root = storage.filesystem(folder)
        self._closing = threading.Event()
        self._copies = CacheFiles(cache, most_bytes, self._pause)
        self._failures: dict[str, Exception] = {}
        self._wishes: deque[Shard] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        for shard in shards:
            self._check(shard)

    def path(self, shard: Shard) -> str:
        """A local path whose bytes have the manifest's size and sha256; blocks until it is there.

        Open it at once, and call again on FileNotFoundError: in a tight cache another process may have removed it
        to make room. Once it is open or mapped, removing it does no harm.
        """
        with self._copies.errors():
            if not self._copies.whole(shard):
                with self._copies.lock(shard.sha256):
                    if failure := self._failures.pop(shard.sha256, None):
                        raise failure
                    if not self._copies.whole(shard):
                        self._download(shard)
        self._failures.pop(shard.sha256, None)
        return self._copies.path(shard)

    def read(self, shard: Shard) -> bytes:
        """The shard's bytes, fetched when they are not there."""
        for _ in range(ATTEMPTS):
            with contextlib.suppress(FileNotFoundError), open(self.path(shard), "rb") as file:
                return file.read()
        raise UsageError(
            f"The cache {self._copies.folder} is too small for the processes that share it: copies were removed "
            "before they could be read. Allow it more (data.cache_gigabytes)."
        )

    def ahead(self, shards: list[Shard]) -> None:
        """Start fetching these in the background, in this order, as far as they fit; forgets earlier wishes."""
        wishes: deque[Shard] = deque()
        room = self._copies.most_bytes
        for shard in shards:
            room -= shard.bytes
            if room < 0:  # it would push out one that is needed before it
                break
            wishes.append(shard)
        with self._changed:
            self._wishes = wishes
            self._changed.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="shard cache", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop fetching. The copies stay for the next run."""
        self._closing.set()
        with self._changed:
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(CLOSING)

    def _pause(self, seconds: float) -> None:
        if self._closing.wait(seconds):
            raise ClosedError("the cache was closed")

    def _work(self) -> None:
        while (shard := self._next_wish()) is not None:
            # a folder that cannot even be locked is found to be so by path() too, which reports it
            with contextlib.suppress(ClozelineError, ClosedError), self._copies.errors():
                self._fetch_ahead(shard)

    def _next_wish(self) -> Shard | None:
        with self._changed:
            self._changed.wait_for(lambda: self._wishes or self._closing.is_set())
            return None if self._closing.is_set() else self._wishes.popleft()

    def _fetch_ahead(self, shard: Shard) -> None:
        """Fetch a shard unless it is there, is just being fetched by somebody else, or has failed already."""
        with self._copies.lock(shard.sha256, wait=False) as held:
            if not held or shard.sha256 in self._failures or self._copies.touch(shard) == shard.bytes:
                return
            try:
                self._download(shard)
            except Exception as error:  # kept while the lock is held: path() looks for it as soon as it has the lock
                self._failures[shard.sha256] = error

    def _download(self, shard: Shard) -> None:
        """Fetch a shard, whose lock is held, again and again while what went wrong may pass."""
        self._check(shard)
        wrong = 0
        for wait in (*WAITS, None):
            try:
                return self._fetch(shard)
            except FailedTryError as failure:
                wrong += isinstance(failure, WrongBytesError)
                if wait is None or wrong == 2 or not failure.may_pass:
                    raise self._given_up(shard, failure) from failure
                self._pause(wait)

    def _fetch(self, shard: Shard) -> None:
        """One try. It need not survive a power cut: path() checks every copy that it finds."""
        partial = self._copies.reserve(shard)
        try:
            with open(partial, "r+b") as file:
                for piece in pieces(self._fs, storage.join(self._root, shard.path), shard):
                    file.write(piece)
                    self._pause(0)
            self._copies.publish(partial, shard)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(partial)
            raise

    def _check(self, shard: Shard) -> None:
        url = storage.join(self._folder, shard.path)
        if not COPY.fullmatch(f"{shard.sha256}.arrow"):  # it becomes a file name
            raise DataError(f"The manifest of {url} says sha256 {shard.sha256!r}, which is none. Rebuild the folder.")
        if shard.bytes > self._copies.most_bytes:
            raise UsageError(
                f"{url} has {shard.bytes:,} bytes, but the cache {self._copies.folder} may hold "
                f"{self._copies.most_bytes:,}. Allow it more, enough for several shards."
            )

    def _given_up(self, shard: Shard, failure: FailedTryError) -> DataError:
        url = storage.join(self._folder, shard.path)
        if isinstance(failure, WrongBytesError):
            return DataError(f"{url} {failure}. Copy it again or rebuild the folder with --overwrite.")
        if isinstance(failure.__cause__, FileNotFoundError):
            return DataError(f"{url} does not exist, but its manifest names it. Copy it there or rebuild the folder.")
        if not failure.may_pass:
            return DataError(
                f"{url}, a shard of {shard.bytes:,} bytes, may not or cannot be read: {failure}. "
                "Check the address, the credentials and their right to read it."
            )
        return DataError(
            f"{url}, a shard of {shard.bytes:,} bytes, could not be read in {len(WAITS) + 1} tries; the last ended "
            f"with {failure}. Check the network and the store, then start the same command again."
        )


class ClosedError(RuntimeError):
    """close() came while there was still something to wait for."""
