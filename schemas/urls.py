"""URLs and local paths: which file system one names, how names are joined, and how a path is printed."""

from __future__ import annotations

import os
import sys
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from schemas.errors import StorageError, UsageError

EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
"""The pip extra with the package that opens each kind of URL."""


def normal(path: str) -> str:
    """Return a path or URL as a user wrote it in the one form that everything inside expects.

    `~` and file:// become a local path, and a local path loses its trailing slashes. Every flag and key that names a
    file or a folder goes through this function, so that no two parts of a command expand a path differently.
    """
    local = path.removeprefix("file://")
    if "://" in local:
        return local
    return os.path.expanduser(local).rstrip("/") or local[:1]


def filesystem(url: str) -> tuple[Any, str]:
    """Return the fsspec file system of a URL or a local path, and the path inside it.

    A string without "://" is a local path, whatever else it contains: fsspec alone would take "a::b" for a chain of
    URLs. Raises UsageError if it is empty, of an unknown kind, or a chain of URLs, and StorageError if its file system
    does not start.
    """
    if not url:
        raise UsageError("A path is empty. Give the name of a file or a folder.")

    if "://" not in url:
        return LocalFileSystem(), _absolute(url)

    if "::" in url:
        raise UsageError(
            f"{url} chains file systems with '::', which is not supported. Unpack or copy the files first."
        )

    try:
        # A cached listing would hide what other processes have written since.
        return fsspec.core.url_to_fs(url, use_listings_cache=False)
    except ImportError as error:
        raise _missing_package(url, error) from error
    except ValueError as error:
        raise UsageError(f"{url} is not a path or URL that can be opened: {error}") from error
    except OSError as error:
        # For hdfs://, pyarrow loads Java's library here, and connects.
        reason = str(error).partition("\n")[0].rstrip(".")
        machine = os.uname().nodename
        raise StorageError(f"{url} cannot be opened on machine {machine}: {reason}.{_advice(url)}") from error


def _advice(url: str) -> str:
    if not url.startswith(("hdfs://", "viewfs://")):
        return ""
    return " This kind of URL needs Java and Hadoop: set JAVA_HOME, HADOOP_HOME and CLASSPATH."


def _missing_package(url: str, error: ImportError) -> UsageError:
    """Return the error for a URL whose package is missing. It names this environment, because a worker's may differ."""
    extra = EXTRAS.get(url.partition("://")[0])
    advice = f'Install it there: pip install "clozeline[{extra}]".' if extra else f"{str(error).rstrip('.')}."
    return UsageError(
        f"{url} needs a package that is not installed in the Python environment {sys.prefix} of machine "
        f"{os.uname().nodename}. {advice}"
    )


def _absolute(path: str) -> str:
    """Return a local path as an absolute path, without a trailing slash."""
    path = normal(path)
    if not path.startswith("/"):
        try:
            folder = os.getcwd()
        except FileNotFoundError as error:
            raise UsageError(f"{path} cannot be found: the working directory was deleted. Leave it.") from error
        path = os.path.join(folder, path.removeprefix("./"))
    return path.rstrip("/") or "/"


def is_local(url: str) -> bool:
    """Return whether a URL or a path names a file on this machine."""
    return isinstance(filesystem(url)[0], LocalFileSystem)


def join(base: str, *names: str) -> str:
    """Return the URL of a file inside a folder.

    Example: `join("s3://bucket/run/", "a", "b.arrow")` -> `"s3://bucket/run/a/b.arrow"`.

    Raises UsageError for an empty base, which would otherwise become the root folder.
    """
    if not base:
        raise UsageError(f"The name of the folder that holds {'/'.join(names)} is empty. Give a folder.")

    return "/".join([base.rstrip("/"), *names])


def printable(path: str) -> str:
    r"""Return a path as text that can be printed and stored: bytes that are not UTF-8 become \xNN."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")
