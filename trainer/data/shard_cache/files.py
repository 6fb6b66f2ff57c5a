"""The files of a cache folder, and the locks between the processes that share it.

    <sha256>.arrow                         a complete copy of a shard
    <sha256>.<host>.<random>.partial       a copy that is being written, with its final size from the start
    <sha256>.lock                          held while that shard is fetched
    000...000.lock                         held while files are counted, removed and renamed; never during a download

A lock file exists only while somebody holds it. Other files in the folder are never touched.

Each epoch reads every shard once. If the corpus is larger than the cache, evicting the least recently used copies
would remove most of them before their next use. So the most recently used go first, except for a small window of
those in use now: copies that exist when an epoch begins survive until they are read, and the rest streams through it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from schemas import storage
from schemas.errors import StorageError, UsageError
from schemas.manifest import Shard
from trainer.data.file_locks import release_lock, take_lock
from trainer.data.shard_cache.download import STORE_TIMEOUT

ABANDONED_SECONDS = 10 * STORE_TIMEOUT
"""Seconds without a write after which another host's partial file is abandoned. Live ones wait up to STORE_TIMEOUT."""

WINDOW_SHARDS = 32
"""The size of the window, in shards of the largest size: four blocks that are being fetched or read, or just were."""

FORGOTTEN_SECONDS = 3600.0
"""Seconds without use after which the copies of other corpora are evicted before any that this process may use."""

LOCK_POLL_SECONDS = 0.05
COPY = re.compile(r"[0-9a-f]{64}\.arrow")
PARTIAL_NAME = re.compile(r"([0-9a-f]{64})\.(.+)\.[0-9a-f]{32}\.partial")
LOCK_NAME = re.compile(r"([0-9a-f]{64})\.lock")
HOST = os.uname().nodename

FOLDER_LOCK = "0" * 64
"""The name of the lock on the whole folder."""

_needed: defaultdict[str, set[str]] = defaultdict(set)
"""The paths of all copies that this process may use, of any corpus, by cache folder."""


@dataclass(frozen=True, order=True)
class CachedFile:
    """A copy or partial file. Files sort by the time of their last use, in nanoseconds."""

    last_used: int
    size: int
    path: str


class CacheFiles:
    """The files of a cache folder, which take at most `max_bytes` in all.

    pause: called with seconds to sleep while waiting for a lock or for room; it raises an exception to give up.
    """

    def __init__(self, folder: str, max_bytes: int, pause: Callable[[float], None]):
        """Create the folder if needed, and remove what killed processes left. Raises UsageError or StorageError."""
        if not storage.is_local(folder):
            raise UsageError(f"The cache folder {folder} is not local. Give a folder on a disk of this machine.")

        _, self.folder = storage.filesystem(folder)
        self.max_bytes = max_bytes
        self.window_bytes = max_bytes
        self._pause = pause

        with self.errors():
            os.makedirs(self.folder, exist_ok=True)
            with self.lock(FOLDER_LOCK):  # also shows that the folder can be written
                self._remove_abandoned()

    def expect(self, shards: list[Shard]) -> None:
        """Prepare for the shards of one corpus, which are read in any order and about equally often."""
        largest = max((shard.bytes for shard in shards), default=0)
        self.window_bytes = min(self.max_bytes, WINDOW_SHARDS * largest)
        _needed[self.folder].update(self.path(shard) for shard in shards)

    def path(self, shard: Shard) -> str:
        """Return the path of a shard's copy, whether there is one or not."""
        return os.path.join(self.folder, f"{shard.sha256}.arrow")

    def is_complete(self, shard: Shard) -> bool:
        """Return whether there is a copy with the manifest's size and sha256."""
        if self.touch(shard) != shard.bytes:
            return False
        try:
            with open(self.path(shard), "rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest() == shard.sha256
        except FileNotFoundError:
            return False

    def read(self, shard: Shard) -> bytes | None:
        """Return the bytes of a copy; None if there is none, or not with the manifest's size and sha256."""
        if self.touch(shard) != shard.bytes:
            return None
        with contextlib.suppress(FileNotFoundError), open(self.path(shard), "rb") as file:
            data = file.read()
            return data if storage.sha256(data) == shard.sha256 else None
        return None

    def touch(self, shard: Shard) -> int | None:
        """Mark a copy as the most recently used one. Returns its size in bytes, or None if there is no copy."""
        try:
            now = time.time_ns()  # has a finer resolution than the time that the kernel would set
            os.utime(self.path(shard), ns=(now, now))
            return os.stat(self.path(shard)).st_size
        except FileNotFoundError:
            return None

    def reserve(self, shard: Shard) -> str:
        """Create a partial file for a shard whose lock is held, and return its path.

        Removes other copies to make room. If that is not enough, it waits for other downloads, which end or time out.
        """
        partial = os.path.join(self.folder, f"{shard.sha256}.{HOST}.{uuid.uuid4().hex}.partial")
        _unlink(self.path(shard))  # a copy that exists is not complete

        while True:
            self._remove_abandoned(held=shard.sha256)
            with self.lock(FOLDER_LOCK):
                if self._make_room(shard.bytes):
                    with open(partial, "xb") as file:
                        file.truncate(shard.bytes)  # from now on, other processes count its full size
                    return partial
            self._pause(LOCK_POLL_SECONDS)

    def publish(self, partial: str, shard: Shard) -> None:
        """Turn a partial file, now complete, into the shard's copy."""
        with self.lock(FOLDER_LOCK):
            os.replace(partial, self.path(shard))

    def _make_room(self, needed: int) -> bool:
        """Remove copies until `needed` bytes fit. Returns False if downloads in progress take up too much."""
        copies = sorted(self._files(COPY))
        total = needed + sum(file.size for file in self._files(PARTIAL_NAME))
        if total > self.max_bytes:
            return False

        total += sum(file.size for file in copies)
        for file in self._dispensable_first(copies):
            if total > self.max_bytes:
                _unlink(file.path)
                total -= file.size
        return True

    def _dispensable_first(self, copies: list[CachedFile]) -> list[CachedFile]:
        """Return copies in the order of eviction. copies: with the least recently used first."""
        long_ago = time.time_ns() - int(FORGOTTEN_SECONDS * 1e9)
        forgotten = []
        useful = []
        for file in copies:
            is_forgotten = file.path not in _needed[self.folder] and file.last_used < long_ago
            (forgotten if is_forgotten else useful).append(file)

        # The window holds the copies used last. Before them go those that this epoch used, the latest first.
        window: list[CachedFile] = []
        bytes_left = self.window_bytes
        while useful and useful[-1].size <= bytes_left:
            bytes_left -= useful[-1].size
            window.append(useful.pop())
        return forgotten + useful[::-1] + window[::-1]

    def _files(self, pattern: re.Pattern[str]) -> Iterator[CachedFile]:
        """Yield the cache's files whose names match `pattern`."""
        for entry in os.scandir(self.folder):
            if pattern.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                with contextlib.suppress(FileNotFoundError):
                    yield CachedFile(entry.stat().st_mtime_ns, entry.stat().st_size, entry.path)

    def _remove_abandoned(self, held: str = "") -> None:
        """Remove the partial files and locks that killed processes left. `held`: the shard whose lock we hold."""
        for name in os.listdir(self.folder):
            if LOCK_NAME.fullmatch(name):
                with self.lock(name.removesuffix(".lock"), wait=False):
                    pass  # releasing a lock removes its file
                continue

            partial = PARTIAL_NAME.fullmatch(name)
            if partial is not None:
                sha256, host = partial.groups()
                path = os.path.join(self.folder, name)
                if self._is_abandoned(path, sha256, host, held):
                    _unlink(path)

    def _is_abandoned(self, path: str, sha256: str, host: str, held: str) -> bool:
        """Return whether no process is writing a partial file any more."""
        # A shared disk may not show the locks of other hosts.
        if host != HOST:
            with contextlib.suppress(FileNotFoundError):
                return time.time() - os.stat(path).st_mtime > ABANDONED_SECONDS
            return False

        # Whoever writes a partial file holds its shard's lock, so if we hold it, or can get it, nobody is writing.
        if sha256 == held:
            return True
        with self.lock(sha256, wait=False) as lock_was_free:
            return lock_was_free

    @contextlib.contextmanager
    def lock(self, name: str, wait: bool = True) -> Iterator[bool]:
        """Hold a lock that excludes all other threads and processes. Without `wait`, yields False if it is taken."""
        path = os.path.join(self.folder, f"{name}.lock")
        handle = take_lock(path)
        while handle is None and wait:
            self._pause(LOCK_POLL_SECONDS)
            handle = take_lock(path)

        try:
            yield handle is not None
        finally:
            if handle is not None:
                _unlink(path)
                release_lock(handle)

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Turn errors of the cache folder into errors that a user can act on."""
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise UsageError(
                    f"The cache folder {self.folder} cannot be used: {error}. Give a folder that can be written."
                ) from error

            free = shutil.disk_usage(self.folder).free if os.path.isdir(self.folder) else 0
            raise StorageError(
                f"The disk of the cache folder {self.folder} is full: {free:,} bytes are free, and the cache may hold "
                f"{self.max_bytes:,}. Free disk space or decrease data.cache_gigabytes, then run the same command "
                "again."
            ) from error


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):  # another process was faster
        os.unlink(path)
