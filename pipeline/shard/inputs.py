"""From the patterns a user gave to the splits that workers read: which bytes of which files, in which format."""

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

SPLIT_BYTES = (
    16 << 20
)  # about a second's work; small enough that the last worker to finish does not keep others waiting
COMPRESSED_WEIGHT = 4  # a compressed byte is about so many bytes of text
MAX_COMMAS = 8  # parts of a comma list that are tried as one name


@dataclass(frozen=True)
class Piece:
    """The records that begin in bytes [start, end) of one file; in Parquet, its row groups [start, end).

    `weight` is about how many bytes of text it holds. `version` changes when the file does: reading ends with an error
    if it is another one by then. `given` is the path as the user wrote it, where workers need another one.
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
    def shown_path(self) -> str:
        """The path as the user wrote it, as text that can be printed and stored."""
        return storage.shown(self.path_as_written or self.path)

    @property
    def is_whole_file(self) -> bool:
        """Whether the file can only be read from its beginning to its end."""
        return self.compression is not None or not is_line_safe(self.encoding)

    @property
    def end_of_records(self) -> int:
        """The place in the plain text behind which no record of the piece begins."""
        return 1 << 62 if self.is_whole_file else self.end


@dataclass(frozen=True)
class Split:
    """One worker's task: a piece of a large file, or many small files. `index` orders the splits of a job."""

    index: int
    pieces: tuple[Piece, ...]

    @property
    def weight(self) -> int:
        return sum(piece.weight for piece in self.pieces)


def matching_files(patterns: str) -> list[tuple[str, int]]:
    """(URL, bytes) of every file that a comma list of patterns names, sorted, each once.

    A path that exists as it is spelled means that file, whatever commas and brackets its name holds. Raises UsageError
    for a pattern that matches no file or cannot be opened, and StorageError when the disk or the store refuses.
    """
    found: dict[str, int] = {}
    for pattern in _separate(patterns):
        fs, path = storage.filesystem(pattern)
        matches = _matches(fs, path, pattern)
        files = {fs.unstrip_protocol(name): info["size"] for name, info in matches.items() if info["type"] == "file"}
        if not files:
            if any(info["type"] == "directory" for info in matches.values()):
                raise UsageError(
                    f"--input {pattern} is a folder. Name its files with a pattern, as in {pattern}/*.jsonl."
                )
            raise UsageError(f"--input {pattern} matches no file. Check the path; nothing was read or written.")
        found.update({_as_given(url, pattern): size for url, size in files.items()})
    if not found:
        raise UsageError("--input is empty. Give a file, a pattern or a comma list of them.")
    return sorted(found.items())


def _separate(patterns: str) -> list[str]:
    """The members of a comma list. Names of local files may hold commas themselves, alone or as members of a list."""
    if _is_local_file(patterns):
        return [patterns]

    parts = patterns.split(",")
    separate: list[str] = []
    while parts:
        taken = 1
        if not _is_local_file(parts[0].strip()):
            joined = (n for n in range(2, min(len(parts), MAX_COMMAS) + 1) if _is_local_file(",".join(parts[:n])))
            taken = next(joined, 1)
        separate.append(",".join(parts[:taken]))
        parts = parts[taken:]
    return [part.strip() if "," not in part else part for part in separate if part.strip()]


def _is_local_file(path: str) -> bool:
    return bool(path) and "://" not in path and os.path.isfile(storage.filesystem(path)[1])


def _as_given(url: str, pattern: str) -> str:
    """Local files by path, relative ones relative, so that a manifest does not tell whose machine it was made on."""
    path = url.removeprefix("file://")
    relative = path != url and not pattern.startswith(("/", "~", "file:"))
    return os.path.relpath(path) if relative else path


def _matches(fs: Any, path: str, pattern: str) -> dict[str, dict[str, Any]]:
    """Name -> facts of every file and folder that a pattern names."""
    try:
        with storage.storage_errors_of(pattern, OSError):
            is_pattern = any(c in path for c in "*?[") and not _is_local_file(pattern)
            return fs.glob(path, detail=True) if is_pattern else {path: fs.info(path)}
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise unreadable(f"--input {pattern}", error) from error


def plan_splits(files: list[tuple[str, int]], wanted: Format | Literal["auto"], encoding: str = UTF8) -> list[Split]:
    """Large plain files in pieces of SPLIT_BYTES, small files together.

    A compressed file is one piece, and so is one whose encoding allows no cut at the byte 0x0A.
    """
    splits: list[Split] = []
    together: list[Piece] = []
    weight = 0
    for piece in (piece for path, size in files for piece in pieces_of(path, size, wanted, encoding)):
        if together and weight + piece.weight > SPLIT_BYTES:
            splits.append(Split(len(splits), tuple(together)))
            together, weight = [], 0
        together.append(piece)
        weight += piece.weight
    return [*splits, Split(len(splits), tuple(together))]


def pieces_of(path: str, size: int, wanted: Format | Literal["auto"], encoding: str = UTF8) -> Iterator[Piece]:
    """The pieces of one file, in order."""
    compression = compression_of(path)
    form = detect_format(path, encoding) if wanted == "auto" else wanted
    if form != "parquet" and encoding != UTF8:
        refuse_misread_utf8(path, compression, encoding)
    units = _row_groups(path) if form == "parquet" else size
    can_be_cut = form == "parquet" or is_line_safe(encoding)
    whole = compression is not None or units == 0 or not can_be_cut
    step = max(1, units) if whole else max(1, SPLIT_BYTES * units // max(size, SPLIT_BYTES))
    text = size * (COMPRESSED_WEIGHT if compression or form == "parquet" else 1)
    version = version_of(path)

    for start in range(0, max(units, 1), step):
        end = min(start + step, units)
        weight = text * (end - start) // max(units, 1)
        yield Piece(path, start, end, size, weight, version, form, compression, encoding=encoding)


def _row_groups(path: str) -> int:
    try:
        with storage.open_input(path) as file:
            return pq.ParquetFile(file).num_row_groups
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is not a readable Parquet file ({error}). Copy it again, or leave it out.") from error


def version_of(path: str) -> str:
    """Changes when the file does: its time and size, or the store's tag."""
    fs, inner = storage.filesystem(path)
    with storage.storage_errors_of(path):
        return str(fs.ukey(inner))
