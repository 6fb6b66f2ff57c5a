"""Files as plain bytes, in bounded memory, whatever they are compressed with."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from typing import IO, Any

import pyarrow as pa

from pipeline.shard.encodings import UTF8, Transcoded, is_line_safe
from pipeline.shard.limits import ALWAYS_ALLOWED, MAX_RATIO
from schemas import storage
from schemas.errors import DataError

COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz", ".zst": "zstd"}
UNREADABLE = (EOFError, OSError, ValueError, zlib.error, lzma.LZMAError, pa.ArrowException, MemoryError)
"""What a file that is cut, damaged or too large raises, in any of these formats."""

_BLOCK = 1 << 16
_XZ_MAGIC = b"\xfd7zXZ\x00"


def compression_of(path: str) -> str | None:
    return next((name for suffix, name in COMPRESSIONS.items() if path.lower().endswith(suffix)), None)


def open_plain(path: str, compression: str | None, max_ratio: int = MAX_RATIO) -> IO[bytes]:
    """Return a file open for reading, decompressed.

    Reading raises DataError when the file grows more than `max_ratio` times, and what UNREADABLE lists when it is
    damaged.
    """
    file = storage.open_input(path)
    if compression is None:
        return file
    return io.BufferedReader(_Decompressed(path, file, compression, max_ratio), _BLOCK)


def open_text(path: str, compression: str | None, encoding: str, max_ratio: int = MAX_RATIO) -> IO[bytes]:
    """Return a file open for reading by lines: decompressed, and as UTF-8 unless its own encoding is line-safe."""
    file = open_plain(path, compression, max_ratio)
    if encoding == UTF8 or is_line_safe(encoding):
        return file
    return io.BufferedReader(Transcoded(file, encoding), _BLOCK)


class _Decompressed(io.RawIOBase):
    """The plain bytes of a compressed file. They are counted by blocks, so a bomb is found before it is taken apart."""

    def __init__(self, path: str, file: IO[bytes], compression: str, max_ratio: int):
        self._path = path
        self._file = file
        self._max_ratio = max_ratio
        self._grown = 0
        self._stream = _decoder(path, file, compression)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        data = self._stream.read(len(view))
        view[: len(data)] = data

        self._grown += len(data)
        self._refuse_bomb()
        return len(data)

    def _refuse_bomb(self) -> None:
        if self._grown <= ALWAYS_ALLOWED or self._grown <= self._max_ratio * self._file.tell():
            return
        raise DataError(
            f"{self._path} grows beyond {self._grown >> 20} MB when decompressed, more than {self._max_ratio} times "
            "its compressed size: it is not text, or made to fill a disk. Leave it out, or raise "
            "--max_decompression_ratio if you trust it."
        )

    def close(self) -> None:
        self._file.close()
        super().close()


def _decoder(path: str, file: IO[bytes], compression: str) -> Any:
    """Return an object whose read(size) gives at most `size` plain bytes, and none at the end."""
    if compression == "gzip":
        stream = gzip.GzipFile(fileobj=file, mode="rb")
        stream.read = stream.read1  # type: ignore[method-assign]  # returns what one block gives
        return stream
    if compression == "zstd":
        # Arrow's stream reads all frames of a file and, unlike zstandard's, notices when the end is missing.
        return pa.CompressedInputStream(pa.PythonFile(file, "r"), "zstd")
    return _ConcatenatedStreams(path, file, compression)


class _ConcatenatedStreams:
    """A .bz2 or .xz file of one or more streams, as pbzip2, `xz -T` and `cat a.xz b.xz` make them.

    Python's own readers take anything behind a whole stream for garbage and end there without an error, so a damaged
    header would lose the rest of the file. Here what follows a stream must be another stream, or zeros after xz, which
    its format allows as padding.
    """

    def __init__(self, path: str, file: IO[bytes], compression: str):
        self._path = path
        self._file = file
        self._compression = compression
        self._number = 1
        self._start = 0  # of the stream, in the compressed file
        self._pending = file.read(_BLOCK)
        self._ended = False
        self._decoder = self._new_decoder()

    def read(self, size: int) -> bytes:
        while not self._ended:
            data = self._decompress(size)
            if data:
                return data
            if self._decoder.eof:
                self._ended = not self._begin_next_stream()
        return b""

    def _decompress(self, size: int) -> bytes:
        if self._decoder.eof:
            return b""

        block = self._pending
        self._pending = b""
        if not block and self._decoder.needs_input:
            block = self._file.read(_BLOCK)
            if not block:
                raise EOFError(f"the stream that begins at byte {self._start:,} has no end")

        try:
            return self._decoder.decompress(block, size)
        except (OSError, ValueError, lzma.LZMAError) as error:
            raise DataError(
                f"{self._path} is damaged: {self._compression} stream {self._number}, which begins at byte "
                f"{self._start:,} of the compressed file, cannot be read ({error}). Copy the file again, or leave it "
                "out."
            ) from error

    def _begin_next_stream(self) -> bool:
        """Prepare the stream behind the finished one; returns False at the end of the file."""
        rest = self._decoder.unused_data or self._file.read(_BLOCK)
        if self._compression == "xz":
            rest = rest.lstrip(b"\0")
            while not rest and (block := self._file.read(_BLOCK)):
                rest = block.lstrip(b"\0")
        if not rest:
            return False

        self._number += 1
        self._start = self._file.tell() - len(rest)
        self._pending = rest
        self._decoder = self._new_decoder()
        return True

    def _new_decoder(self) -> Any:
        if self._compression == "bz2":
            return bz2.BZ2Decompressor()
        # The older .lzma has no magic number, so damage could pass for it: only a whole file may be one.
        is_xz = self._number > 1 or self._pending.startswith(_XZ_MAGIC)
        return lzma.LZMADecompressor(lzma.FORMAT_XZ if is_xz else lzma.FORMAT_AUTO)
