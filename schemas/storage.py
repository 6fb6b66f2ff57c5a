"""Reads and writes files by URL: local paths, s3://, gs://, memory:// and anything else that fsspec supports.

Readers see a whole file or none. On a local disk `publish` writes a file under a temporary name in the same folder,
syncs it and renames it, which is atomic: a kill at any point leaves the old file or the new one, and at most a
temporary file that no reader opens. On an object store one upload is already atomic.

Every failure ends in an error that a user can act on: UsageError for a path that makes no sense, DataError for a file
that should exist and does not, StorageError for a disk or a store that refuses.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO, Any, TypeVar

from fsspec.implementations.local import LocalFileSystem

from schemas.errors import DataError, StorageError, UsageError
from schemas.urls import (
    filesystem,
    is_local,
    join,
    printable,
    refuse_read_only,
    storage_errors_of,
    unreadable,
    unwritable,
)

__all__ = ["filesystem", "is_local", "join", "printable", "storage_errors_of"]
"""What callers use as storage.join and so on."""

THREADS = 32
"""Concurrent requests to a store, which respond in about 25 ms. With many more, stores would respond with 503."""

PAGE = 1000
"""Files listed, and then deleted, per request to S3: the maximum that S3 accepts."""

PARTIAL_SUFFIX = ".partial"
"""The suffix of a file that is still being written. No reader opens one, and any later run may remove it."""

_PARTIAL_NAME = re.compile(r"\..+\.[0-9a-f]{12}" + re.escape(PARTIAL_SUFFIX))
"""The names that `publish` gives such files. Other programs use the same suffix, so it is not enough to tell."""


def exists(url: str) -> bool:
    """Return whether a file or a folder exists. Raises StorageError if the disk or the store does not answer."""
    fs, path = filesystem(url)
    with storage_errors_of(url):
        return fs.exists(path)


def open_input(url: str) -> IO[bytes]:
    """Open a binary file of this machine for reading.

    Raises DataError if it does not exist, UsageError if it is a folder or cannot be a path, and StorageError if the
    disk refuses.
    """
    try:
        return open(filesystem(url)[1], "rb")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DataError(f"{url} does not exist.") from error
    except OSError as error:
        raise unreadable(url, error) from error


def read(url: str) -> bytes:
    """Return the bytes of a whole file. Raises as `open_input` does, and StorageError if a store refuses.

    From a store it takes one request, so a file that is replaced at the same moment is read either in its old or in its
    new version, never as a mix.
    """
    fs, path = filesystem(url)
    if isinstance(fs, LocalFileSystem):
        with open_input(url) as file, storage_errors_of(url):
            return file.read()
    with _errors_of_existing(url):
        # Otherwise s3fs would request the size first, and read a large file in pieces.
        whole = {"max_concurrency": 1} if "s3" in fs.protocol else {}
        return fs.cat_file(path, **whole)


def read_named(flag: str, url: str) -> bytes:
    """Return the bytes of a file that a flag names. Raises UsageError if it does not exist, and as `read` does."""
    if not exists(url):
        raise UsageError(f"{flag} {printable(url)} does not exist. Check the path.")
    return read(url)


@contextlib.contextmanager
def _errors_of_existing(url: str) -> Iterator[None]:
    """Do what `storage_errors_of` does, and raise DataError if a file does not exist."""
    try:
        with storage_errors_of(url, FileNotFoundError):
            yield
    except FileNotFoundError as error:
        raise DataError(f"{url} does not exist.") from error


def is_partial(name: str) -> bool:
    """Return whether a name is that of a file that `publish` has not finished writing."""
    return _PARTIAL_NAME.fullmatch(name) is not None


def dead_link(path: str) -> str | None:
    """Return the link to nothing, or to itself, because of which a local path does not exist; None if there is none."""
    place = _existing_part(path)
    return place if os.path.islink(place) and not os.path.exists(place) else None


def _existing_part(path: str) -> str:
    place = filesystem(path)[1]
    while not os.path.lexists(place):
        place = os.path.dirname(place)
    return place


def check_writable_folder(url: str) -> None:
    """Raise StorageError if a local folder could not be created or written, and UsageError for `/` or a read-only URL.

    Changes nothing; stores are not checked. This finds what the system reports without an attempt. Some refusals, as in
    /proc, appear only at the first write.
    """
    refuse_read_only(url)
    if not is_local(url):
        return
    if os.path.realpath(filesystem(url)[1]) == "/":
        raise UsageError(f"{url} is the root folder. Give a folder inside it.")
    place = _existing_part(url)
    if not os.path.isdir(place):
        what = "a link to nothing" if dead_link(place) else "not a folder"
        raise StorageError(f"{url} cannot be written: {place} is {what}. Give another folder.")
    if not os.access(place, os.W_OK | os.X_OK):
        raise StorageError(f"{url} cannot be written: {place} is read-only for this user. Give another folder.")


def publish(url: str, data: bytes, durable: bool = True) -> None:
    """Write a file so that readers see all of it or none.

    durable: also survive a power cut, at the cost of two fsync calls on a local disk.
    Raises StorageError if the disk is full or refuses, or if the store cannot be reached.
    """
    fs, path = filesystem(url)
    if not isinstance(fs, LocalFileSystem):
        with storage_errors_of(url):
            fs.pipe_file(path, data)
        return

    # Each attempt has a unique name, so two processes never write into the same temporary file.
    partial = f"{os.path.dirname(path)}/.{os.path.basename(path)}.{uuid.uuid4().hex[:12]}{PARTIAL_SUFFIX}"
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(partial, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())

        os.replace(partial, path)
        if durable:
            sync_folder(os.path.dirname(path))
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise unwritable(url, path, error, len(data)) from error


def sync_folder(path: str) -> None:
    """Make a rename inside a local folder survive a power cut (fsync of the directory, which Windows does not have)."""
    if os.name == "nt":
        return

    with contextlib.suppress(PermissionError):  # a folder that may be written, but not read
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EBADF, errno.ENOTSUP):  # what some network mounts answer
                raise
        finally:
            os.close(handle)


def move(source: str, target: str) -> None:
    """Sync a local file and rename it over another. On object stores, copy on the server and then delete.

    Raises StorageError if the disk or the store refuses.
    """
    fs, source_path = filesystem(source)
    target_path = filesystem(target)[1]
    if isinstance(fs, LocalFileSystem):
        try:
            os.makedirs(os.path.dirname(target_path), exist_ok=True)
            with open(source_path, "rb") as file:
                os.fsync(file.fileno())
            os.replace(source_path, target_path)
        except OSError as error:
            needed = os.path.getsize(source_path) if os.path.isfile(source_path) else 0
            raise unwritable(target, target_path, error, needed) from error
        return

    with storage_errors_of(target):
        fs.copy(source_path, target_path)
        fs.rm_file(source_path)


def copy(source: str, target: str) -> None:
    """Copy a file over another: on the server for an object store, or through this process, with a sync, for a disk.

    Raises DataError if there is no such file, and StorageError if the disk or the store refuses.
    """
    fs, source_path = filesystem(source)
    if isinstance(fs, LocalFileSystem):
        publish(target, read(source))
        return

    with _errors_of_existing(source):
        fs.cp_file(source_path, filesystem(target)[1])


def remove(url: str) -> None:
    """Delete a file, or a folder with everything in it. Does nothing if there is none. Raises StorageError."""
    fs, path = filesystem(url)
    with contextlib.suppress(FileNotFoundError), storage_errors_of(url, FileNotFoundError):
        fs.rm(path, recursive=True)


def remove_files(folder: str, names: list[str]) -> None:
    """Delete files of a folder by name, in bulk requests if the store supports them. Raises StorageError on failure."""
    fs, path = filesystem(folder)
    if isinstance(fs, LocalFileSystem):
        for name in names:
            remove(join(folder, name))
    elif names:
        with contextlib.suppress(FileNotFoundError), storage_errors_of(folder, FileNotFoundError):
            fs.rm([f"{path}/{name}" for name in names])


def modified(url: str) -> float | None:
    """Return when a file was last written, in seconds by the clock of its disk or store; None if the file is gone."""
    fs, path = filesystem(url)
    try:
        with storage_errors_of(url, FileNotFoundError):
            return fs.modified(path).timestamp()
    except FileNotFoundError:
        return None


def sha256(data: bytes | memoryview) -> str:
    """Return the SHA-256 of some bytes in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


# Many files

Item = TypeVar("Item")
Result = TypeVar("Result")


def concurrently(function: Callable[[Item], Result], items: Iterable[Item], threads: int = THREADS) -> Iterator[Result]:
    """Yield the function's result for each item, in the items' order, from several threads.

    At most 2 * `threads` items are being processed or waiting to be yielded, which bounds memory. The first exception
    is raised once the running calls have ended; no other call begins after it.
    """
    pool = ThreadPoolExecutor(threads, thread_name_prefix="many files")
    under_way: deque[Future[Result]] = deque()
    try:
        for item in items:
            under_way.append(pool.submit(function, item))
            if len(under_way) >= 2 * threads:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


# Folders


def names(url: str, prefix: str = "") -> list[str]:
    """Return the sorted names of the files and folders inside a folder, or an empty list if it does not exist.

    prefix: return only names that begin with it. Stores filter on the server.
    """
    fs, path = filesystem(url)
    try:
        with storage_errors_of(url, FileNotFoundError, NotADirectoryError):
            if isinstance(fs, LocalFileSystem):
                return sorted(name for name in os.listdir(path) if name.startswith(prefix))
            return sorted(_name(entry) for entry in _listed(fs, path, prefix))
    except (FileNotFoundError, NotADirectoryError):
        return []


def sizes(url: str, prefix: str = "") -> dict[str, int]:
    """Return the size in bytes of each file in a folder, by name. Empty if the folder does not exist or is a file.

    prefix: as in `names`.
    """
    fs, path = filesystem(url)
    try:
        with storage_errors_of(url, FileNotFoundError, NotADirectoryError):
            if isinstance(fs, LocalFileSystem):
                return _local_sizes(path, prefix)
            return {_name(entry): int(entry["size"]) for entry in _listed(fs, path, prefix) if entry["type"] == "file"}
    except (FileNotFoundError, NotADirectoryError):
        return {}


def _listed(fs: Any, path: str, prefix: str) -> list[dict[str, Any]]:
    """Return the entries of a folder in a store; with a prefix, only files whose names begin with it."""
    if not prefix:
        return fs.ls(path, detail=True)
    found = fs.find(path, detail=True, prefix=prefix)  # stores filter on the server; other file systems do not filter
    begin = f"{path.rstrip('/')}/{prefix}"
    return [entry for name, entry in found.items() if name.startswith(begin) and "/" not in name[len(begin) :]]


def _name(entry: dict[str, Any]) -> str:
    return entry["name"].rstrip("/").rpartition("/")[2]


def _local_sizes(path: str, prefix: str) -> dict[str, int]:
    found = {}
    with os.scandir(path) as entries:
        for entry in entries:
            try:
                if entry.name.startswith(prefix) and entry.is_file():
                    found[entry.name] = entry.stat().st_size
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ELOOP):  # deleted during the listing; a link to itself
                    raise
    return found


def remove_folder(url: str) -> None:
    """Delete a folder or a file. Does nothing if there is none. Raises StorageError if the disk or the store fails."""
    if not is_local(url):
        fs, _ = filesystem(url)
        with contextlib.suppress(FileNotFoundError), storage_errors_of(url, FileNotFoundError):
            for page in _pages(url):
                if page:
                    fs.rm(page)
    remove(url)


def _pages(url: str) -> Iterator[list[str]]:
    """Yield the paths of all files below a folder in a store.

    For S3, only one page is in memory at a time. The packages for other stores can only list a whole folder at once,
    which takes about a kilobyte per file.
    """
    fs, path = filesystem(url)
    if "s3" not in fs.protocol:
        yield list(fs.find(path))
        return

    bucket, key, _ = fs.split_path(path)
    wanted = {"Bucket": bucket, "Prefix": key.rstrip("/") + "/", "MaxKeys": PAGE}
    while True:
        page = fs.call_s3("list_objects_v2", **wanted)
        yield [f"{bucket}/{entry['Key']}" for entry in page.get("Contents", [])]
        if not page.get("IsTruncated"):
            return
        wanted["ContinuationToken"] = page["NextContinuationToken"]
