"""Locks between the processes of a machine, which use flock on a file that its last holder removes.

The kernel releases a lock when its process ends, however it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os


def take_lock(path: str, shared: bool = False) -> int | None:
    """Try to lock a file, which is created if needed. Returns its file descriptor, or None if it cannot be locked now.

    Raises FileNotFoundError if its folder does not exist, and OSError if the file system does not support locks.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
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


def become_only_holder(handle: int) -> bool:
    """Turn a shared lock into an exclusive one, or lose it if there are other holders. Returns whether it worked.

    The file stays open in both cases.
    """
    # Release first: if the last two holders both kept their shared locks, neither would get the exclusive one.
    fcntl.flock(handle, fcntl.LOCK_UN)
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False
