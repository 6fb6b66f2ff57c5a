"""The manifest of a checkpoint, `manifest.json`: every file with its size and SHA-256.

It is written last, and a folder is trusted only if all its files agree with its manifest. So a manifest also marks a
folder as complete, and must hold at every later moment.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, TypedDict

from schemas import storage
from schemas.errors import CheckpointError
from trainer.checkpoint.disk_errors import write_errors_of
from trainer.distributed.watchdog import progress

MANIFEST = "manifest.json"
CHECKPOINT_VERSION = 1

_HASH_CHUNK = 1 << 24  # bytes read at once


class ManifestEntry(TypedDict):
    """A file as the manifest lists it. path: relative to the checkpoint's folder."""

    path: str
    bytes: int
    sha256: str


def describe_file(folder: Path, file: Path) -> ManifestEntry:
    """Return a file's entry in the manifest. Reads all of the file."""
    return {
        "path": str(file.relative_to(folder)),
        "bytes": file.stat().st_size,
        "sha256": _sha256(file),
    }


def seal(partial: Path, entries: list[ManifestEntry], assembled_from: str | None = None) -> None:
    """Write the manifest. Raises StorageError.

    assembled_from: SHA-256 of the manifest at a URL by which the files were put together from parts (parts.py).
    """
    manifest: dict[str, Any] = {"format_version": CHECKPOINT_VERSION, "files": entries}
    if assembled_from is not None:
        manifest["assembled_from"] = assembled_from
    with write_errors_of(partial):
        text = json.dumps(manifest, indent=1) + "\n"
        storage.publish(str(partial / MANIFEST), text.encode())


def remove_entry(folder: Path, name: str) -> None:
    """Remove a file's entry before the file changes, because the checkpoint must verify at every moment."""
    if not (folder / MANIFEST).exists():
        return

    manifest = json.loads((folder / MANIFEST).read_text())
    entries = [entry for entry in manifest["files"] if entry["path"] != name]
    if len(entries) < len(manifest["files"]):
        seal(folder, entries)


def fault_of_checkpoint(path: Path, hashes: bool = True) -> str | None:
    """Return what is wrong with a checkpoint, or None if every file is as its manifest says.

    hashes: compare contents; otherwise only sizes.
    Raises CheckpointError for a checkpoint of a newer format: falling back to an older one would lose training.
    """
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        version = manifest["format_version"]
        if "assembled" in manifest:
            return f"{path} is in parts, as several nodes wrote it to a URL: resume or export from the URL"
        if version > CHECKPOINT_VERSION:
            raise CheckpointError(
                f"{path} has format version {version}, but this Clozeline reads up to {CHECKPOINT_VERSION}. "
                "Upgrade it to resume from this checkpoint."
            )

        for entry in manifest["files"]:
            fault = _fault_of_file(path / entry["path"], entry, hashes)
            if fault is not None:
                return fault
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{path / MANIFEST} cannot be read ({error!r})"
    return None


def _fault_of_file(file: Path, entry: dict[str, Any], hashes: bool) -> str | None:
    """Return what is wrong with a file that the manifest lists, or None."""
    if not file.exists():
        return f"{file} is missing"
    if file.stat().st_size != entry["bytes"]:
        return f"{file} was cut or changed"
    if hashes and _sha256(file) != entry["sha256"]:
        return f"{file} was cut or changed"
    return None


def _sha256(path: Path) -> str:
    sha256 = hashlib.sha256()
    with path.open("rb") as file:
        while data := file.read(_HASH_CHUNK):
            sha256.update(data)
            progress()
    return sha256.hexdigest()
