"""The folder in shared memory through which the ranks of one run share decoded shards on one node.

    /dev/shm/clozeline-<user>-<run>/users         locked, shared, by every rank that uses the folder
    /dev/shm/clozeline-<user>-<run>/<block>/      one block: see node_blocks.py

Whoever leaves last removes the folder. A killed run leaves it behind; the next start of any run of the same user
removes every folder that nobody uses.
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
"""A file system in memory. Linux has it; containers have 64 MB of it unless told otherwise."""

USERS = "users"
"""The file in a folder on which those who use it hold a shared lock."""

PREFIX = "clozeline-"
ENTER_SECONDS = 10.0
LOCK_POLL_SECONDS = 0.005

FREE_SHARE = 4
FREE_BYTES = 4 * 10**9
"""A quarter of shared memory stays free, or 4 GB if that is less: NCCL and gloo exchange their data there, too."""


class NodeFolder:
    """One run's folder in shared memory, in use until `close`."""

    def __init__(self, run: str, root: str):
        """Enter the folder of `run`, any name, in the file system `root`. Removes there what killed runs have left.

        Raises OSError if there is no such file system, if it knows no locks, or if others can write to the folder.
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
        """Return whether `needed` bytes fit and leave free what must stay free."""
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
    """Create a folder if need be and hold a shared lock on its `users` file. Returns the lock's handle.

    Raises OSError, a TimeoutError if somebody has been removing the folder for ENTER_SECONDS.
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
    """Remove a folder whose `users` file we have locked for us alone; that file goes last."""
    for entry in os.scandir(path):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)
        elif entry.name != USERS:
            os.unlink(entry.path)
    os.unlink(os.path.join(path, USERS))

    # It is not empty if somebody has entered since: a new `users` file lies there.
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
    """Raise PermissionError unless the folder is this user's alone, because ranks trust what they find there."""
    found = os.lstat(path)
    is_private = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
    if not is_private:
        raise PermissionError(f"{path} belongs to another user, or others can write into it")
