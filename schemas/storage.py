"""Files by URL: local paths, s3://, gs://, memory:// and whatever else fsspec knows.

A file appears whole or not at all. On a local disk it is written beside its name, synced and renamed; on an object
store one upload is already atomic, so it goes straight to its name.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import shutil
import uuid
from typing import IO, Any, cast

import fsspec
from fsspec.implementations.local import LocalFileSystem

from schemas.errors import DataError, UsageError

PARTIAL = ".partial"
"""The suffix of a file that is being written; nobody reads one and any later run may remove it."""


def filesystem(url: str) -> tuple[Any, str]:
    """(fsspec file system, path inside it) of a URL or a local path."""
    try:
        # a remembered listing would hide what other processes have written since
        return fsspec.core.url_to_fs(url, use_listings_cache=False)
    except ImportError as error:
        raise UsageError(f"{url} needs a package that is not installed: {error}") from error
    except ValueError as error:
        raise UsageError(f"{url} is not a path or URL that can be opened: {error}") from error


def is_local(url: str) -> bool:
    return isinstance(filesystem(url)[0], LocalFileSystem)


def join(base: str, *names: str) -> str:
    """Example: `join("s3://bucket/run/", "a", "b.arrow")` -> `"s3://bucket/run/a/b.arrow"`."""
    return "/".join([base.rstrip("/") if base != "/" else "", *names])


def exists(url: str) -> bool:
    fs, path = filesystem(url)
    return fs.exists(path)


def open_input(url: str) -> IO[bytes]:
    """A binary file open for reading. Raises DataError when there is none."""
    fs, path = filesystem(url)
    try:
        if isinstance(fs, LocalFileSystem):
            return open(path, "rb")
        # fsspec's own files lack half of a file's methods, readline(size) among them
        return io.BufferedReader(fs.open(path, "rb"), 1 << 20)
    except FileNotFoundError as error:
        raise DataError(f"{url} does not exist.") from error


def read(url: str) -> bytes:
    """The whole file. Raises DataError when it does not exist."""
    with open_input(url) as file:
        return file.read()


def names(url: str) -> list[str]:
    """The sorted names of the files and folders inside a folder; empty when it does not exist."""
    fs, path = filesystem(url)
    try:
        found = fs.ls(path, detail=False)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(str(name).rstrip("/").rsplit("/", 1)[-1] for name in found)


def publish(url: str, data: bytes, durable: bool = True) -> None:
    """Write a file so that readers see all of it or none, and, when `durable`, so that a power cut keeps it.

    Raises DataError on a full disk.
    """
    fs, path = filesystem(url)
    if not isinstance(fs, LocalFileSystem):
        fs.pipe_file(path, data)
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    # The partial name differs between attempts, so two that race never write into one file.
    partial = f"{os.path.dirname(path)}/.{os.path.basename(path)}.{uuid.uuid4().hex[:12]}{PARTIAL}"
    try:
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
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            free = shutil.disk_usage(os.path.dirname(path)).free
            raise DataError(
                f"The disk is full: {url} needs {len(data):,} bytes and {free:,} are free. "
                "Free some space and run the same command again; finished pieces are reused."
            ) from error
        raise


def sync_folder(path: str) -> None:
    """Make a rename inside a local folder survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def move(source: str, target: str) -> None:
    """Rename a file over another, synced first; on object stores a server-side copy and delete."""
    fs, source_path = filesystem(source)
    target_path = filesystem(target)[1]
    if isinstance(fs, LocalFileSystem):
        os.makedirs(os.path.dirname(target_path), exist_ok=True)
        with open(source_path, "rb") as file:
            os.fsync(file.fileno())
        os.replace(source_path, target_path)
        return
    fs.copy(source_path, target_path)
    fs.rm_file(source_path)


def remove(url: str) -> None:
    """Delete a file or a folder with all it holds; nothing happens when there is none."""
    fs, path = filesystem(url)
    with contextlib.suppress(FileNotFoundError):
        fs.rm(path, recursive=True)


def sha256(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()


def size(url: str) -> int:
    """Bytes in a file. Raises DataError when it does not exist."""
    fs, path = filesystem(url)
    try:
        return int(cast(int, fs.size(path)))
    except FileNotFoundError as error:
        raise DataError(f"{url} does not exist.") from error
