"""The folder in shared memory through which the ranks of one run share decoded shards on one node.

    /dev/shm/clozeline-<user>-<run>/users         every rank that uses the folder holds a shared lock on this file
    /dev/shm/clozeline-<user>-<run>/<block>/      one block: see node_blocks.py

The last rank to leave removes the folder. A killed run leaves it behind; the next start of any run of the same user
removes every folder that is not in use.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import time

from trainer.data.file_locks import become_only_holder, release_lock, take_lock

SHARED_MEMORY = "/dev/shm"
"""A file system in memory, on Linux. Containers get 64 MB of it by default."""

USERS = "users"
"""The file in a folder on which every user of the folder holds a shared lock."""

PREFIX = "clozeline-"
ENTER_SECONDS = 10.0
LOCK_POLL_SECONDS = 0.005

FREE_SHARE = 4
FREE_BYTES = 4 * 10**9
"""1 / FREE_SHARE of shared memory stays free, or FREE_BYTES if that is less, because NCCL and gloo use it, too."""


class NodeFolder:
    """One run's folder in shared memory, in use until `close`."""

    def __init__(self, run: str, root: str):
        """Enter the folder of `run`, which may be any name, in the file system `root`. Removes what killed runs left.

        Raises OSError if `root` does not exist or does not support locks, or if other users can access the folder.
        """
        user = os.getuid()
        remove_abandoned(root, f"{PREFIX}{user}-")

        run_hash = hashlib.sha256(run.encode()).hexdigest()[:16]
        self._root = root
        self.path = os.path.join(root, f"{PREFIX}{user}-{run_hash}")
        self._users = enter(self.path)
        try:
            check_private(self.path)
        except OSError:
            release_lock(self._users)
            raise

    def has_room(self, needed: int) -> bool:
        """Return whether `needed` bytes fit and leave enough shared memory free."""
        space = os.statvfs(self._root)
        free = space.f_bavail * space.f_frsize
        total = space.f_blocks * space.f_frsize
        return free - needed >= min(total // FREE_SHARE, FREE_BYTES)

    def describe_room(self) -> str:
        """Return how much shared memory there is, in words."""
        space = os.statvfs(self._root)
        free = space.f_bavail * space.f_frsize
        total = space.f_blocks * space.f_frsize
        return f"{self._root} has {free / 1e6:,.0f} MB free of {total / 1e6:,.0f} MB"

    def close(self) -> None:
        """Leave the folder, and remove it if nobody else uses it."""
        leave(self.path, self._users)


def enter(path: str) -> int:
    """Create a folder if needed and hold a shared lock on its `users` file. Returns the lock's file descriptor.

    Raises OSError: a TimeoutError if another process has been removing the folder for ENTER_SECONDS.
    """
    deadline = time.monotonic() + ENTER_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)

        # The folder may be removed between any two of these calls; then it is created again.
        with contextlib.suppress(FileNotFoundError):
            handle = take_lock(os.path.join(path, USERS), shared=True)
            if handle is not None:
                return handle
        time.sleep(LOCK_POLL_SECONDS)
    raise TimeoutError(f"{path} has been locked for {ENTER_SECONDS:g} seconds")


def leave(path: str, handle: int) -> None:
    """Release the lock that `enter` returned, and remove the folder if nobody else holds one."""
    try:
        if become_only_holder(handle):
            remove_content(path)
    finally:
        release_lock(handle)


def remove_content(path: str) -> None:
    """Remove a folder on whose `users` file we hold the exclusive lock. That file is removed last."""
    for entry in os.scandir(path):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)
        elif entry.name != USERS:
            os.unlink(entry.path)
    os.unlink(os.path.join(path, USERS))

    # The folder is not empty if another process has entered it since, because that creates a new `users` file.
    with contextlib.suppress(OSError):
        os.rmdir(path)


def remove_abandoned(root: str, prefix: str) -> None:
    """Remove the folders of `root` whose names begin with `prefix` and that nobody uses."""
    for entry in os.scandir(root):
        if not entry.name.startswith(prefix) or not entry.is_dir(follow_symlinks=False):
            continue
        with contextlib.suppress(FileNotFoundError, PermissionError):
            handle = take_lock(os.path.join(entry.path, USERS))
            if handle is None:
                continue
            try:
                remove_content(entry.path)
            finally:
                release_lock(handle)


def check_private(path: str) -> None:
    """Raise PermissionError unless only this user can access the folder, because ranks trust what they find there."""
    found = os.lstat(path)
    is_private = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
    if not is_private:
        raise PermissionError(f"{path} belongs to another user, or others can write into it")
