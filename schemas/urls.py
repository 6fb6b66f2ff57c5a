"""URLs and local paths: which file system one names, how names are joined, and how a path is printed.

The second half turns the exceptions of disks and object stores into errors that a user can act on: with the URL, the
reason and what to check.
"""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from schemas.errors import ClozelineError, StorageError, UsageError

EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", **dict.fromkeys(("hf", "http", "https"), "pipeline")}
"""The pip extra with the package that opens each kind of URL."""

READ_ONLY = ("http://", "https://", "hf://")
"""The beginnings of URLs that are only read. The Hub would make a commit of every file."""

_READ_AHEAD = {"hf": {"block_size": 1}}  # bytes beyond a range


def normal(path: str) -> str:
    """Return a path or URL as a user wrote it in the one form that everything inside expects.

    `~` and file:// become a local path, and a local path loses its trailing slashes. Every flag and key that names a
    file or a folder goes through this function, so that no two parts of a command expand a path differently.
    """
    local = path.removeprefix("file://")
    if "://" in local:
        return local
    return os.path.expanduser(local).rstrip("/") or local[:1]


def utf8_path(path: str) -> str:
    """Return what `normal` returns. Raises UsageError if the absolute path, without links, is not UTF-8.

    Pages, recipes and cards name the paths of runs and encoders, and hold nothing else than UTF-8.
    """
    path = normal(path)
    whole = path if "://" in path else os.path.realpath(_absolute(path))
    if whole != whole.encode(errors="ignore").decode():
        raise UsageError(f"the path {printable(whole)} is not UTF-8. Rename it: recipes and pages have to name it.")
    return path


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

    if re.match(r"https?://[^/]*:[^/]*@", url):
        raise UsageError(
            "An address with a password in it would be shown and stored. Put user and password into ~/.netrc, and "
            "leave them out of the address."
        )
    if "::" in re.sub(r"//\[[\da-f:]+\]", "", url, flags=re.IGNORECASE):  # without a host of IPv6
        raise UsageError(
            f"{url} chains file systems with '::', which is not supported. Unpack or copy the files first."
        )

    try:
        # A cached listing would hide what other processes have written since.
        if url.startswith(("http://", "https://")):
            from schemas.web_files import WebFileSystem

            return WebFileSystem(use_listings_cache=False), url
        options = _READ_AHEAD.get(url.partition("://")[0], {})
        return fsspec.core.url_to_fs(url, use_listings_cache=False, **options)
    except ImportError as error:
        raise _missing_package(url, error) from error
    except ValueError as error:
        raise UsageError(f"{url} is not a path or URL that can be opened: {error}") from error
    except OSError as error:
        # For hdfs://, pyarrow loads Java's library here, and connects.
        reason = str(error).partition("\n")[0].rstrip(".")
        machine = platform.node()
        raise StorageError(f"{url} cannot be opened on machine {machine}: {reason}.{_advice(url)}") from error


def _advice(url: str) -> str:
    if "hdfs://" in url or "viewfs://" in url:
        return " This kind of URL needs Java and Hadoop: set JAVA_HOME, HADOOP_HOME and CLASSPATH."
    return advice_on_hub(url)


def advice_on_hub(url: str) -> str:
    """Return what to check, after a space, if a URL is one of the Hugging Face Hub; else an empty string."""
    if "hf://" not in url:
        return ""
    return (
        " A dataset is hf://datasets/OWNER/NAME. If it is private, or its page asks for consent, give that there, and "
        "set HF_TOKEN or call `hf auth login`."
    )


def _missing_package(url: str, error: ImportError) -> UsageError:
    """Return the error for a URL whose package is missing. It names this environment, because a worker's may differ."""
    extra = EXTRAS.get(url.partition("://")[0])
    advice = f'Install it there: pip install "clozeline[{extra}]".' if extra else f"{str(error).rstrip('.')}."
    return UsageError(
        f"{url} needs a package that is not installed in the Python environment {sys.prefix} of machine "
        f"{platform.node()}. {advice}"
    )


def _absolute(path: str) -> str:
    path = normal(path)
    if not path.startswith("/"):
        try:
            folder = os.getcwd()
        except FileNotFoundError as error:
            raise UsageError(f"{path} cannot be found: the working directory was deleted. Leave it.") from error
        path = os.path.join(folder, path.removeprefix("./"))
    return path.rstrip("/") or "/"


def refuse_read_only(url: str) -> None:
    """Raise UsageError for a URL that nothing is written to."""
    if url.startswith(READ_ONLY):
        raise UsageError(f"{url} cannot be written: such URLs are only read. Give a folder, or s3:// or gs://.")


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


# Errors


FULL = (errno.ENOSPC, errno.EDQUOT)
WRONG_PATH = (errno.ELOOP, errno.EISDIR, errno.EINVAL)
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
    said = " ".join(str(error).split())
    return StorageError(
        f"{url} cannot be reached ({type(error).__name__}: {said}). Check the address, the credentials and the network."
        f"{_advice(url)}"
    )


def refused(url: str, error: OSError) -> ClozelineError:
    """Return the error for a local path that the system does not read or change."""
    if error.errno == errno.ENAMETOOLONG:
        return too_long(url)
    reason = error.strerror or error
    return StorageError(f"{url} cannot be read or changed: {reason}. Check its permissions and the disk.")


def too_long(url: str) -> UsageError:
    """Return the error for a local path with a name that the file system does not take."""
    return UsageError(f"{url} cannot be a path: {os.strerror(errno.ENAMETOOLONG)}. Give a shorter name.")


def unreadable(url: str, error: OSError) -> ClozelineError:
    """Return the error for a local path that the system does not open, UsageError or StorageError by its reason."""
    if error.errno in WRONG_PATH:
        return UsageError(f"{url} cannot be opened: {error.strerror}. Check the path.")
    return refused(url, error)


def unwritable(url: str, path: str, error: OSError, needed: int) -> ClozelineError:
    """Return the error for a local file of `needed` bytes that the system does not write."""
    if error.errno == errno.ENAMETOOLONG:
        return too_long(url)
    if error.errno in FULL:
        return StorageError(
            f"The disk is full: {url} {full_folder(existing_folder(os.path.dirname(path)), needed)}. "
            "Remove some files and run the same command again, which continues."
        )

    reason = error.strerror or error
    if error.errno == errno.EEXIST:  # from makedirs, if a file has the folder's name
        reason = os.strerror(errno.ENOTDIR)
    advice = advice_on_limit(error) or "Check the folder, or give another one"
    return StorageError(f"{url} cannot be written: {reason}. {advice}.")


def full_folder(folder: str, needed: int) -> str:
    """Return, as "needs ...", what was used up when a folder did not take a file of `needed` bytes."""
    free = shutil.disk_usage(folder).free
    told = f"needs {needed:,} bytes and {free:,} are free"
    if free < needed:
        return told
    # Where files need no inodes of a fixed number, as on Btrfs, all counts are 0. Windows has no statvfs.
    space = os.statvfs(folder) if hasattr(os, "statvfs") else None
    if space is not None and space.f_files and not space.f_favail:
        return f"{told}, but the file system has no free inode left for the file: it holds too many files"
    return f"{told}, so a quota may be reached"


def advice_on_limit(error: Exception) -> str:
    """Return what to do, without a period, if a file would exceed the limit on sizes; else an empty string."""
    return "Raise the limit on the size of files (ulimit -f)" if os.strerror(errno.EFBIG) in str(error) else ""


def existing_folder(path: str) -> str:
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path
