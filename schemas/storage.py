"""Reads and writes files by URL: local paths, s3://, gs://, memory:// and anything else that fsspec supports.

Readers see a whole file or none. On a local disk `publish` writes a file under a temporary name in the same folder,
syncs it and renames it, which is atomic: a kill at any point leaves the old file or the new one, and at most a
temporary file that no reader opens. On an object store one upload is already atomic.

Every failure ends in an error that a user can act on: UsageError for a path that makes no sense, DataError for a file
that should exist and does not, StorageError for a disk or a store that refuses.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import uuid
from typing import IO, Any, cast

from fsspec.implementations.local import LocalFileSystem

from schemas.errors import DataError
from schemas.listings import names, sizes
from schemas.storage_errors import check_writable, storage_errors_of, unreadable, unwritable
from schemas.urls import filesystem, is_local, join, printable

__all__ = ["filesystem", "is_local", "join", "names", "printable", "sizes", "storage_errors_of"]
"""What callers use as storage.join and so on, wherever it is defined."""

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
    """Open a binary file for reading.

    Raises DataError if it does not exist, UsageError if it is a folder or cannot be a path, and StorageError if the
    disk or the store refuses. For a store, that may also happen later, while the file is read.
    """
    fs, path = filesystem(url)
    try:
        if isinstance(fs, LocalFileSystem):
            return open(path, "rb")
        with storage_errors_of(url, FileNotFoundError):
            # fsspec's own file objects lack methods that readers need, such as readline(size).
            return io.BufferedReader(_RemoteFile(url, fs.open(path, "rb")), 1 << 20)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DataError(f"{url} does not exist.") from error
    except OSError as error:
        raise unreadable(url, error) from error


class _RemoteFile(io.RawIOBase):
    """A remote file whose read errors name its URL."""

    def __init__(self, url: str, file: Any):
        self._url = url
        self._file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with storage_errors_of(self._url):
            return self._file.readinto(buffer)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        self._file.close()
        super().close()


def read(url: str) -> bytes:
    """Return the bytes of a whole file. Raises as `open_input` does.

    From a store it takes one request, so a file that is replaced at the same moment is read either in its old or in its
    new version, never as a mix.
    """
    fs, path = filesystem(url)
    if isinstance(fs, LocalFileSystem):
        with open_input(url) as file, storage_errors_of(url):
            return file.read()
    try:
        with storage_errors_of(url, FileNotFoundError):
            # Otherwise s3fs would request the size first, and read a large file in pieces.
            whole = {"max_concurrency": 1} if "s3" in fs.protocol else {}
            return fs.cat_file(path, **whole)
    except FileNotFoundError as error:
        raise DataError(f"{url} does not exist.") from error


def is_partial(name: str) -> bool:
    """Return whether a name is that of a file that `publish` has not finished writing."""
    return _PARTIAL_NAME.fullmatch(name) is not None


def check_writable_folder(url: str) -> None:
    """Raise StorageError if a local folder could not be written. Changes nothing; object stores are not checked."""
    if is_local(url):
        check_writable(url, filesystem(url)[1])


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
        _write(partial, data, durable)
        os.replace(partial, path)
        if durable:
            sync_folder(os.path.dirname(path))
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise unwritable(url, path, error, len(data)) from error


def _write(path: str, data: bytes, durable: bool) -> None:
    with open(path, "wb") as file:
        file.write(data)
        if durable:
            file.flush()
            os.fsync(file.fileno())


def sync_folder(path: str) -> None:
    """Make a rename inside a local folder survive a power cut (fsync of the directory)."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
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

    try:
        with storage_errors_of(target, FileNotFoundError):
            fs.cp_file(source_path, filesystem(target)[1])
    except FileNotFoundError as error:
        raise DataError(f"{source} does not exist.") from error


def remove(url: str) -> None:
    """Delete a file, or a folder with everything in it. Does nothing if there is none. Raises StorageError."""
    fs, path = filesystem(url)
    with contextlib.suppress(FileNotFoundError), storage_errors_of(url, FileNotFoundError):
        fs.rm(path, recursive=True)


def remove_files(folder: str, names: list[str]) -> None:
    """Delete files of a folder by name, in bulk requests if the store supports them. Raises StorageError on failure."""
    if is_local(folder):
        for name in names:
            remove(join(folder, name))
        return

    fs, path = filesystem(folder)
    with contextlib.suppress(FileNotFoundError), storage_errors_of(folder, FileNotFoundError):
        if names:
            fs.rm([f"{path}/{name}" for name in names])


def modified(url: str) -> float | None:
    """Return when a file was last written, in seconds since 1970 by the clock of its disk or store.

    Returns None if the file is gone.
    """
    fs, path = filesystem(url)
    try:
        with storage_errors_of(url, FileNotFoundError):
            return fs.modified(path).timestamp()
    except FileNotFoundError:
        return None


def sha256(data: bytes | memoryview) -> str:
    """Return the SHA-256 of some bytes in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def size(url: str) -> int:
    """Return the size of a file in bytes. Raises DataError if it does not exist."""
    fs, path = filesystem(url)
    try:
        with storage_errors_of(url, FileNotFoundError):
            return int(cast(int, fs.size(path)))
    except FileNotFoundError as error:
        raise DataError(f"{url} does not exist.") from error
