"""Opens zip files from others with bounds on what they make a reader do: entries, sizes, and growth.

Names in them are only compared with others, and nothing is written, so that no path leads anywhere.
"""

from __future__ import annotations

import io
from typing import IO, Any
from zipfile import ZipFile, ZipInfo

MAX_READ_BYTES = 32 << 20
"""Maximum bytes of one read, which are those of a directory of some 300,000 entries, or of a member's long header."""

MAX_PART_BYTES = 64 << 20
"""Maximum bytes of one part of a document, decompressed. The XML of a book of 5 MB has about 20 MB."""

_SMALL_PART_BYTES = 1 << 20  # which no limit on growth concerns
NAME_OFFSET = 30
"""In a zip file, of the first entry's name."""


class TooLargeError(Exception):
    """What a zip file holds exceeds a limit."""


class EncryptedError(Exception):
    """A password is needed."""


class LimitedReads(io.RawIOBase):
    """An open file that refuses single reads of more than MAX_READ_BYTES, for readers that trust sizes in a file.

    Files that cannot seek are read forward. is_limited: False while a reader asks for a member's content.
    """

    def __init__(self, file: IO[bytes]):
        self._file = file
        self._position = 0
        self._seeks = file.seekable()
        self.is_limited = True
        self.last = b""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._file.tell() if self._seeks else self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if self._seeks:
            return self._file.seek(offset, whence)

        if whence != io.SEEK_SET or offset < self._position:
            raise OSError("its parts are not in order")
        while self._position < offset and self.read(min(1 << 20, offset - self._position)):
            pass
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        """Return the next bytes, which `last` is then too."""
        if self.is_limited and size is not None and size > MAX_READ_BYTES:
            raise OSError(f"a header or directory of {size >> 20} MB is above the limit of {MAX_READ_BYTES >> 20} MB")
        self.last = self._file.read(-1 if size is None else size)
        self._position += len(self.last)
        return self.last

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def open_zip(file: IO[bytes]) -> ZipFile:
    """Open a zip file. Raises the exceptions of zipfile for junk, and OSError for too large a directory."""
    return ZipFile(LimitedReads(file))


def is_encrypted(entry: ZipInfo) -> bool:
    """Return whether an entry needs a password."""
    return bool(entry.flag_bits & 1)


def read_part(archive: ZipFile, name: str, max_ratio: int) -> bytes:
    """Return a part of a document, decompressed.

    Raises KeyError if there is none, EncryptedError, TooLargeError above MAX_PART_BYTES or if it grows more than
    `max_ratio` times, and the exceptions of zipfile.
    """
    entry = archive.getinfo(name)
    if is_encrypted(entry):
        raise EncryptedError
    with archive.open(entry) as opened:
        data = opened.read(MAX_PART_BYTES + 1)
    if len(data) > MAX_PART_BYTES or len(data) > max(_SMALL_PART_BYTES, max_ratio * entry.compress_size):
        raise TooLargeError
    return data
