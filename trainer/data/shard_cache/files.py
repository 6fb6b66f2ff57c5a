"""The files of a cache folder: copies of shards, partial ones, and the locks between the processes that share it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterator

from schemas import storage
from schemas.errors import DataError, UsageError
from schemas.manifest import Shard
from trainer.data.shard_cache.download import SILENCE

STALE = 10 * SILENCE
"""Seconds without a write after which another host's partial file is abandoned; a live one waits SILENCE at most."""
POLL = 0.05  # seconds
COPY = re.compile(r"[0-9a-f]{64}\.arrow")
PARTIAL = re.compile(r"([0-9a-f]{64})\.(.+)\.[0-9a-f]{32}\.partial")
LOCK = re.compile(r"([0-9a-f]{64})\.lock")
ROOM = "0" * 64
"""The lock of the whole folder: held while files are counted, removed and renamed, never during a download."""
HOST = os.uname().nodename


class CacheFiles:
    """The files of a cache folder and the locks between the processes that share it; touches no other file in it."""

    def __init__(self, folder: str, most_bytes: int, pause: Callable[[float], None]):
        if not storage.is_local(folder):
            raise UsageError(f"The cache folder {folder} is not local. Name a folder on a disk of this machine.")
        self.folder, self.most_bytes, self._pause = storage.filesystem(folder)[1], most_bytes, pause
        with self.errors():
            os.makedirs(self.folder, exist_ok=True)
            with self.lock(ROOM):  # shows that the folder can be written, too
                self._remove_abandoned()

    def path(self, shard: Shard) -> str:
        return os.path.join(self.folder, f"{shard.sha256}.arrow")

    def whole(self, shard: Shard) -> bool:
        """Whether there is a copy with the manifest's size and sha256."""
        if self.touch(shard) != shard.bytes:
            return False
        try:
            with open(self.path(shard), "rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest() == shard.sha256
        except FileNotFoundError:
            return False

    def touch(self, shard: Shard) -> int | None:
        """Make a copy the most recently used one; its size, or None when there is none."""
        try:
            now = time.time_ns()  # finer than the kernel's own time of a touch
            os.utime(self.path(shard), ns=(now, now))
            return os.stat(self.path(shard)).st_size
        except FileNotFoundError:
            return None

    def reserve(self, shard: Shard) -> str:
        """A new partial file, in room made for it. Waits only for downloads of others, which all end in time."""
        partial = os.path.join(self.folder, f"{shard.sha256}.{HOST}.{uuid.uuid4().hex}.partial")
        _unlink(self.path(shard))  # a copy that is there is not whole
        while True:
            self._remove_abandoned(held=shard.sha256)
            with self.lock(ROOM):
                if self._make_room(shard.bytes):
                    with open(partial, "xb") as file:
                        file.truncate(shard.bytes)  # so that others count all of it from now on
                    return partial
            self._pause(POLL)

    def publish(self, partial: str, shard: Shard) -> None:
        with self.lock(ROOM):
            os.replace(partial, self.path(shard))

    def _make_room(self, needed: int) -> bool:
        """Remove least recently used copies until so many bytes fit; False while downloads take the room."""
        copies = sorted(self._files(COPY))
        total = needed + sum(size for _, size, _ in self._files(PARTIAL))
        if total > self.most_bytes:
            return False
        total += sum(size for _, size, _ in copies)
        for _, size, path in copies:
            if total > self.most_bytes:
                _unlink(path)
                total -= size
        return True

    def _files(self, kind: re.Pattern[str]) -> Iterator[tuple[int, int, str]]:
        """Time of last use, size and path of each of our files of a kind."""
        for entry in os.scandir(self.folder):
            if kind.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                with contextlib.suppress(FileNotFoundError):
                    yield entry.stat().st_mtime_ns, entry.stat().st_size, entry.path

    def _remove_abandoned(self, held: str = "") -> None:
        """Remove the partial files and locks that killed processes left. `held`: the shard whose lock we hold."""
        for name in os.listdir(self.folder):
            if LOCK.fullmatch(name):
                with self.lock(name.removesuffix(".lock"), wait=False):
                    pass  # giving a lock back removes its file
            elif match := PARTIAL.fullmatch(name):
                path = os.path.join(self.folder, name)
                if self._abandoned(path, match[1], match[2], held):
                    _unlink(path)

    def _abandoned(self, path: str, sha256: str, host: str, held: str) -> bool:
        if host != HOST:  # whose locks a shared disk may not show
            with contextlib.suppress(FileNotFoundError):
                return time.time() - os.stat(path).st_mtime > STALE
            return False
        if sha256 == held:
            return True
        with self.lock(sha256, wait=False) as free:
            return free

    @contextlib.contextmanager
    def lock(self, name: str, wait: bool = True) -> Iterator[bool]:
        """Hold a lock among all threads and processes; without `wait`, False when somebody else holds it."""
        path = os.path.join(self.folder, f"{name}.lock")
        while (handle := _take(path)) is None and wait:
            self._pause(POLL)
        try:
            yield handle is not None
        finally:
            if handle is not None:
                _unlink(path)
                fcntl.flock(handle, fcntl.LOCK_UN)  # closing is not enough when a fork holds the handle too
                os.close(handle)

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Errors of the cache folder as errors that a user can act on."""
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise UsageError(
                    f"The cache folder {self.folder} cannot be used: {error}. Name a folder that can be written."
                ) from error
            free = shutil.disk_usage(self.folder).free if os.path.isdir(self.folder) else 0
            raise DataError(
                f"The disk of the cache folder {self.folder} is full: {free:,} bytes are free, and the cache may hold "
                f"{self.most_bytes:,}. Free some space or allow it less, then start the same command again."
            ) from error


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):  # another process was faster
        os.unlink(path)


def _take(path: str) -> int | None:
    """The handle of a lock file that is now ours, or None. The file is only there while somebody holds it."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    ours = False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        ours = os.path.samestat(os.fstat(handle), os.stat(path))  # else it was given back after we opened it
    except (BlockingIOError, FileNotFoundError):
        pass
    finally:
        if not ours:
            os.close(handle)
    return handle if ours else None
