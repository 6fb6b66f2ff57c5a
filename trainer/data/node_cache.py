"""Immutable files that the processes of a node share in a folder: made once between them, and bounded in bytes.

    <key>.shard              a complete file
    <key>.<host>.partial     a file that is being written, with its final size from the start
    <key>.lock               held by whoever makes the file
    000...000.lock           held while files are counted, removed and renamed; never while one is made

A file is written under its partial name and renamed, so it exists completely or not at all. Locks are the kernel's
(flock), which releases them when a process dies. So a killed process leaves nothing that blocks another one or that is
taken for a complete file. Lock files and partial files that it leaves are removed when the same key is locked again, or
room is made. Other files in the folder are never touched.

Each epoch reads every file once. If they do not all fit, removing the least recently used ones would remove most of
them before their next use. So the most recently used go first, except for a window of those in use now: files that
exist when an epoch begins survive until they are read, and the rest streams through the window. With a window as large
as the cache, the least recently used go first.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

ABANDONED_SECONDS = 600.0
"""Seconds without a write after which another host's partial file is abandoned."""

FORGOTTEN_SECONDS = 3600.0
"""Seconds without use after which files that this process does not need go before any that it may need."""

SHORTEST_PAUSE = 0.002
LONGEST_PAUSE = 0.05
"""Seconds between two attempts to take a lock that is held, or to find room."""

NAME = re.compile(r"(?P<key>[0-9a-f]{64})\.(?:shard|(?P<host>.+)\.partial)")
FOLDER_LOCK = "0" * 64
HOST = os.uname().nodename

_needed: defaultdict[str, set[str]] = defaultdict(set)
"""The paths of all files that this process may use, by cache folder."""


@dataclass(frozen=True, order=True)
class CachedFile:
    """A complete file. Files sort by the time of their last use, in nanoseconds."""

    last_used: int
    size: int
    path: str


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

    @contextlib.contextmanager
    def lock(self, key: str, wait: bool = True) -> Iterator[bool]:
        """Hold the lock of a file, which excludes all other threads and processes. Yields whether it is held.

        Without `wait`, it is not if another one has it.
        """
        path = os.path.join(self.folder, f"{key}.lock")
        pause = SHORTEST_PAUSE
        handle = take_lock(path)
        while handle is None and wait:
            self._pause(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
            handle = take_lock(path)

        try:
            yield handle is not None
        finally:
            if handle is not None:
                _unlink(path)
                release_lock(handle)

    def add(self, key: str, data: bytes | memoryview) -> None:
        """Make a file, whose lock is held. Removes other files to make room. Raises OSError.

        If that is not enough, it waits for files that other processes are writing. The file may be gone right after.
        """
        partial = os.path.join(self.folder, f"{key}.{HOST}.partial")
        for left in (partial, self.path(key)):
            _unlink(left)

        pause = SHORTEST_PAUSE
        while not self._reserve(partial, memoryview(data).nbytes):
            self._pause(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        try:
            # The file is not synced to disk: readers must check what a crash of the machine may have damaged.
            with open(partial, "r+b") as file:
                file.write(data)

            # On a disk that hides the locks of other hosts, one of them may have removed the partial file.
            with self.lock(FOLDER_LOCK), contextlib.suppress(FileNotFoundError):
                os.replace(partial, self.path(key))
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(partial)
            raise

    def _reserve(self, partial: str, size: int) -> bool:
        """Create a partial file if there is room for it. Returns whether there is."""
        with self.lock(FOLDER_LOCK):
            if not self._make_room(size):
                return False
            with open(partial, "xb") as file:
                file.truncate(size)  # from now on, other processes count its full size
            return True

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
                if name["host"] is None:
                    complete.append(CachedFile(found.st_mtime_ns, found.st_size, entry.path))
                elif self._is_abandoned(name["key"], name["host"], found.st_mtime):
                    _unlink(entry.path)
                else:
                    total += found.st_size

        if total > self.max_bytes:
            return False
        total += sum(file.size for file in complete)
        for file in self._dispensable_first(sorted(complete)):
            if total <= self.max_bytes:
                break
            _unlink(file.path)
            total -= file.size
        return True

    def _is_abandoned(self, key: str, host: str, last_write: float) -> bool:
        """Return whether no process is writing a partial file any more."""
        # A shared disk may not show the locks of other hosts.
        if host != HOST:
            return time.time() - last_write > ABANDONED_SECONDS
        with self.lock(key, wait=False) as lock_was_free:
            return lock_was_free

    def _dispensable_first(self, files: list[CachedFile]) -> list[CachedFile]:
        """Return files in the order of removal. files: with the least recently used first."""
        long_ago = time.time_ns() - int(FORGOTTEN_SECONDS * 1e9)
        forgotten = []
        useful = []
        for file in files:
            is_forgotten = file.path not in _needed[self.folder] and file.last_used < long_ago
            (forgotten if is_forgotten else useful).append(file)

        # The window holds the files used last. Before them go those that this epoch used, the latest first.
        window: list[CachedFile] = []
        bytes_left = self.window_bytes
        while useful and useful[-1].size <= bytes_left:
            bytes_left -= useful[-1].size
            window.append(useful.pop())
        return forgotten + useful[::-1] + window[::-1]


def take_lock(path: str, shared: bool = False, is_folder: bool = False) -> int | None:
    """Try to lock a file, which is created if needed, or a folder. Returns its file descriptor, or None if it is taken.

    Raises FileNotFoundError if the folder does not exist, and OSError if the file system does not support locks.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY if is_folder else os.O_RDWR | os.O_CREAT
    handle = os.open(path, flags, 0o600)
    taken = False
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        # The previous holder may have removed the file after we opened it. Then we locked a file without a name, and
        # another process may lock a new file of that name.
        taken = os.path.samestat(os.fstat(handle), os.stat(path))
    except (BlockingIOError, FileNotFoundError):
        pass
    finally:
        if not taken:
            os.close(handle)
    return handle if taken else None


def release_lock(handle: int) -> None:
    """Release a lock and close its file. Closing alone does not release it if a forked process has the file open."""
    fcntl.flock(handle, fcntl.LOCK_UN)
    os.close(handle)


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):  # another process was faster
        os.unlink(path)
