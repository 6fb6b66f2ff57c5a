"""Read input files from a store by ranges: only what a reader needs, without asking for the size first.

fsspec's own file objects ask for the size, and some read 50 MB ahead of a reader that needs a piece of 16 MB. Files on
a local disk are opened as usual.
"""

from __future__ import annotations

import io
from typing import IO, Any, NamedTuple

from pipeline.shard.listing import InputFile
from pipeline.shard.recent import RecentValues
from schemas import storage
from schemas.byte_ranges import ByteRange, read_ranges

HEAD_BYTES = 1 << 16
"""Read of a file to find out what it is: less than what one round trip to a store costs."""

MAX_READ = 4 << 20
"""Largest read. It is held in memory, once per open file."""

_STEP = 4  # by which reads grow beyond the expected end
_BUFFER_BYTES = 1 << 16

# A worker needs the head of one file at a time for each of its threads. 16 of them are 16 MB at most.
_HEADS: RecentValues[bytes] = RecentValues(16)


class KnownBytes(NamedTuple):
    """Bytes of a file that were read already, and the offset of the first one."""

    start: int
    data: bytes


NOTHING_KNOWN = KnownBytes(0, b"")


def open_range(file: InputFile, start: int = 0, end: int = 0, known: KnownBytes = NOTHING_KNOWN) -> IO[bytes]:
    """Open a file for reading at `start`; a reader that expects to read to `end` gets few, large reads until there.

    known: bytes that need not be read from a store again.
    Offsets stay those of the file. Reading raises DataError when the file is gone, and StorageError.
    """
    if storage.is_local(file.path):
        opened = storage.open_input(file.path)
    else:
        opened = io.BufferedReader(_RangeFile(file, end, known), _BUFFER_BYTES)

    if start:
        opened.seek(start)
    return opened


def open_head(file: InputFile, head_bytes: int = HEAD_BYTES) -> IO[bytes]:
    """Open a file to find out what it is. Its first bytes are remembered, so that reading them again is no request."""
    if not storage.is_local(file.path):
        end = min(head_bytes, file.size)
        _HEADS.get(file, lambda: _read_range(file.path, 0, end))
    return open_range(file)


class _RangeFile(io.RawIOBase):
    """A remote file of known size."""

    def __init__(self, file: InputFile, expected_end: int, known: KnownBytes):
        self._file = file
        self._expected_end = min(expected_end, file.size)
        self._position = 0
        self._next_read = HEAD_BYTES

        # The bytes that were read last, and where they begin.
        self._data_start, self._data = known
        if not known.data:
            self._data = _HEADS.remembered(file) or b""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._file.size}[whence]
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        place = self._position - self._data_start
        if not 0 <= place < len(self._data):
            self._read(len(view))
            place = 0

        found = self._data[place : place + len(view)]
        view[: len(found)] = found
        self._position += len(found)
        return len(found)

    def _read(self, wanted: int) -> None:
        """Read at least `wanted` bytes at the current position, or all to the end of the file."""
        is_next = self._position == self._data_start + len(self._data)
        if not is_next:
            self._next_read = HEAD_BYTES

        length = max(wanted, self._next_read)
        if self._position < self._expected_end:
            length = max(wanted, min(MAX_READ, self._expected_end - self._position))
        else:
            self._next_read = min(MAX_READ, _STEP * self._next_read)

        end = min(self._position + length, self._file.size)
        self._data_start = self._position
        self._data = _read_range(self._file.path, self._position, end)


def _read_range(path: str, start: int, end: int) -> bytes:
    if start >= end:
        return b""

    (data,) = read_ranges([ByteRange(path, start, end)])
    return data
