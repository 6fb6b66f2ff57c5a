"""Files by URL: local paths, s3://, gs://, memory:// and whatever else fsspec knows.

A file appears whole or not at all. On a local disk it is written beside its name, synced and renamed; on an object
store one upload is already atomic, so it goes straight to its name.

Whatever fails here ends in one of the errors that a user can act on: UsageError for a path that cannot be meant,
DataError for a file that should exist and does not, StorageError for a disk or a store that refuses.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import uuid
from collections.abc import Iterator
from typing import IO, Any, cast

import fsspec
from fsspec.implementations.local import LocalFileSystem

from schemas.errors import ClozelineError, DataError, UsageError
from schemas.storage_errors import check_writable, refused, unreachable, unreadable, unwritable

PARTIAL = ".partial"
"""The suffix of a file that is being written; nobody reads one and any later run may remove it."""

_PARTIAL_NAME = re.compile(r"\..+\.[0-9a-f]{12}" + re.escape(PARTIAL))
"""What `publish` calls such a file. Other programs have files of the same suffix."""


def filesystem(url: str) -> tuple[Any, str]:
    """(fsspec file system, path inside it) of a URL or a local path.

    A string without "://" is a local path, whatever else it holds: fsspec alone would take "a::b" for a chain of URLs.
    Raises UsageError when it is empty or of an unknown kind.
    """
    if not url:
        raise UsageError("A path is empty. Give the name of a file or a folder.")

    if "://" not in url:
        return LocalFileSystem(), _absolute(url)

    try:
        # a remembered listing would hide what other processes have written since
        return fsspec.core.url_to_fs(url, use_listings_cache=False)
    except ImportError as error:
        raise UsageError(f"{url} needs a package that is not installed: {error}") from error
    except ValueError as error:
        raise UsageError(f"{url} is not a path or URL that can be opened: {error}") from error


def _absolute(path: str) -> str:
    path = os.path.expanduser(path)
    if not path.startswith("/"):
        path = os.path.join(os.getcwd(), path.removeprefix("./"))
    return path.rstrip("/") or "/"


def is_local(url: str) -> bool:
    return isinstance(filesystem(url)[0], LocalFileSystem)


def join(base: str, *names: str) -> str:
    """Example: `join("s3://bucket/run/", "a", "b.arrow")` -> `"s3://bucket/run/a/b.arrow"`.

    Raises UsageError for an empty base, which would otherwise become the root folder.
    """
    if not base:
        raise UsageError(f"The name of the folder that holds {'/'.join(names)} is empty. Give a folder.")
    return "/".join([base.rstrip("/") if base != "/" else "", *names])


def shown(path: str) -> str:
    r"""A path as text that can be printed and stored: bytes that are not UTF-8 become \xNN."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


@contextlib.contextmanager
def storage_errors_of(url: str, *passing: type[Exception]) -> Iterator[None]:
    """Turn what a disk or an object store refuses inside the block into a StorageError that names `url`.

    Packages of object stores raise exceptions of their own, so for a store any exception counts but those in `passing`.
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


def exists(url: str) -> bool:
    fs, path = filesystem(url)
    with storage_errors_of(url):
        return fs.exists(path)


def open_input(url: str) -> IO[bytes]:
    """A binary file open for reading.

    Raises DataError when there is none, UsageError when it is a folder or no path that can be opened, and StorageError
    when the disk or the store refuses, also later, while it is read from a store.
    """
    fs, path = filesystem(url)
    try:
        if isinstance(fs, LocalFileSystem):
            return open(path, "rb")
        with storage_errors_of(url, FileNotFoundError):
            # fsspec's own files lack half of a file's methods, readline(size) among them
            return io.BufferedReader(_RemoteFile(url, fs.open(path, "rb")), 1 << 20)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DataError(f"{url} does not exist.") from error
    except OSError as error:
        raise unreadable(url, error) from error


class _RemoteFile(io.RawIOBase):
    """A file of fsspec whose failures name its URL."""

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
    """The whole file. Raises as `open_input` does.

    From a store it comes in one request, so that a file which is replaced meanwhile is read as it was or as it is.
    """
    fs, path = filesystem(url)
    if isinstance(fs, LocalFileSystem):
        with open_input(url) as file, storage_errors_of(url):
            return file.read()
    try:
        with storage_errors_of(url, FileNotFoundError):
            return fs.cat_file(path)
    except FileNotFoundError as error:
        raise DataError(f"{url} does not exist.") from error


def names(url: str) -> list[str]:
    """The sorted names of the files and folders inside a folder; empty when it does not exist."""
    fs, path = filesystem(url)
    try:
        with storage_errors_of(url, FileNotFoundError):
            found = _local_names(path) if isinstance(fs, LocalFileSystem) else fs.ls(path, detail=False)
    except FileNotFoundError:
        return []
    return sorted(str(name).rstrip("/").rsplit("/", 1)[-1] for name in found)


def sizes(url: str) -> dict[str, int]:
    """The size in bytes of each file in a folder, by name, from one listing; empty when the folder does not exist."""
    fs, path = filesystem(url)
    try:
        with storage_errors_of(url, FileNotFoundError):
            found = fs.ls(path, detail=True)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    return {entry["name"].rsplit("/", 1)[-1]: int(entry["size"]) for entry in found if entry["type"] == "file"}


def is_partial(name: str) -> bool:
    """Whether a file of that name is one that `publish` was writing."""
    return _PARTIAL_NAME.fullmatch(name) is not None


def _local_names(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except NotADirectoryError:
        return []


def check_writable_folder(url: str) -> None:
    """Raises StorageError when a local folder could not be written; touches nothing. Says nothing of object stores."""
    if is_local(url):
        check_writable(url, filesystem(url)[1])


def publish(url: str, data: bytes, durable: bool = True) -> None:
    """Write a file so that readers see all of it or none, and, when `durable`, so that a power cut keeps it.

    Raises StorageError when the disk is full or refuses, or when the store cannot be reached.
    """
    fs, path = filesystem(url)
    if not isinstance(fs, LocalFileSystem):
        with storage_errors_of(url):
            fs.pipe_file(path, data)
        return

    # The partial name differs between attempts, so two that race never write into one file.
    partial = f"{os.path.dirname(path)}/.{os.path.basename(path)}.{uuid.uuid4().hex[:12]}{PARTIAL}"
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
    """Make a rename inside a local folder survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def move(source: str, target: str) -> None:
    """Rename a file over another, synced first; on object stores a server-side copy and delete.

    Raises StorageError when the disk or the store refuses.
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


def remove(url: str) -> None:
    """Delete a file or a folder with all it holds; nothing happens when there is none. Raises StorageError."""
    fs, path = filesystem(url)
    with contextlib.suppress(FileNotFoundError), storage_errors_of(url, FileNotFoundError):
        fs.rm(path, recursive=True)


def modified(url: str) -> float | None:
    """When a file was last written, in seconds since 1970 by the clock of its disk or store; None when it is gone."""
    fs, path = filesystem(url)
    try:
        with storage_errors_of(url, FileNotFoundError):
            return fs.modified(path).timestamp()
    except FileNotFoundError:
        return None


def sha256(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()


def size(url: str) -> int:
    """Bytes in a file. Raises DataError when it does not exist."""
    fs, path = filesystem(url)
    try:
        with storage_errors_of(url, FileNotFoundError):
            return int(cast(int, fs.size(path)))
    except FileNotFoundError as error:
        raise DataError(f"{url} does not exist.") from error
