"""Locks a folder, so that no two processes write into it.

FOLDER/lock is locked with flock: the system releases the lock when the process ends, however it ends. The file stays
and names the last holder.

Some file systems have no flock (Lustre mounted without -o flock, several FUSE mounts). There, FOLDER/lock.owner takes
its place: a file that its holder rewrites every few seconds, and that counts as left behind if it was not rewritten for
LEASE seconds. If such a file system delays what other machines see, or a process was frozen for longer, two runs may
hold the folder until the next heartbeat of one of them, which then ends its process.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from filelock import BaseFileLock, FileLock, LeaseCompromise, SoftFileLease, Timeout

from schemas.errors import StorageError, UsageError
from schemas.urls import too_long
from trainer.logs import logger

RUN_LOCK_FILE = "lock"
OWNER = "lock.owner"

LOCK_FILES = frozenset({RUN_LOCK_FILE, OWNER})
"""What a lock may leave in a folder."""

LEASE = 20.0
"""Seconds without a heartbeat after which the owner of a folder without flock counts as gone."""

NO_FLOCK = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP)


def hold(folder: str, flag: str) -> BaseFileLock:
    """Create a folder if it does not exist, and lock it for this process until the result is released.

    flag: names the option that chooses the folder, for messages. Raises UsageError if a live process holds it or a file
    is in its place, and StorageError if it cannot be written.
    """
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        lock = _lock(folder)
    except Timeout:
        path = Path(folder, RUN_LOCK_FILE)
        if not path.exists():  # a start that was refused has removed it since
            return hold(folder, flag)
        holder = path.read_text(encoding="utf-8").strip() or "starting"
        raise UsageError(
            f"{folder} is in use by a live run ({holder}). Stop that run first, or choose another {flag}."
        ) from None
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise UsageError(f"{flag} {folder} cannot be a folder: {error.strerror}. Choose another path.") from error
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise too_long(f"{flag} {folder}") from error
        raise StorageError(
            f"{flag} {folder} cannot be written: {error.strerror}. Check the disk and your permissions, or choose "
            "another folder."
        ) from error
    return lock


@contextlib.contextmanager
def held(output: Path) -> Iterator[None]:
    """Hold the folder that --output names until the block ends. Raises as `hold`."""
    lock = hold(str(output), "--output")
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def live_run_named(folder: str) -> Iterator[None]:
    """If ranks cannot meet in the block, and a live process holds the folder, raise the error of `hold` instead.

    Ranks whose launcher was killed train on, and keep the port.
    """
    try:
        yield
    except UsageError:
        if Path(folder, RUN_LOCK_FILE).exists():
            hold(folder, "run.output").release()
        raise


def _lock(folder: str) -> BaseFileLock:
    """Lock a folder and name this process in its lock file. Raises Timeout if a live process holds it, and OSError."""
    path = Path(folder, RUN_LOCK_FILE)
    lock: BaseFileLock = FileLock(path, thread_local=False, fallback_to_soft=False)
    try:
        lock.acquire(blocking=False)
    except OSError as error:
        if isinstance(error, Timeout) or error.errno not in NO_FLOCK:
            raise
        lock = _lease(folder, error)
    path.write_text(f"process {os.getpid()} on {socket.gethostname()}\n", encoding="utf-8")
    return lock


def _lease(folder: str, error: OSError) -> BaseFileLock:
    """Lock a folder whose file system has no flock. Raises Timeout if a live process holds it."""
    # Logged as an error so that it reaches stderr: the folder is protected less well than usual.
    logger.error(
        "the file system of %s has no flock (%s). The run holds its folder by %s instead, which it rewrites every few "
        "seconds.",
        folder,
        error.strerror,
        OWNER,
    )
    lease = SoftFileLease(Path(folder, OWNER), lease_duration=LEASE, on_compromise=_end_process, thread_local=False)
    # Long enough to see that a file that was left behind is not rewritten.
    lease.acquire(timeout=1.5 * LEASE)
    return lease


def _end_process(lost: LeaseCompromise) -> None:
    """End the process at once: two runs that write into one folder would corrupt it."""
    logger.error(
        "This run no longer holds its folder (%s: %s), so it ends before another one writes there. Its checkpoints are "
        "intact. Start one run only.",
        OWNER,
        lost.reason,
    )
    os._exit(UsageError.exit_code)
