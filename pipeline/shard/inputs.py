"""From the patterns that a user gave to the splits that workers read: which bytes of which files, in which format."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import pyarrow.parquet as pq

from pipeline.shard.decompression import compression_of
from pipeline.shard.encodings import UTF8, is_line_safe
from pipeline.shard.formats import Format, detect_format, refuse_misread_utf8
from schemas import storage
from schemas.errors import DataError, UsageError
from schemas.storage_errors import unreadable

SPLIT_BYTES = 16 << 20
"""Text in one split. About a second of work, so that the last worker to finish does not keep the others waiting."""

COMPRESSED_WEIGHT = 4
"""A compressed byte counts as this many bytes of text."""

MAX_NAME_PARTS = 8
"""How many members of a comma list are tried as the name of one file that has commas in it."""

_NO_END = 1 << 62


@dataclass(frozen=True)
class Piece:
    """The records that begin in bytes [start, end) of one file; for Parquet, in its row groups [start, end).

    size: bytes of the whole file.
    weight: estimated bytes of text in the piece.
    version: changes when the file does. A reader that meets another version fails.
    path_as_written: the path as the user wrote it, if workers need a different one.
    """

    path: str
    start: int
    end: int
    size: int
    weight: int
    version: str
    format: Format
    compression: str | None
    _: KW_ONLY
    path_as_written: str = ""
    encoding: str = UTF8

    @property
    def display_path(self) -> str:
        """The path as the user wrote it, as text that can be printed and stored."""
        return storage.printable(self.path_as_written or self.path)

    @property
    def is_whole_file(self) -> bool:
        """Whether the file can only be read from its beginning to its end."""
        return self.compression is not None or not is_line_safe(self.encoding)

    @property
    def end_of_records(self) -> int:
        """The offset in the plain text at or after which no record of the piece begins."""
        return _NO_END if self.is_whole_file else self.end


@dataclass(frozen=True)
class Split:
    """One worker's task: a piece of a large file, or many small files. `index` numbers the splits of a job."""

    index: int
    pieces: tuple[Piece, ...]

    @property
    def weight(self) -> int:
        return sum(piece.weight for piece in self.pieces)


def matching_files(patterns: str) -> list[tuple[str, int]]:
    """Return (URL, bytes) of every file that a comma list of patterns names, sorted by URL, each file once.

    A path that exists as it is spelled means that file, even if its name contains commas or brackets.

    Raises UsageError for a pattern that matches no file or cannot be opened, and StorageError if the disk or the store
    fails.
    """
    size_by_url: dict[str, int] = {}
    for pattern in _split_comma_list(patterns):
        fs, path = storage.filesystem(pattern)
        matches = _matches(fs, path, pattern)

        files = {fs.unstrip_protocol(name): info["size"] for name, info in matches.items() if info["type"] == "file"}
        if not files:
            raise _no_file_error(pattern, matches)
        size_by_url.update({_as_written(url, pattern): size for url, size in files.items()})

    if not size_by_url:
        raise UsageError("--input is empty. Give a file, a pattern or a comma list of them.")
    return sorted(size_by_url.items())


def _no_file_error(pattern: str, matches: dict[str, dict[str, Any]]) -> UsageError:
    if any(info["type"] == "directory" for info in matches.values()):
        return UsageError(f"--input {pattern} is a folder. Name its files with a pattern, as in {pattern}/*.jsonl.")
    return UsageError(f"--input {pattern} matches no file. Check the path; nothing was read or written.")


def _split_comma_list(patterns: str) -> list[str]:
    """Return the members of a comma list, without empty ones. Names of local files may contain commas themselves."""
    if _is_local_file(patterns):
        return [patterns]

    parts = patterns.split(",")
    members: list[str] = []
    while parts:
        count = _parts_of_first_name(parts)
        member = ",".join(parts[:count])
        parts = parts[count:]

        # Spaces around a member are layout, but those around the name of a file that exists belong to it.
        if member.strip():
            members.append(member if count > 1 else member.strip())
    return members


def _parts_of_first_name(parts: list[str]) -> int:
    """Return how many parts of a comma list make up its first member: 1, or more if they name a local file."""
    if _is_local_file(parts[0].strip()):
        return 1

    for count in range(2, min(len(parts), MAX_NAME_PARTS) + 1):
        if _is_local_file(",".join(parts[:count])):
            return count
    return 1


def _is_local_file(path: str) -> bool:
    return bool(path) and "://" not in path and os.path.isfile(storage.filesystem(path)[1])


def _as_written(url: str, pattern: str) -> str:
    """Return local files as paths, relative if the pattern was, so that a manifest does not name the user's machine."""
    path = url.removeprefix("file://")
    is_local = path != url
    if is_local and not pattern.startswith(("/", "~", "file:")):
        return os.path.relpath(path)
    return path


def _matches(fs: Any, path: str, pattern: str) -> dict[str, dict[str, Any]]:
    """Return name -> facts of every file and folder that a pattern names."""
    try:
        with storage.storage_errors_of(pattern, OSError):
            is_pattern = any(character in path for character in "*?[") and not _is_local_file(pattern)
            if is_pattern:
                return fs.glob(path, detail=True)
            return {path: fs.info(path)}
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise unreadable(f"--input {pattern}", error) from error


def plan_splits(files: list[tuple[str, int]], wanted: Format | Literal["auto"], encoding: str = UTF8) -> list[Split]:
    """Return the splits of a job: large plain files in pieces of SPLIT_BYTES, and small files together.

    A compressed file is one piece, and so is a file whose encoding does not allow cuts at the byte 0x0A.
    """
    splits: list[Split] = []
    pending: list[Piece] = []
    pending_weight = 0

    for path, size in files:
        for piece in pieces_of(path, size, wanted, encoding):
            if pending and pending_weight + piece.weight > SPLIT_BYTES:
                splits.append(Split(len(splits), tuple(pending)))
                pending = []
                pending_weight = 0

            pending.append(piece)
            pending_weight += piece.weight

    splits.append(Split(len(splits), tuple(pending)))
    return splits


def pieces_of(path: str, size: int, wanted: Format | Literal["auto"], encoding: str = UTF8) -> Iterator[Piece]:
    """Yield the pieces of one file, in order.

    Raises DataError if the file is known not to be text, cannot be read as Parquet, or is UTF-8 although another
    encoding was named.
    """
    compression = compression_of(path)
    file_format = detect_format(path, encoding) if wanted == "auto" else wanted
    is_parquet = file_format == "parquet"
    if not is_parquet and encoding != UTF8:
        refuse_misread_utf8(path, compression, encoding)

    # A file is cut between units: row groups of Parquet, else bytes.
    units = _row_groups(path) if is_parquet else size
    can_be_cut = compression is None and (is_parquet or is_line_safe(encoding))
    units_per_piece = max(1, units)
    if can_be_cut:
        units_per_piece = max(1, SPLIT_BYTES * units // max(size, SPLIT_BYTES))

    is_compressed = compression is not None or is_parquet
    text_bytes = size * COMPRESSED_WEIGHT if is_compressed else size
    version = version_of(path)

    # An empty file is one empty piece.
    for start in range(0, max(units, 1), units_per_piece):
        end = min(start + units_per_piece, units)
        weight = text_bytes * (end - start) // max(units, 1)
        yield Piece(path, start, end, size, weight, version, file_format, compression, encoding=encoding)


def _row_groups(path: str) -> int:
    try:
        with storage.open_input(path) as file:
            return pq.ParquetFile(file).num_row_groups
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is not a readable Parquet file ({error}). Copy it again, or leave it out.") from error


def version_of(path: str) -> str:
    """Return a string that changes when the file does: from its time and size, or from the store's tag."""
    fs, path_in_store = storage.filesystem(path)
    with storage.storage_errors_of(path):
        return str(fs.ukey(path_in_store))
