"""Immutable files that the processes of a node share in a folder: made once between them, and bounded in bytes.

    <key>.shard              a complete file
    <key>.partial            a file that is being written, with its final size from the start
    <key>.lock               held by whoever makes the file
    000...000.lock           held while files are counted, removed and renamed; never while one is made

A file is written under its partial name and renamed, so it exists completely or not at all. Locks are the kernel's
(flock), which releases them when a process dies. So a killed process leaves nothing that blocks another one or that is
taken for a complete file. Lock files and partial files that it leaves are removed when the same key is locked again, or
room is made. Other files in the folder are never touched.

Hosts may share the folder. Where its file system hides their locks from each other, one may remove what another one is
writing, or publish it half written. Readers check what they read, so that this costs time only.

Each epoch reads every file once. If they do not all fit, removing the least recently used ones would remove most of
them before their next use. So the most recently used go first, except for a window of those in use now: files that
exist when an epoch begins survive until they are read, and the rest streams through the window. With a window as large
as the cache, the least recently used go first.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from io import BufferedWriter

from filelock import FileLock, Timeout

FORGOTTEN_SECONDS = 3600.0
"""Seconds without use after which files that this process does not need go before any that it may need."""

PAUSE = 0.005
"""Seconds between two attempts to take a lock that is held, or to find room."""

NAME = re.compile(r"(?P<key>[0-9a-f]{64})\.(?P<kind>shard|partial)")
FOLDER_LOCK = "0" * 64

_needed: defaultdict[str, set[str]] = defaultdict(set)
"""The paths of all files that this process may use, by cache folder."""


CachedFile = tuple[int, int, str]
"""A complete file: when it was last used, in nanoseconds; its bytes; its path."""


class NodeCache:
    """The files of one folder. Keys are 64 hexadecimal digits, such as a sha256."""

    def __init__(self, folder: str, max_bytes: int, pause: Callable[[float], None]):
        """Create the folder if needed. Raises OSError if it cannot be written or does not support locks.

        max_bytes: of all files together. pause: called with seconds to sleep while waiting for a lock or for room; it
        raises an exception to give up.
        """
        self.folder = folder
        self.max_bytes = max_bytes
        self.window_bytes = max_bytes
        self._pause = pause

        os.makedirs(folder, mode=0o700, exist_ok=True)
        with self.lock(FOLDER_LOCK):
            pass

    def expect(self, keys: Iterable[str]) -> None:
        """Prepare for files that this process reads in any order and about equally often."""
        _needed[self.folder].update(self.path(key) for key in keys)

    def path(self, key: str) -> str:
        """Return the path of a file, whether it exists or not."""
        return os.path.join(self.folder, f"{key}.shard")

    def find(self, key: str) -> str | None:
        """Return the path of a file and mark it as the most recently used one; None if there is no such file.

        Another process may remove it at any time. Once it is open or mapped, that does no harm.
        """
        path = self.path(key)
        with contextlib.suppress(FileNotFoundError):
            now = time.time_ns()  # has a finer resolution than the time that the kernel would set
            os.utime(path, ns=(now, now))
            return path
        return None

    def lock(self, key: str, wait: bool = True) -> contextlib.AbstractContextManager[bool]:
        """Hold the lock of a file, as `locked` does."""
        return locked(os.path.join(self.folder, f"{key}.lock"), self._pause if wait else None)

    def add(self, key: str, data: bytes | memoryview) -> None:
        """Make a file, whose lock is held. Removes other files to make room. Raises OSError.

        If that is not enough, it waits for files that other processes are writing. The file may be gone right after.
        """
        partial = os.path.join(self.folder, f"{key}.partial")
        for left in (partial, self.path(key)):
            _unlink(left)

        while (file := self._reserve(partial, memoryview(data).nbytes)) is None:
            self._pause(PAUSE)
        try:
            # The file is not synced to disk: readers must check what a crash of the machine may have damaged.
            with file:
                file.write(data)

            # A host that does not see this one's locks may have removed the partial file.
            with self.lock(FOLDER_LOCK), contextlib.suppress(FileNotFoundError):
                os.replace(partial, self.path(key))
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(partial)
            raise

    def _reserve(self, partial: str, size: int) -> BufferedWriter | None:
        with self.lock(FOLDER_LOCK):
            if not self._make_room(size):
                return None
            file = open(partial, "wb")  # noqa: SIM115 (the caller closes it)
            file.truncate(size)  # from now on, other processes count its full size
            return file

    def _make_room(self, needed: int) -> bool:
        """Remove files until `needed` bytes fit. Returns False if files that are being written take up too much."""
        complete = []
        total = needed
        for entry in os.scandir(self.folder):
            name = NAME.fullmatch(entry.name)
            if name is None or not entry.is_file(follow_symlinks=False):
                continue
            with contextlib.suppress(FileNotFoundError):
                found = entry.stat()
                if name["kind"] == "shard":
                    complete.append((found.st_mtime_ns, found.st_size, entry.path))
                elif not self._remove_abandoned(name["key"], entry.path):
                    total += found.st_size

        if total > self.max_bytes:
            return False
        total += sum(size for _, size, _ in complete)
        for _, size, path in self._dispensable_first(sorted(complete)):
            if total <= self.max_bytes:
                break
            _unlink(path)
            total -= size
        return True

    def _remove_abandoned(self, key: str, partial: str) -> bool:
        """Remove a partial file unless a process is writing it. Returns whether it was removed."""
        with self.lock(key, wait=False) as is_abandoned:
            if is_abandoned:
                _unlink(partial)
            return is_abandoned

    def _dispensable_first(self, files: list[CachedFile]) -> list[CachedFile]:
        """Return files in the order of removal. files: with the least recently used first."""
        long_ago = time.time_ns() - int(FORGOTTEN_SECONDS * 1e9)
        forgotten = []
        useful = []
        for file in files:
            last_used, _, path = file
            is_forgotten = path not in _needed[self.folder] and last_used < long_ago
            (forgotten if is_forgotten else useful).append(file)

        # The window holds the files used last. Before them go those that this epoch used, the latest first.
        window: list[CachedFile] = []
        bytes_left = self.window_bytes
        while useful and useful[-1][1] <= bytes_left:
            bytes_left -= useful[-1][1]
            window.append(useful.pop())
        return forgotten + useful[::-1] + window[::-1]


@contextlib.contextmanager
def locked(path: str, pause: Callable[[float], None] | None) -> Iterator[bool]:
    """Hold a lock file, which excludes all other threads and processes, and is removed. Yields whether it is held.

    pause: called with seconds to sleep while another one has it; with None, it is not held then. Raises OSError.
    """
    lock = FileLock(path, fallback_to_soft=False)

    def take() -> bool:
        with contextlib.suppress(Timeout):
            lock.acquire(blocking=False)
        return lock.is_locked

    while not take() and pause is not None:
        pause(PAUSE)
    try:
        yield lock.is_locked
    finally:
        if lock.is_locked:
            _unlink(path)
            lock.release()


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):  # another process was faster
        os.unlink(path)
