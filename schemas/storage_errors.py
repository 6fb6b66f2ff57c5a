"""What a disk or an object store refuses, as errors that a user can act on.

The system and the packages of object stores raise exceptions of their own; each function here makes one of ours of
such an exception, with the URL that was asked for, the reason and what to check.
"""

from __future__ import annotations

import errno
import os
import shutil

from schemas.errors import ClozelineError, StorageError, UsageError

FULL = (errno.ENOSPC, errno.EDQUOT)
WRONG_PATH = (errno.ELOOP, errno.ENAMETOOLONG, errno.EISDIR, errno.EINVAL)
"""Reasons for not opening a file that say something about the path and nothing about the disk."""


def unreachable(url: str, error: Exception) -> StorageError:
    """The error for an exception that the package of an object store raised."""
    return StorageError(
        f"{url} cannot be reached ({type(error).__name__}: {error}). Check the address, the credentials and the "
        "network."
    )


def refused(url: str, error: OSError) -> StorageError:
    """The error for a local path that the system neither reads nor changes."""
    reason = error.strerror or error
    return StorageError(f"{url} cannot be read or changed: {reason}. Check its permissions and the disk.")


def unreadable(url: str, error: OSError) -> ClozelineError:
    """The error for a local path that the system does not open: UsageError or StorageError, by the system's reason."""
    if error.errno in WRONG_PATH:
        return UsageError(f"{url} cannot be opened: {error.strerror}. Check the path.")
    return refused(url, error)


def unwritable(url: str, path: str, error: OSError, needed: int) -> StorageError:
    """The error for a local file of `needed` bytes that the system does not write."""
    if error.errno in FULL:
        free = shutil.disk_usage(existing_folder(os.path.dirname(path))).free
        return StorageError(
            f"The disk is full: {url} needs {needed:,} bytes and {free:,} are free. "
            "Free some space and run the same command again; finished pieces are reused."
        )

    reason = error.strerror or error
    if error.errno == errno.EEXIST:  # of makedirs, where a file stands in the folder's place
        reason = os.strerror(errno.ENOTDIR)
    return StorageError(f"{url} cannot be written: {reason}. Check the folder, or give another one.")


def check_writable(url: str, path: str) -> None:
    """Raises StorageError when a local folder could not be made or written; touches nothing.

    This sees what the system tells without a try. Some refusals, as in /proc, show only at the first file.
    """
    place = path
    while not os.path.lexists(place):
        place = os.path.dirname(place)

    if not os.path.isdir(place):
        raise StorageError(f"{url} cannot be written: {place} is not a folder. Give another folder.")
    if not os.access(place, os.W_OK | os.X_OK):
        raise StorageError(f"{url} cannot be written: {place} is read-only for this user. Give another folder.")


def existing_folder(path: str) -> str:
    """The path, or the nearest folder above it that exists."""
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path
