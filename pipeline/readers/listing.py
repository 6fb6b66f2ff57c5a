"""Finds the files that the patterns of `--input` name, with the size and the version of each.

Both come from the listing that resolves a pattern, so planning needs no request per file. A path without wildcards is
looked up with one request; if it is a folder, it stands for the files in it and in its subfolders. The patterns of a
comma-separated list are listed concurrently.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from glob import escape, glob
from typing import Any, NamedTuple

from fsspec.implementations.local import LocalFileSystem

from pipeline.readers.web_addresses import is_web, refuse_page, refuse_sent_page
from schemas import storage
from schemas.errors import DataError, StorageError, UsageError, nearest_name
from schemas.storage import concurrently
from schemas.urls import advice_on_hub, unreachable, unreadable

# Fields that distinguish versions of a file, best first: GCS, S3, Azure and HTTP, the Hub, local disks, and others.
# Listings and single lookups of one store agree in these fields, but not in all others.
_VERSIONS = (
    *("generation", "ETag", "etag", "blob_id", "mtime"),
    *("modificationTime", "LastModified", "Last-Modified", "last_modified", "created"),
)

_LISTED_ON_DISK = {"type": "other", "islink": True}  # what is known until a name is looked up

_WILDCARD = re.compile(r"[*?[]")
_WILDCARD_IN_ADDRESS = re.compile(r"[*[]")  # a query follows ?

# A list or a range in braces, as shells expand it: {a,b} or {01..09}.
_BRACES = re.compile(r"\{[^{}]*(?:,|\.\.)[^{}]*\}")


class InputFile(NamedTuple):
    """A file of the input. `version` changes when the file does."""

    path: str
    size: int
    version: str


class Listing(NamedTuple):
    """The files of the input, sorted by path.

    in_folders: paths of those that no pattern names, only a folder.
    folders: the folders, as the user wrote them.
    """

    files: list[InputFile]
    in_folders: frozenset[str]
    folders: list[str]


def matching_files(*patterns: str) -> list[InputFile]:
    """Return the files of `list_inputs`."""
    return list_inputs(*patterns).files


def list_inputs(*patterns: str) -> Listing:
    """Return every file that patterns, or comma-separated lists of them, name: each file once.

    A path that exists exactly as written means that file, even if its name contains commas or brackets, or the files
    of that folder. As in a shell, wildcards match no name that begins with a dot; in a folder, such names are skipped.

    Raises UsageError for a pattern that matches no file or cannot be opened, DataError for a link to nothing, and
    StorageError if the disk or the store fails or has no such bucket.
    """
    members = [member for pattern in patterns for member in _split_comma_list(pattern)]
    if not members:
        raise UsageError("--input is empty. Give a file, a pattern or a comma list of them.")

    # In this thread if there is one, so that Ctrl-C ends a store's slow listing.
    listed = concurrently(_files_of_pattern, members) if len(members) > 1 else map(_files_of_pattern, members)
    by_path: dict[str, InputFile] = {}
    known: dict[str, str] = {}  # how a file's path was written first
    named: set[str] = set()
    folders: list[str] = []
    for member, (files, is_folder) in zip(members, listed, strict=True):
        files = [file for file in files if known.setdefault(in_full(file.path), file.path) == file.path]
        by_path |= {file.path: file for file in files}
        if is_folder:
            folders.append(member)
        else:
            named.update(file.path for file in files)
    return Listing([by_path[path] for path in sorted(by_path)], frozenset(by_path.keys() - named), folders)


def in_full(path: str) -> str:
    """Return a local path as an absolute one, which all its spellings have in common, and a URL as it is."""
    return os.path.abspath(os.path.expanduser(path)) if storage.is_local(path) else path


def without(listings: list[Listing], names: Sequence[str]) -> list[Listing]:
    """Return the listings without the files that these names or patterns (as of fnmatch) stand for.

    A name is that of a file or a folder, with folders before it or without. Raises UsageError for one that stands for
    no file, and if no file is left.
    """
    paths = [file.path for listing in listings for file in listing.files]
    left_out: set[str] = set()
    for name in names:
        if name.startswith((".", "/", "~")) and os.path.exists(in_full(name)):  # another spelling than that of --input
            found = {path for path in paths if _stands_for(in_full(name), in_full(path))}
        else:
            found = {path for path in paths if _stands_for(name.rstrip("/"), path)}
        if not found:
            raise UsageError(
                f"--exclude {name} is none of the {len(paths):,} files of the input. Check its name, or "
                "take it out if the file is gone."
            )
        left_out |= found
    if names and len(left_out) == len(paths):
        raise UsageError(f"--exclude {' '.join(names)} leaves no file of the input.")
    return [
        listing._replace(files=[file for file in listing.files if file.path not in left_out]) for listing in listings
    ]


def _stands_for(name: str, path: str) -> bool:
    forms = (name, f"*/{name}", f"{name}/*", f"*/{name}/*")
    return f"/{name}/" in f"/{path}/" or any(fnmatchcase(path, form) for form in forms)


def is_unchanged(path: str, version: str) -> bool:
    """Return whether a file still has this version. Takes one request."""
    fs, path_in_store = storage.filesystem(path)
    with storage.storage_errors_of(path):
        return version in _versions(fs.info(path_in_store))


def _versions(entry: dict[str, Any]) -> list[str]:
    """Return what may stand for the version of a file, best first; the last one is its size alone.

    There are several because a store may report more about a single file than in a listing.
    """
    size = str(entry["size"])
    return [*(f"{size} {name}={entry[name]}" for name in _VERSIONS if entry.get(name) is not None), size]


def _files_of_pattern(pattern: str) -> tuple[list[InputFile], bool]:
    """Return the files that a pattern names, and whether it is a folder."""
    refuse_page(pattern)
    fs, path = storage.filesystem(pattern)
    here = os.path.join(os.getcwd(), "")
    if _is_relative(pattern) and path.startswith(here) and _WILDCARD.search(pattern) and not _is_local(pattern):
        path = escape(here) + path[len(here) :]  # the name of the working directory is no pattern
    entries, is_folder = _matches(fs, path, pattern)

    # Listings of web servers have no sizes, and those of local disks do not follow symbolic links.
    unknown = [name for name, entry in entries.items() if entry.get("islink") or _has_no_size(entry)]
    completed = concurrently(lambda name: _complete(fs, name, entries[name], pattern), unknown)
    entries |= dict(zip(unknown, completed, strict=True))
    _refuse_unreadable(entries, pattern)

    files = [(name, entry) for name, entry in entries.items() if entry["type"] == "file"]
    if not files and is_folder:
        raise UsageError(f"--input {pattern} is a folder without files. Those that begin with a dot are skipped.")
    if not files:
        _check_bucket(fs, path, pattern)
        raise _no_file_error(pattern, entries)

    found: list[InputFile] = []
    for name, entry in files:
        path = _as_written(fs.unstrip_protocol(name), pattern)
        found.append(InputFile(path, int(entry["size"]), _versions(entry)[0]))
    return found, is_folder


def _refuse_unreadable(entries: dict[str, dict[str, Any]], pattern: str) -> None:
    """Raise DataError if there are links to nothing, pipes or devices among the files that a pattern names."""
    unreadable_names = [name for name, entry in entries.items() if entry["type"] not in ("file", "directory")]
    if unreadable_names and is_web(pattern):
        raise DataError(
            f"{len(unreadable_names):,} of {len(entries):,} files that the page of --input {pattern} lists do not "
            f"exist, the first: {unreadable_names[0]}. Give a pattern without them."
        )
    if unreadable_names:
        raise DataError(
            f"{len(unreadable_names):,} of {len(entries):,} files that --input {pattern} names cannot be read, the "
            f"first: {unreadable_names[0]}, a link to nothing or itself, a pipe or a device. Fetch the files of links "
            "to nothing (git annex get, dvc pull), or remove the links."
        )


def _has_no_size(entry: dict[str, Any]) -> bool:
    return entry["type"] == "file" and entry.get("size") is None


def _complete(fs: Any, name: str, entry: dict[str, Any], pattern: str) -> dict[str, Any]:
    """Return what a lookup reports about a listed file, or the listing's entry if it is gone, like a broken link."""
    shown = name if isinstance(fs, LocalFileSystem) else pattern
    try:
        with storage.storage_errors_of(shown, FileNotFoundError):
            found = _info(fs, name)
    except FileNotFoundError:
        return entry | {"type": "other"}

    if _has_no_size(found):
        raise UsageError(f"The server does not report the size of {name}. Download the file, or leave it out.")
    return found


def _info(fs: Any, name: str) -> dict[str, Any]:
    """Return what a store knows about a file. A link that leads to itself is not found."""
    try:
        return fs.info(name)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise FileNotFoundError from error
        raise


def _check_bucket(fs: Any, path: str, pattern: str) -> None:
    """Raise StorageError if a pattern matches nothing because its bucket is missing or cannot be listed."""
    protocols = (fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol
    if not {"s3", "gs"} & set(protocols):
        return
    bucket = path.partition("/")[0]
    with storage.storage_errors_of(pattern):
        is_there = fs.exists(bucket)
    if not is_there:
        advice = ", and AWS_ENDPOINT_URL for a store that is not Amazon's" if "s3" in protocols else ""
        raise StorageError(
            f"--input {pattern} matches no file: the bucket {bucket} does not exist or cannot be listed. Check its "
            f"name and the credentials{advice}."
        )


def _no_file_error(pattern: str, matches: dict[str, dict[str, Any]]) -> UsageError:
    if any(info["type"] == "directory" for info in matches.values()):
        folder = pattern.rstrip("/")
        return UsageError(
            f"--input {pattern} matches only folders. Name a folder without wildcards to read all that it holds, or "
            f"its files, as in '{folder}/*.jsonl'."
        )
    return UsageError(
        f"--input {pattern} matches no file.{_nearest(pattern)} Check the path; nothing was read or written."
        f"{advice_on_hub(pattern)}"
    )


def _nearest(pattern: str) -> str:
    """Return a hint that names the file or folder in the same place that a name may mean; empty for URLs."""
    parent, name = os.path.split(pattern.rstrip("/"))
    if not storage.is_local(pattern) or not os.path.isdir(parent or "."):
        return ""
    return nearest_name(name, os.listdir(parent or "."))


def _split_comma_list(patterns: str) -> list[str]:
    """Return the members of a comma-separated list, without empty ones, or the name of a local file with commas."""
    if _is_local(patterns):
        return [patterns]
    if _BRACES.search(patterns):
        raise UsageError(
            f"--input {patterns} has braces, which only the shell expands: write it without quotes, or give a "
            "comma-separated list."
        )

    return list(filter(None, map(str.strip, patterns.split(","))))


def _is_local(path: str) -> bool:
    return bool(path) and "://" not in path and os.path.exists(storage.filesystem(path)[1])


def _as_written(url: str, pattern: str) -> str:
    """Return local files as paths, relative if the pattern is, so that a manifest does not name the user's machine."""
    path = url.removeprefix("file://")
    is_local = path != url
    return os.path.relpath(path) if is_local and _is_relative(pattern) else path


def _is_relative(pattern: str) -> bool:
    return "://" not in pattern and not pattern.startswith(("/", "~", "file:"))


def _glob(fs: Any, path: str) -> dict[str, dict[str, Any]]:
    """Return {name: facts} for what a pattern matches as in a shell; on a local disk, facts that need a lookup."""
    if isinstance(fs, LocalFileSystem) and "**" not in path:
        # fsspec's glob does not enter folders that are links. Without that, ** would go around in circles.
        found = dict.fromkeys(sorted(glob(path, include_hidden=True)), _LISTED_ON_DISK)
    else:
        found = _glob_store(fs, path)
    visible = {name: entry for name, entry in found.items() if not _is_hidden(name, path)}
    if found and not visible:
        raise UsageError(
            f"{next(iter(found))} begins with a dot, and wildcards do not match it, as in a shell. To read such files, "
            "write the dot in the pattern of --input."
        )
    return visible


def _glob_store(fs: Any, path: str) -> dict[str, dict[str, Any]]:
    # Including folders makes an object store list twice, so it is done only to explain why there is no file. fsspec's
    # glob for web servers always includes them and takes no such argument.
    if "http" in fs.protocol:
        return {name: entry for name, entry in fs.glob(path, detail=True).items() if "/mailto:" not in name}
    files = fs.glob(path, detail=True, withdirs=False)
    return files or fs.glob(path, detail=True)


def _is_hidden(name: str, pattern: str) -> bool:
    """Return whether a wildcard of the pattern would have to match a leading dot in the name of a file or a folder."""
    parts = pattern.strip("/").split("/")
    fixed = next(index for index, part in enumerate(parts) if _WILDCARD.search(part))
    matched = name.strip("/").split("/")[fixed:]

    # Each part of the pattern that begins with a dot matches one name that does.
    return _leading_dots(matched) > _leading_dots(parts[fixed:])


def _leading_dots(names: list[str]) -> int:
    return sum(name.startswith(".") for name in names)


def _inside(fs: Any, folder: str) -> dict[str, dict[str, Any]]:
    """Return {name: facts} for the files in a folder and in its subfolders. On a local disk, they need a lookup."""
    if isinstance(fs, LocalFileSystem):
        return dict.fromkeys(_walk_disk(folder), _LISTED_ON_DISK)

    found = fs.find(folder, detail=True)
    depth = len(folder.strip("/").split("/"))
    parts = {name: name.strip("/").split("/")[depth:] for name in found}
    card = ["README.md"] if "hf" in fs.protocol else None
    return {name: found[name] for name, inside in parts.items() if not _leading_dots(inside) and inside != card}


def _walk_disk(folder: str) -> Iterator[str]:
    """Yield the files of a folder. Folders that are links are entered, each folder once."""

    def stop(error: OSError) -> None:
        raise error

    entered: set[str] = set()
    for parent, folders, names in os.walk(folder, onerror=stop, followlinks=True):
        real = os.path.realpath(parent)
        if real in entered:
            folders.clear()
            continue

        entered.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (os.path.join(parent, name) for name in sorted(names) if not name.startswith("."))


def _matches(fs: Any, path: str, pattern: str) -> tuple[dict[str, dict[str, Any]], bool]:
    """Return {name: facts} for every file and folder that a pattern names, or that is in the folder that it is.

    Also returns whether the pattern is a folder.
    """
    try:
        with storage.storage_errors_of(pattern, OSError):
            wildcard = _WILDCARD_IN_ADDRESS if is_web(path) else _WILDCARD
            if wildcard.search(path) and not _is_local(pattern):
                return _glob(fs, path), False
            entry = fs.info(path)
            refuse_sent_page(pattern, entry)
            is_folder = entry["type"] == "directory"
            return (_inside(fs, path) if is_folder else {path: entry}), is_folder
    except (FileNotFoundError, NotADirectoryError):
        is_dead_link = storage.is_local(pattern) and os.path.islink(path)
        return ({path: {"type": "other"}} if is_dead_link else {}), False
    except ValueError as error:
        cause = str(error).removeprefix("Invalid pattern: ")
        raise UsageError(
            f"--input {pattern} is not a pattern: {cause}. Write it between slashes, as in corpus/**/*.txt."
        ) from error
    except OSError as error:
        if not storage.is_local(pattern):
            raise unreachable(f"--input {pattern}", error) from error
        raise unreadable(f"--input {_place_of(error, path, pattern)}", error) from error


def _place_of(error: OSError, path: str, pattern: str) -> str:
    """Return a pattern and, if another folder than its own could not be read, that one behind."""
    folder = error.filename
    return pattern if folder in (None, path) else f"{pattern}: {storage.printable(os.fsdecode(folder))}"
