"""Divides the input files into splits for workers: which bytes of which files, in which format.

The division depends on the paths, sizes and suffixes of the files and on the options. Up to MAX_CHECKED_FILES files are
opened as well, to refuse unreadable ones early; their contents matter if a format that they show cannot be cut. Of more
files the launcher opens at most one for each format. Workers find the lines, row groups or frames that begin in their
bytes.

The splits are in files of the job's staging, because the job's graph must not grow with the number of inputs:

    splits-00000.json    up to SPLITS_PER_FILE splits
    inputs.json          the files, as the manifest will list them

The launcher writes them before the graph runs, and workers read them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any, Literal

from pipeline.commit.staging import Staging
from pipeline.readers.cut_files import CELL_BYTES, FRAME_FORMATS
from pipeline.readers.encodings import AUTO, UTF8, is_line_safe
from pipeline.readers.file_encoding import file_encoding
from pipeline.readers.formats import ForeignFileError, check_file, find_format, named_format, refuse_binary
from pipeline.readers.listing import InputFile
from pipeline.readers.open import compression_of
from pipeline.readers.record import Format
from pipeline.readers.table import READERS, Reader
from schemas import storage
from schemas.errors import DataError
from schemas.manifest import Input, decode_entries, encode_entries
from schemas.storage import concurrently

SPLIT_BYTES = 16 << 20
"""Bytes of text in one split: about a second of work, so that other workers do not wait long for the last one to
finish."""

MAX_RANGES = 256
"""Maximum ranges in one split. For small files, two requests each cost more than reading their bytes."""

COMPRESSED_WEIGHT = 4
"""A compressed byte counts as this many bytes of text."""

CUT_ABOVE = 2 * CELL_BYTES
"""Compressed files up to this size are one range."""

MAX_CHECKED_FILES = 256
"""Up to this many files are opened before the job starts, to refuse unreadable ones. More are left to the workers."""

SPLITS_PER_FILE = 1024

_INPUTS = "inputs.json"
_NUMBER = re.compile(r"\b\d[\d,]*\b")


@dataclass(frozen=True, slots=True)
class FileRange:
    """The records that begin in bytes [start, end) of one file: lines, row groups of Parquet, or compressed frames.

    size: bytes of the whole file.
    weight: estimated bytes of text in the range.
    version: changes when the file does. A reader that finds a different version fails.
    format, encoding: "auto" if the worker must detect it, which `with_format` does.
    path_as_written: the path as the user wrote it, if workers need a different one.
    in_folder: whether the file was not named, only its folder, so that it is left out if it is not text.
    corpus: the name of its corpus, with --inputs.
    """

    path: str
    start: int
    end: int
    size: int
    weight: int
    version: str
    format: Format | Literal["auto"]
    compression: str | None
    path_as_written: str = ""
    encoding: str = UTF8
    in_folder: bool = False
    corpus: str = ""

    @property
    def file(self) -> InputFile:
        return InputFile(self.path, self.size, self.version)

    @property
    def display_path(self) -> str:
        """The path as the user wrote it, in a form that can be printed and stored."""
        return storage.printable(self.path_as_written or self.path)

    @property
    def is_cut(self) -> bool:
        """Whether this is part of a compressed file: its offsets count from its first frame, not from the file's."""
        is_part = self.start > 0 or self.end < self.size
        return is_part and self.compression in FRAME_FORMATS and is_line_safe(self.encoding)

    @property
    def is_whole_file(self) -> bool:
        """Whether the range is a whole file, read from beginning to end."""
        return not is_line_safe(self.encoding) or (self.compression is not None and not self.is_cut)

    @property
    def reader(self) -> Reader:
        """The row of its format; that of plain text while the format is not known."""
        return READERS["text" if self.format == "auto" else self.format]

    @property
    def may_have_urls(self) -> bool:
        """Whether records may have the host of a URL, as far as is known before the file is read."""
        known = named_format(self.path) if self.format == "auto" else self.format
        if known is None:
            return True
        reader = READERS[known]
        return reader.has_urls or reader.members is not None

    def place(self, position: int) -> dict[str, Any]:
        """Return where a record begins, for errors and OUTPUT/rejected/: its file, and its offset as `place`.

        In Parquet and Arrow, `place` is the number of the row, and `unit` is "row". In an encoding that is not
        line-safe, `place` counts bytes of the file's UTF-8 form, and `unit` is "utf-8 byte".
        In later ranges of a cut compressed file, `place` counts plain bytes from the first frame that begins at or
        after byte `compressed_start` of the compressed file.
        """
        found: dict[str, Any] = {"path": self.display_path, "place": position}
        if self.reader.gets == "stored":
            found["unit"] = "row"
        elif not is_line_safe(self.encoding) or (self.format == "json" and self.encoding != UTF8):
            found["unit"] = "utf-8 byte"
        elif self.is_cut and self.start > 0:
            found["compressed_start"] = self.start
        return found


@dataclass(frozen=True, slots=True)
class Split:
    """One worker's task: a range of a large file, or many small files. `index` numbers the splits of a job."""

    index: int
    ranges: tuple[FileRange, ...]


def plan_splits(
    files: Sequence[InputFile],
    wanted: Format | Literal["auto"],
    encoding: str = UTF8,
    in_folders: frozenset[str] = frozenset(),
) -> list[Split]:
    """Return the splits of a job: large files in ranges, and small files together.

    in_folders: paths of files that workers leave out if they are not text (see `Listing`).

    If there are up to MAX_CHECKED_FILES files, they are opened concurrently; otherwise the workers detect formats.
    Raises DataError if opened files are known not to be text, cannot be read as Parquet or Arrow, or are in another
    encoding.
    """
    formats: list[Format | Literal["auto"]] = [wanted] * len(files)
    if len(files) <= MAX_CHECKED_FILES:
        formats = _checked_formats(files, wanted, encoding, in_folders)
    else:
        _check_first_files(files, wanted, encoding)

    splits: list[Split] = []
    pending: list[FileRange] = []
    pending_weight = 0

    for file, file_format in zip(files, formats, strict=True):
        for file_range in ranges_of(file, file_format, encoding):
            file_range = replace(file_range, in_folder=file.path in in_folders)
            is_full = pending_weight + file_range.weight > SPLIT_BYTES or len(pending) == MAX_RANGES
            if pending and is_full:
                splits.append(Split(len(splits), tuple(pending)))
                pending = []
                pending_weight = 0

            pending.append(file_range)
            pending_weight += file_range.weight

    splits.append(Split(len(splits), tuple(pending)))
    return splits


def _checked_formats(
    files: Sequence[InputFile], wanted: Format | Literal["auto"], encoding: str, in_folders: frozenset[str]
) -> list[Format | Literal["auto"]]:
    """Return the formats of files. Raises a DataError that names the first file of each kind that is refused."""

    def format_or_error(file: InputFile) -> Format | Literal["auto"] | DataError:
        is_named = file.path not in in_folders
        try:
            if not is_named:
                refuse_binary(file, wanted=wanted)
            return check_file(file, wanted, encoding)
        except ForeignFileError as error:
            return error if is_named else wanted
        except DataError as error:
            return error

    found = list(concurrently(format_or_error, files))
    errors = {file.path: error for file, error in zip(files, found, strict=True) if isinstance(error, DataError)}
    if len(errors) == 1:
        raise next(iter(errors.values()))
    if errors:
        raise DataError(f"{len(errors):,} of {len(files):,} input files are refused. {_by_kind(errors)}")
    return [file_format for file_format in found if not isinstance(file_format, DataError)]


def _check_first_files(files: Sequence[InputFile], wanted: Format | Literal["auto"], encoding: str) -> None:
    """Check the first file of each format whose package may be missing."""
    checked: set[Format] = set()
    for file in files:
        found = named_format(file.path) if wanted == "auto" else wanted
        if found is not None and found not in checked and READERS[found].can_be_checked:
            checked.add(found)
            check_file(file, wanted, encoding)


def _by_kind(errors: dict[str, DataError]) -> str:
    """Return the first error of each kind. Errors are of one kind if they differ in the path and in numbers alone."""
    kinds: dict[str, list[str]] = {}
    for path, error in errors.items():
        kind = _NUMBER.sub("", str(error).replace(path, ""))
        kinds.setdefault(kind, []).append(str(error))

    sentences = [same[0] + (f" (and {len(same) - 1:,} more like it)" if same[1:] else "") for same in kinds.values()]
    return " ".join(sentences)


def ranges_of(file: InputFile, file_format: Format | Literal["auto"], encoding: str = UTF8) -> Iterator[FileRange]:
    """Yield the ranges of one file, in order.

    The cut is the same whether or not the format is known, unless it can be cut less freely than most (`Reader.cuts`).
    """
    path, size, version = file
    compression = compression_of(path)
    named = named_format(path)
    is_compressed = compression is not None or (named is not None and READERS[named].gets == "stored")
    growth = COMPRESSED_WEIGHT if is_compressed else 1

    # An empty file is one empty range.
    cuts = "anywhere"
    if file_format != "auto":
        cuts = READERS[file_format].cuts
        encoding = encoding if READERS[file_format].uses_encoding else UTF8
    range_bytes = max(1, _range_bytes(size, compression, cuts if is_line_safe(encoding) else "whole"))
    for start in range(0, max(size, 1), range_bytes):
        end = min(start + range_bytes, size)
        weight = growth * (end - start)
        yield FileRange(path, start, end, size, weight, version, file_format, compression, encoding=encoding)


def _range_bytes(size: int, compression: str | None, cuts: Literal["anywhere", "frames", "whole"]) -> int:
    if compression is None and cuts == "anywhere":
        return SPLIT_BYTES

    has_frames = compression in FRAME_FORMATS and size > CUT_ABOVE
    return CELL_BYTES if has_frames and cuts != "whole" else size


def with_format(file_range: FileRange) -> FileRange:
    """Return the range with its format set, which is detected from the file's head unless it is known.

    So is the encoding of text with --encoding auto; that of an archive stays "auto", for its members.

    Raises DataError as `plan_splits` does, and ForeignFileError for a file that is not text.
    The head is remembered, so a worker that reads ranges of one file in a row makes one request for it, and none for a
    range at the beginning of the file.
    """
    if file_range.in_folder:
        refuse_binary(file_range.file, file_range.display_path, file_range.format)
    encoding = file_range.encoding
    found = file_range.format
    if found == "auto" or file_range.start == 0:
        found = find_format(file_range.file, found, encoding, file_range.display_path)
    elif encoding != AUTO:
        return file_range

    if not READERS[found].uses_encoding:
        encoding = UTF8
    elif encoding == AUTO and READERS[found].gets == "text":
        encoding = file_encoding(file_range.file, file_range.display_path)
    return replace(file_range, format=found, encoding=encoding)


# ---- Files in staging ----


_values_of = attrgetter(*(field.name for field in fields(FileRange)))  # dataclasses.astuple is slower


def _splits_name(number: int) -> str:
    return f"splits-{number:05d}.json"


def files_for(splits: int) -> int:
    """Return the number of files that hold `splits` splits."""
    return -(-splits // SPLITS_PER_FILE)


def write_splits(splits: list[Split], staging: Staging) -> None:
    """Write all splits into staging, in order."""
    for number in range(files_for(len(splits))):
        part = splits[number * SPLITS_PER_FILE : (number + 1) * SPLITS_PER_FILE]
        rows = [[split.index, *map(_values_of, split.ranges)] for split in part]
        staging.put(_splits_name(number), json.dumps(rows).encode())  # also paths that are not UTF-8, as escapes


def read_splits(number: int, staging: Staging) -> Iterator[tuple[int, Split]]:
    """Yield (index, split) for each split of one file."""
    for index, *ranges in json.loads(storage.read(staging.url(_splits_name(number)))):
        yield index, Split(index, tuple(FileRange(*values) for values in ranges))


def write_inputs(inputs: list[Input], staging: Staging) -> None:
    """Write the list of inputs into staging."""
    staging.put(_INPUTS, encode_entries(inputs))


def read_inputs(staging: Staging) -> list[Input] | None:
    """Return the list of inputs; None if it was removed, as it is when the job is done."""
    try:
        data = storage.read(staging.url(_INPUTS))
    except DataError:
        return None
    return decode_entries(data, "inputs")
