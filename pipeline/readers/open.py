"""Opens files as plain bytes in bounded memory, with any supported compression.

Decompressed bytes are counted block by block, so a decompression bomb is refused before it fills memory or a disk.
"""

from __future__ import annotations

import io
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import IO, Any

import pyarrow as pa

from pipeline.readers.encodings import is_line_safe, utf8_chunks
from pipeline.readers.frames import CODECS, CompressedBytes, Frames, bzip2_blocks, read_frames
from pipeline.readers.record import MAX_RATIO
from schemas.errors import DataError

COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz", ".zst": "zstd"}

SHORT_SUFFIXES = {".tgz": ".tar.gz", ".tbz": ".tar.bz2", ".tbz2": ".tar.bz2", ".txz": ".tar.xz", ".tzst": ".tar.zst"}
"""Suffixes of compressed tar archives, and what they stand for."""

DECOMPRESSORS: dict[str, Callable[[CompressedBytes], Frames]] = {
    **{name: partial(read_frames, codec) for name, codec in CODECS.items()},
    "bz2": bzip2_blocks,
}

DECOMPRESSION_ERRORS = (EOFError, OSError, ValueError, zlib.error, lzma.LZMAError, pa.ArrowException, MemoryError)
"""Exceptions raised while reading a file that is truncated, damaged or too large, in any of these formats."""

ALWAYS_ALLOWED = 256 << 20
"""Below this many decompressed bytes, no file counts as a bomb, whatever its ratio."""

NO_END = 1 << 62
"""An offset greater than that of any line."""

BLOCK_BYTES = 1 << 16


def compression_of(path: str) -> str | None:
    """Return the compression that a path's suffix stands for, ignoring case, or None."""
    lower_path = long_name(path)
    for suffix, name in COMPRESSIONS.items():
        if lower_path.endswith(suffix):
            return name
    return None


def long_name(path: str) -> str:
    """Return a path in lower case, with the two suffixes that one of SHORT_SUFFIXES stands for.

    What follows the name in the address of a web server is left out, as in a.txt.gz?download=1.
    """
    path = re.split("[?#]", path)[0] if path.startswith(("http://", "https://")) else path
    stem, dot, suffix = path.lower().rpartition(".")
    return stem + SHORT_SUFFIXES.get(dot + suffix, dot + suffix)


def open_plain(file: IO[bytes], shown: str, compression: str | None, max_ratio: int = MAX_RATIO) -> IO[bytes]:
    """Return the decompressed bytes of an open file, which is closed with them.

    shown: the file's name in errors.

    Reading raises DataError if the file grows more than `max_ratio` times, and the exceptions in DECOMPRESSION_ERRORS
    if it is damaged.
    """
    if compression is None:
        return file
    frames = plain_frames(CompressedBytes(shown, file), compression, max_ratio)
    return as_file((data for _, data in frames), file.close)


@dataclass
class Stream:
    """The open plain bytes of a range, and of what follows the range in its file.

    offset: that of the next byte of `file` when it is opened.
    end: the offset at which the next range begins; NO_END for the last one, and as long as the end is not known. It is
    set before any byte after it is read.

    Offsets count plain bytes of the whole file, or of its UTF-8 form if the encoding is not line-safe. In a part of a
    compressed file they count from its first frame.

    A line that begins exactly with a frame belongs to the part before, because the line feed before it is in a frame
    that its reader does not read. In other words, a line belongs to the range that has the byte before it. So that the
    same holds where a plain file is cut, its streams begin and end one byte early.
    """

    file: IO[bytes]
    offset: int = 0
    end: int = NO_END


def open_text(
    file: IO[bytes], shown: str, compression: str | None, encoding: str, max_ratio: int = MAX_RATIO
) -> IO[bytes]:
    """Return the text of an open file: decompressed, and converted to UTF-8 unless its encoding is line-safe."""
    plain = open_plain(file, shown, compression, max_ratio)
    if is_line_safe(encoding):
        return plain
    return as_file(utf8_chunks(plain, encoding), plain.close)


def refuse_bomb(path: str, plain_bytes: int, stored_bytes: int, max_ratio: int) -> None:
    """Raise DataError if a file has grown more than `max_ratio` times, and beyond ALWAYS_ALLOWED."""
    allowed = max(ALWAYS_ALLOWED, max_ratio * stored_bytes)
    if plain_bytes > allowed:
        raise DataError(
            f"{path} grows beyond {allowed >> 20} MB when decompressed, more than {max_ratio} times its compressed "
            "size: it is not text, or was made to fill a disk. Leave it out, or raise --max_decompression_ratio if you "
            "trust it."
        )


def plain_frames(source: CompressedBytes, compression: str, max_ratio: int) -> Frames:
    """Yield the frames from the next byte on, each as the readers in DECOMPRESSORS do. Refuses bombs."""
    start = source.offset
    plain_bytes = 0
    for frame_start, data in DECOMPRESSORS[compression](source):
        plain_bytes += len(data)
        if plain_bytes > ALWAYS_ALLOWED:
            refuse_bomb(source.path, plain_bytes, source.offset - start, max_ratio)
        yield frame_start, data


def as_file(chunks: Iterable[bytes], close: Callable[[], None]) -> IO[bytes]:
    """Return chunks of bytes as a file. close: closes what they are read from."""
    return io.BufferedReader(_Chunks(filter(None, chunks), close), BLOCK_BYTES)


class _Chunks(io.RawIOBase):
    def __init__(self, chunks: Iterator[bytes], close: Callable[[], None]):
        self._chunks = chunks
        self._close = close
        self._rest = memoryview(b"")  # of the last chunk

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._rest:
            self._rest = memoryview(next(self._chunks, b""))

        view = memoryview(buffer).cast("B")
        count = min(len(view), len(self._rest))
        view[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def close(self) -> None:
        self._close()
        super().close()


class LimitedReads:
    """An open file that refuses single large reads, for readers that trust sizes in a file.

    max_bytes: of one read. refusal: returns what is raised for a larger one.
    """

    def __init__(self, file: IO[bytes], max_bytes: int, refusal: Callable[[int], Exception]):
        self._file = file
        self._max_bytes = max_bytes
        self._refusal = refusal

    def read(self, size: int = -1) -> bytes:
        if size > self._max_bytes:
            raise self._refusal(size)
        return self._file.read(size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
