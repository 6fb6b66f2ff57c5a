"""Reads byte ranges of files in a store: only what a reader needs, without requesting the size first.

fsspec's own file objects request the size, and some read 50 MB ahead for a reader that needs a range of 16 MB. Files on
a local disk are opened as usual.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import IO, Any, NamedTuple

from fsspec.implementations.local import LocalFileSystem

from pipeline.readers.listing import InputFile
from schemas import storage
from schemas.errors import DataError

HEAD_BYTES = 1 << 16
"""Bytes that are read to detect what a file is. Reading them takes less time than one round trip to a store."""

MAX_READ = 4 << 20
"""Maximum bytes of one read, which are held in memory for each open file."""

KEPT_HEADS = 16
"""Heads of files that a process remembers, at most 16 MB. Each of a worker's threads needs one at a time."""

_STEP = 4  # factor by which reads grow beyond the expected end
_BUFFER_BYTES = 1 << 16

_heads: dict[InputFile, bytes] = {}  # the most recent one last; each step of its use is atomic for threads


class HeldFile(InputFile):
    """A file that is in memory, such as a member of an archive."""

    data: bytes

    @classmethod
    def of(cls, path: str, data: bytes) -> HeldFile:
        """Return the file with this path and content."""
        file = cls(path, len(data), "")
        file.data = data
        return file


def open_range(file: InputFile, start: int = 0, end: int = 0, known: bytes = b"") -> IO[bytes]:
    """Open a file for reading at `start`. Up to `end`, where the reader expects to stop, it makes few, large reads.

    known: bytes from `start` on that need not be read from a store again.
    Offsets are those of the whole file. Reading raises DataError if the file is gone, and StorageError.
    """
    if isinstance(file, HeldFile):
        opened = io.BufferedReader(io.BytesIO(file.data))  # with `peek`, as files have
    elif storage.is_local(file.path):
        opened = storage.open_input(file.path)
    else:
        opened = io.BufferedReader(_RangeFile(file, end, start, known), _BUFFER_BYTES)

    if start:
        opened.seek(start)
    return opened


def open_head(file: InputFile, head_bytes: int = HEAD_BYTES) -> IO[bytes]:
    """Open a file to detect what it is. Its head is remembered, so reading it again takes no request."""
    is_remote = not isinstance(file, HeldFile) and not storage.is_local(file.path)
    if is_remote and file not in _heads:
        _heads[file] = _read_range(file.path, 0, min(head_bytes, file.size))
        for oldest in list(_heads)[:-KEPT_HEADS]:
            _heads.pop(oldest, None)
    return open_range(file)


def fills_head(text: bytes | str) -> bool:
    """Return whether a file may continue after the text of its head. A quarter of the bytes suffices: UTF-32 has four
    for a letter."""
    return len(text) > HEAD_BYTES // 4


class _RangeFile(io.RawIOBase):
    def __init__(self, file: InputFile, expected_end: int, start: int, known: bytes):
        self._file = file
        self._expected_end = min(expected_end, file.size)
        self._position = 0
        self._next_read = HEAD_BYTES

        # The bytes of the last read, and the offset of the first one.
        self._data_start, self._data = (start, known) if known else (0, _heads.get(file, b""))

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
        """Read at least `wanted` bytes from the current position, or up to the end of the file."""
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


class ByteRange(NamedTuple):
    """The bytes [start, end) of a file."""

    url: str
    start: int
    end: int


def read_ranges(ranges: Sequence[ByteRange]) -> list[bytes]:
    """Return exactly the bytes of each range, one request each, several at the same time.

    All files must be on the same disk or in the same store. A range past the end of its file returns fewer bytes.
    Raises DataError if a file does not exist and StorageError if the disk or the store fails.
    """
    if not ranges:
        return []

    first_url = ranges[0].url
    fs = storage.filesystem(first_url)[0]
    if isinstance(fs, LocalFileSystem):
        return [_read_local(wanted) for wanted in ranges]

    paths = [storage.filesystem(wanted.url)[1] for wanted in ranges]
    starts = [wanted.start for wanted in ranges]
    ends = [wanted.end for wanted in ranges]
    try:
        with storage.storage_errors_of(first_url, FileNotFoundError):
            return fs.cat_ranges(paths, starts, ends, batch_size=storage.THREADS, on_error="raise")
    except FileNotFoundError as error:
        # A store's own error does not name the file.
        missing = next((wanted.url for wanted in ranges if not storage.exists(wanted.url)), first_url)
        raise DataError(f"{missing} does not exist.") from error


def _read_local(wanted: ByteRange) -> bytes:
    with storage.open_input(wanted.url) as file, storage.storage_errors_of(wanted.url):
        file.seek(wanted.start)
        return file.read(wanted.end - wanted.start)
