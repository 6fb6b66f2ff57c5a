"""The manifest of a checkpoint, `manifest.json`: every file with its size and SHA-256.

It is written last, and a folder is trusted only if all its files agree with its manifest. So a manifest also marks a
folder as complete, and must stay true afterwards.

A file of up to HASH_BLOCK bytes is listed under `files`. A larger one is listed under `files_in_blocks`, with the
SHA-256 of each block: many ranks can hash blocks in parallel, whereas a single SHA-256 would make one rank read the
whole file. Checkpoints of earlier versions list files of any size under `files`.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from schemas import storage
from schemas.errors import CheckpointError
from trainer.checkpoint.disk_errors import write_errors_of
from trainer.distributed.watchdog import progress

MANIFEST = "manifest.json"
CHECKPOINT_VERSION = 1

HASH_BLOCK = 1 << 24
"""The size of a hashed block of a file: 16 MiB. A manifest states the size that it was written with."""

_HASH_CHUNK = 1 << 24  # bytes read at once


class ManifestEntry(TypedDict):
    """A file as the manifest lists it. path: relative to the checkpoint's folder."""

    path: str
    bytes: int
    sha256: str


class BlocksEntry(TypedDict):
    """A larger file. sha256: of each of its blocks; all blocks but the last have `block_bytes` bytes."""

    path: str
    bytes: int
    block_bytes: int
    sha256: list[str]


Entry = ManifestEntry | BlocksEntry


class HashedRange(NamedTuple):
    """Bytes `begin` to `end` of a file of a checkpoint, and their SHA-256."""

    path: str
    begin: int
    end: int
    sha256: str


def describe_file(folder: Path, file: Path) -> ManifestEntry:
    """Return a file's entry in the manifest. Reads all of the file."""
    size = file.stat().st_size
    return {
        "path": str(file.relative_to(folder)),
        "bytes": size,
        "sha256": _sha256(file, 0, size),
    }


def entry_of(path: str, size: int, block_hashes: list[str]) -> Entry:
    """Return the manifest's entry of a file, given the SHA-256 of each of its blocks of HASH_BLOCK bytes."""
    if len(block_hashes) == 1:
        return {"path": path, "bytes": size, "sha256": block_hashes[0]}
    return {"path": path, "bytes": size, "block_bytes": HASH_BLOCK, "sha256": block_hashes}


def seal(partial: Path, entries: list[Entry] | list[ManifestEntry], assembled_from: str | None = None) -> None:
    """Write the manifest. Raises StorageError.

    assembled_from: if the files were assembled from parts (parts.py), the SHA-256 of the manifest at the URL.
    """
    in_blocks = [entry for entry in entries if "block_bytes" in entry]
    manifest: dict[str, Any] = {
        "format_version": CHECKPOINT_VERSION,
        "files": [entry for entry in entries if "block_bytes" not in entry],
    }
    if in_blocks:
        manifest["files_in_blocks"] = in_blocks
    if assembled_from is not None:
        manifest["assembled_from"] = assembled_from
    _write(partial, manifest)


def _write(folder: Path, manifest: dict[str, Any]) -> None:
    with write_errors_of(folder):
        text = json.dumps(manifest, indent=1) + "\n"
        storage.publish(str(folder / MANIFEST), text.encode())


def remove_entry(folder: Path, name: str) -> None:
    """Remove a file's entry from the manifest before the file changes, so that the checkpoint verifies at all times."""
    if not (folder / MANIFEST).exists():
        return

    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    entries = [entry for entry in manifest["files"] if entry["path"] != name]
    if len(entries) < len(manifest["files"]):
        _write(folder, manifest | {"files": entries})


def listed_files(manifest: dict[str, Any]) -> list[Entry]:
    """Return the entries of all files that a manifest lists."""
    return [*manifest["files"], *manifest.get("files_in_blocks", [])]


# Verifying


def fault_of_checkpoint(path: Path, hashes: bool = True) -> str | None:
    """Return what is wrong with a checkpoint, or None if every file agrees with the manifest.

    hashes: whether to compare contents, not only sizes.
    Raises CheckpointError for a checkpoint of a newer format, because falling back to an older one would lose training.
    """
    ranges = ranges_of(path)
    if isinstance(ranges, str):
        return ranges
    return fault_of_ranges(path, ranges) if hashes else None


def ranges_of(path: Path) -> list[HashedRange] | str:
    """Return the hashed ranges of a checkpoint's files, or what is wrong with the manifest or with a file's size.

    Raises CheckpointError for a checkpoint of a newer format.
    """
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        version = manifest["format_version"]
        if "assembled" in manifest:
            return f"{path} is in parts, as several nodes wrote it to a URL: resume or export from the URL"
        if version > CHECKPOINT_VERSION:
            raise CheckpointError(
                f"{path} has format version {version}, but this Clozeline reads up to {CHECKPOINT_VERSION}. "
                "Upgrade it to resume from this checkpoint."
            )

        ranges: list[HashedRange] = []
        for entry in listed_files(manifest):
            file = path / entry["path"]
            if not file.exists():
                return f"{file} is missing"
            if file.stat().st_size != entry["bytes"]:
                return f"{file} was cut or changed"
            ranges += _ranges_of_file(entry)
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{path / MANIFEST} cannot be read ({error!r})"
    return ranges


def _ranges_of_file(entry: Any) -> list[HashedRange]:
    """Return the hashed ranges of a manifest's entry. Raises ValueError if they do not make up the whole file."""
    size = entry["bytes"]
    if "block_bytes" not in entry:
        return [HashedRange(entry["path"], 0, size, entry["sha256"])]

    begins = range(0, size, entry["block_bytes"])
    if len(begins) != len(entry["sha256"]):
        raise ValueError(f"{len(entry['sha256'])} hashes for the {len(begins)} blocks of {entry['path']}")
    return [
        HashedRange(entry["path"], begin, min(begin + entry["block_bytes"], size), sha256)
        for begin, sha256 in zip(begins, entry["sha256"], strict=True)
    ]


def fault_of_ranges(path: Path, ranges: list[HashedRange]) -> str | None:
    """Return the first fault in these ranges of a checkpoint's files, or None if all hashes are right.

    A file that cannot be read is a fault.
    """
    for found in ranges:
        file = path / found.path
        try:
            sha256 = _sha256(file, found.begin, found.end)
        except OSError as error:
            return f"{file} cannot be read ({error!r})"
        if sha256 != found.sha256:
            return f"{file} was cut or changed"
    return None


def _sha256(path: Path, begin: int, end: int) -> str:
    sha256 = hashlib.sha256()
    with path.open("rb") as file:
        file.seek(begin)
        left = end - begin
        while data := file.read(min(_HASH_CHUNK, left)):
            sha256.update(data)
            left -= len(data)
            progress()
    return sha256.hexdigest()
