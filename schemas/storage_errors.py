"""Turns the exceptions of disks and object stores into errors that a user can act on.

Each function takes an exception of the operating system or of an object store package and returns one of ours, with the
URL, the reason and what to check.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator

from schemas.errors import ClozelineError, StorageError, UsageError
from schemas.urls import is_local

FULL = (errno.ENOSPC, errno.EDQUOT)
WRONG_PATH = (errno.ELOOP, errno.ENAMETOOLONG, errno.EISDIR, errno.EINVAL)
"""Error numbers caused by the path itself rather than by the disk."""


@contextlib.contextmanager
def storage_errors_of(url: str, *passing: type[Exception]) -> Iterator[None]:
    """Turn refusals by a disk or an object store inside the block into a StorageError that names `url`.

    Object store packages raise exceptions of many types, so for a store every exception counts except those in
    `passing`.
    """
    try:
        yield
    except (ClozelineError, *passing):
        raise
    except Exception as error:
        if not is_local(url):
            raise unreachable(url, error) from error
        if isinstance(error, OSError):
            raise refused(url, error) from error
        raise


def unreachable(url: str, error: Exception) -> StorageError:
    """Return the error for an exception that the package of an object store raised."""
    return StorageError(
        f"{url} cannot be reached ({type(error).__name__}: {error}). Check the address, the credentials and the "
        "network."
    )


def refused(url: str, error: OSError) -> StorageError:
    """Return the error for a local path that the system does not read or change."""
    reason = error.strerror or error
    return StorageError(f"{url} cannot be read or changed: {reason}. Check its permissions and the disk.")


def unreadable(url: str, error: OSError) -> ClozelineError:
    """Return the error for a local path that the system does not open, UsageError or StorageError by its reason."""
    if error.errno in WRONG_PATH:
        return UsageError(f"{url} cannot be opened: {error.strerror}. Check the path.")
    return refused(url, error)


def unwritable(url: str, path: str, error: OSError, needed: int) -> StorageError:
    """Return the error for a local file of `needed` bytes that the system does not write."""
    if error.errno in FULL:
        free = shutil.disk_usage(existing_folder(os.path.dirname(path))).free
        return StorageError(
            f"The disk is full: {url} needs {needed:,} bytes and {free:,} are free. "
            "Free some space and run the same command again, which continues."
        )

    reason = error.strerror or error
    if error.errno == errno.EEXIST:  # from makedirs, if a file has the folder's name
        reason = os.strerror(errno.ENOTDIR)
    return StorageError(f"{url} cannot be written: {reason}. Check the folder, or give another one.")


def check_writable(url: str, path: str) -> None:
    """Raise StorageError if a local folder could not be created or written. Changes nothing.

    This finds what the system reports without an attempt. Some refusals, as in /proc, appear only at the first write.
    """
    place = path
    while not os.path.lexists(place):
        place = os.path.dirname(place)

    if not os.path.isdir(place):
        raise StorageError(f"{url} cannot be written: {place} is not a folder. Give another folder.")
    if not os.access(place, os.W_OK | os.X_OK):
        raise StorageError(f"{url} cannot be written: {place} is read-only for this user. Give another folder.")


def existing_folder(path: str) -> str:
    """Return the path, or the nearest folder above it that exists."""
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path
