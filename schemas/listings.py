"""Lists a folder's contents without a request for each file.

Stores answer with pages of about 1,000 names, so a folder of 100,000 files is listed in 100 requests.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

from fsspec.implementations.local import LocalFileSystem

from schemas.storage_errors import storage_errors_of
from schemas.urls import filesystem


def names(url: str, prefix: str = "") -> list[str]:
    """Return the sorted names of the files and folders inside a folder, or an empty list if it does not exist.

    prefix: return only names that begin with it. Stores filter on the server.
    """
    fs, path = filesystem(url)
    try:
        with storage_errors_of(url, FileNotFoundError):
            if isinstance(fs, LocalFileSystem):
                found = _local_names(path)
            elif prefix:
                found = list(_with_prefix(fs, path, prefix))
            else:
                found = fs.ls(path, detail=False)
    except FileNotFoundError:
        return []

    last_parts = (str(name).rstrip("/").rsplit("/", 1)[-1] for name in found)
    return sorted(name for name in last_parts if name.startswith(prefix))


def sizes(url: str, prefix: str = "") -> dict[str, int]:
    """Return the size in bytes of each file in a folder, by name. Empty if the folder does not exist or is a file.

    prefix: as in `names`.
    """
    fs, path = filesystem(url)
    try:
        with storage_errors_of(url, FileNotFoundError, NotADirectoryError):
            if isinstance(fs, LocalFileSystem):
                return _local_sizes(path, prefix)
            found = _with_prefix(fs, path, prefix).values() if prefix else fs.ls(path, detail=True)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    return {entry["name"].rsplit("/", 1)[-1]: int(entry["size"]) for entry in found if entry["type"] == "file"}


def _with_prefix(fs: Any, path: str, prefix: str) -> dict[str, dict[str, Any]]:
    """Return a store's entries, by path, for files directly in a folder whose names begin with `prefix`."""
    folder = path.rstrip("/")
    found = fs.find(path, detail=True, prefix=prefix)  # stores filter on the server; other file systems do not filter
    inside = {}
    for name, entry in found.items():
        parent, _, last = name.rpartition("/")
        if parent == folder and last.startswith(prefix):
            inside[name] = entry
    return inside


def _local_sizes(path: str, prefix: str) -> dict[str, int]:
    """Return the sizes of the files in a local folder. Files deleted during the listing are left out."""
    found = {}
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.name.startswith(prefix):
                with contextlib.suppress(FileNotFoundError):
                    if entry.is_file():
                        found[entry.name] = entry.stat().st_size
    return found


def _local_names(path: str) -> list[str]:
    """Return the names in a local folder; empty if the path is a file."""
    try:
        return os.listdir(path)
    except NotADirectoryError:
        return []
