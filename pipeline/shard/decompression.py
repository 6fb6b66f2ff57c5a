"""Files as plain bytes, line by line, in bounded memory, whatever they are compressed with."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from typing import IO, Any

import pyarrow as pa

from schemas import storage
from schemas.errors import DataError

COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz", ".zst": "zstd"}
UNREADABLE = (EOFError, OSError, ValueError, zlib.error, lzma.LZMAError)
"""What a file that is cut or damaged raises, in any of these formats."""

MAX_RATIO = 200  # text shrinks 3 to 10 times, logs up to 100; a file that grows more than this is a bomb,
ALWAYS_ALLOWED = 256 << 20  # unless it stays below this size
MAX_RECORD = 16 << 20  # bytes; a larger line or document is rejected: the longest books have about 5 MB


def compression_of(path: str) -> str | None:
    return next((name for suffix, name in COMPRESSIONS.items() if path.endswith(suffix)), None)


def open_plain(path: str, compression: str | None) -> IO[bytes]:
    """A file open for reading, decompressed."""
    file = storage.open_input(path)
    if compression == "zstd":
        # Arrow's stream reads all frames of a file and, unlike zstandard's, notices when the end is missing
        stream: Any = pa.CompressedInputStream(pa.PythonFile(file, "r"), "zstd")
        return io.BufferedReader(stream)
    opener = {"gzip": gzip.open, "bz2": bz2.open, "xz": lzma.open}.get(compression or "")
    return opener(file, "rb") if opener else file


def plain_lines(path: str, start: int, size: int, compression: str | None) -> Iterator[tuple[int, bytes | None]]:
    """(place, line) of every line that begins at `start` or after; None for a line above MAX_RECORD bytes.

    Raises DataError for a bomb and for UTF-16, and what UNREADABLE lists for a damaged file.
    """
    most = max(ALWAYS_ALLOWED, MAX_RATIO * size) if compression else None
    with open_plain(path, compression) as file:
        place = _seek_line(file, start)
        first = True
        while line := file.readline(MAX_RECORD + 1):
            if first and place == 0:
                _refuse_utf16(path, line)
            first = False
            length = len(line)
            if length > MAX_RECORD:
                length += _skip_line(file, line, path, place, most)
            yield place, line if length == len(line) and length <= MAX_RECORD else None
            place += length
            _refuse_bomb(path, place, most)


def _seek_line(file: IO[bytes], start: int) -> int:
    """The place of the first line that begins at `start` or after; one across the cut belongs to the piece before."""
    if start == 0:
        return 0
    file.seek(start - 1)
    place = start - 1
    while True:
        part = file.readline(1 << 20)
        place += len(part)
        if not part or part.endswith(b"\n"):
            return place


def _skip_line(file: IO[bytes], line: bytes, path: str, place: int, most: int | None) -> int:
    """Read to the end of a line that is too long, without keeping it; returns how many bytes were left of it."""
    skipped = 0
    while not line.endswith(b"\n") and (line := file.readline(1 << 20)):
        skipped += len(line)
        _refuse_bomb(path, place + skipped, most)
    return skipped


def _refuse_bomb(path: str, grown: int, most: int | None) -> None:
    if most is not None and grown > most:
        raise DataError(
            f"{path} grows beyond {grown >> 20} MB when decompressed, {MAX_RATIO} times its size or more: it is no "
            "text, or made to fill a disk. Leave it out, or decompress it yourself if you trust it."
        )


def _refuse_utf16(path: str, line: bytes) -> None:
    if line.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{path} is UTF-16, but UTF-8 is expected. Convert it: iconv -f UTF-16 -t UTF-8 {path}.")
