"""Checkpoints at a URL in parts: each node uploads what its own ranks wrote, and one manifest publishes the whole.

    URL/checkpoints/step-00000100/
        state.json, evaluation.json                     whole, from the node of rank 0
        model.safetensors.part-0-of-2.SAVE              what node 0 wrote of the file, its ranges end to end
        model.safetensors.part-1-of-2.SAVE              what node 1 wrote; and so on for each tensor file
        manifest.json                                   format version 2, written last

SAVE is a random name for the save, so that parts of a killed save are never mistaken for those of a later one. The
manifest lists whole files under `files`, as in version 1. Under `assembled` it lists each tensor file with its size and
its parts, and each part with its size, its SHA-256 and the ranges of the file that it holds. The ranges of all parts
cover a file exactly once.

On its disk, a node keeps RUN/parts/step-00000100.SAVE/ until it is uploaded: the manifest, the node's number, and files
of full size with holes where other nodes wrote.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Collection, Iterator
from itertools import pairwise
from pathlib import Path
from typing import IO

from pydantic import BaseModel, ConfigDict, Field

from schemas.errors import CheckpointError, StorageError
from trainer.checkpoint.disk_errors import write_errors_of
from trainer.checkpoint.manifest import MANIFEST, ManifestEntry
from trainer.checkpoint.offset_writer import WrittenPiece
from trainer.checkpoint.write_plan import Range
from trainer.distributed.watchdog import progress

PARTS_FOLDER = "parts"
NODE = "node"
"""The file in a folder of parts that holds the number of the node that wrote it. Nodes may be renumbered on restart."""

PARTS_VERSION = 2

PLAIN_NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$"
"""The pattern of file names that cannot lead out of a folder."""

_CHUNK = 1 << 24  # bytes copied at once


class Part(BaseModel):
    """What one node wrote of a file. path: the part's name, next to the manifest. ranges: of the assembled file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str = Field(pattern=PLAIN_NAME)
    bytes: int
    sha256: str
    ranges: list[Range]


class WholeFile(BaseModel):
    """A file that is uploaded unchanged."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str = Field(pattern=PLAIN_NAME)
    bytes: int
    sha256: str


class AssembledFile(BaseModel):
    """A file that is assembled from parts. bytes: its size. parts: one for each node that wrote to it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str = Field(pattern=PLAIN_NAME)
    bytes: int
    parts: list[Part]


class PartsManifest(BaseModel):
    """The manifest of a checkpoint in parts."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format_version: int = Field(ge=PARTS_VERSION, le=PARTS_VERSION)
    files: list[WholeFile]
    assembled: list[AssembledFile]


def manifest_in_parts(text: bytes, place: str) -> PartsManifest | None:
    """Return the manifest of a checkpoint in parts, or None if `text` is a manifest of version 1 (whole files).

    place: names the checkpoint in messages. Raises ValueError if the manifest is malformed or does not describe whole
    files, and CheckpointError if it is of a newer version.
    """
    content = json.loads(text)
    version = content["format_version"] if isinstance(content, dict) and "format_version" in content else 1
    if isinstance(version, int) and version > PARTS_VERSION:
        raise CheckpointError(
            f"{place} has format version {version}, but this Clozeline reads up to {PARTS_VERSION}. Upgrade it to read "
            "this checkpoint."
        )
    if version != PARTS_VERSION:
        return None

    manifest = PartsManifest.model_validate(content)
    for file in manifest.assembled:
        _check_ranges(file)
    return manifest


def _check_ranges(file: AssembledFile) -> None:
    """Raise ValueError unless the ranges of all parts cover a file exactly once, and each part's size is their sum."""
    for part in file.parts:
        if any(end <= begin for begin, end in part.ranges) or part.bytes != length_of(part.ranges):
            raise ValueError(f"{part.path} is not as long as its ranges")

    ranges = sorted(found for part in file.parts for found in part.ranges)
    edges = [(0, 0), *ranges, (file.bytes, file.bytes)]
    if any(end != begin for (_, end), (begin, _) in pairwise(edges)):
        raise ValueError(f"the parts of {file.path} leave a gap or overlap")


def length_of(ranges: list[Range]) -> int:
    """Return the number of bytes in all ranges."""
    return sum(end - begin for begin, end in ranges)


# What a node wrote


def part_name(file: str, number: int, count: int, save: str) -> str:
    """Return the name of the part that node `number`, counted from 0, of `count` wrote of a file."""
    return f"{file}.part-{number}-of-{count}.{save}"


def is_of_node(part: Part, number: int) -> bool:
    """Return whether node `number` wrote a part."""
    return f".part-{number}-of-" in part.path


def joined(pieces: list[WrittenPiece]) -> list[Range]:
    """Return the byte ranges of pieces, which are in file order, with adjacent ones joined."""
    ranges: list[Range] = []
    for piece in pieces:
        if ranges and ranges[-1][1] == piece.begin:
            ranges[-1] = (ranges[-1][0], piece.end)
        else:
            ranges.append((piece.begin, piece.end))
    return ranges


def manifest_of(files: list[ManifestEntry], sizes: dict[str, int], parts_by_rank: list[dict[str, Part]]) -> bytes:
    """Return the text of the manifest, for whole files and for the parts that the ranks have read back.

    sizes: of the assembled files, by name. parts_by_rank: for each rank, the parts that it read, by file.
    """
    whole = [WholeFile(**entry) for entry in files]
    assembled = []
    for name, size in sizes.items():
        parts = [parts[name] for parts in parts_by_rank if name in parts]
        assembled.append(AssembledFile(path=name, bytes=size, parts=sorted(parts, key=lambda part: part.ranges)))

    manifest = PartsManifest(format_version=PARTS_VERSION, files=whole, assembled=assembled)
    return (json.dumps(manifest.model_dump(), indent=1) + "\n").encode()


# On the disk of a node


def saved_parts(run: str) -> list[Path]:
    """Return the folders with parts of a run that are not uploaded yet, oldest first."""
    return sorted(Path(run, PARTS_FOLDER).glob("step-*"))


def parts_of_node(run: str, number: int) -> list[str]:
    """Return the names of the folders of parts that this node wrote when it was node `number`, oldest first."""
    names = []
    for folder in saved_parts(run):
        with contextlib.suppress(OSError):
            if (folder / NODE).read_text(encoding="utf-8") == str(number) and (folder / MANIFEST).exists():
                names.append(folder.name)
    return names


def step_of_parts(folder: Path) -> int:
    """Return the step of a folder with parts, by its name."""
    return int(folder.name.split(".")[0].removeprefix("step-"))


def remove_parts(run: str, kept: Collection[str] = ()) -> None:
    """Delete a run's parts that are not uploaded, except the folders with names in `kept`."""
    for folder in saved_parts(run):
        if folder.name not in kept:
            shutil.rmtree(folder, ignore_errors=True)


def gather(source: Path, part: Part, target: Path) -> str | None:
    """Copy a part's ranges from a full-size file into a separate file, end to end. Returns what is wrong, or None.

    Raises StorageError, and FileNotFoundError if the folder is removed meanwhile.
    """
    sha256 = hashlib.sha256()
    try:
        with source.open("rb") as full, target.open("wb") as file:
            for begin, end in part.ranges:
                full.seek(begin)
                for data in _chunks(full, end - begin):
                    sha256.update(data)
                    file.write(data)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StorageError(f"{target} could not be written: {error.strerror or error}.") from error
    return None if sha256.hexdigest() == part.sha256 else f"{source} was cut or changed"


def scatter(source: Path, part: Part, target: Path) -> str | None:
    """Copy a downloaded part to its ranges in a full-size file. Returns what is wrong with the part, or None.

    Raises StorageError.
    """
    if source.stat().st_size != part.bytes:
        return f"{part.path} was cut or changed"

    sha256 = hashlib.sha256()
    with write_errors_of(target), source.open("rb") as downloaded, target.open("r+b") as file:
        for begin, end in part.ranges:
            file.seek(begin)
            for data in _chunks(downloaded, end - begin):
                sha256.update(data)
                file.write(data)
    return None if sha256.hexdigest() == part.sha256 else f"{part.path} was cut or changed"


def _chunks(file: IO[bytes], count: int) -> Iterator[bytes]:
    """Yield the next `count` bytes of a file in chunks, or fewer bytes if the file ends."""
    while count > 0:
        data = file.read(min(_CHUNK, count))
        if not data:
            return
        count -= len(data)
        progress()
        yield data
