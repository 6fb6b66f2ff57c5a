"""Opens zip files from others with bounds on what they make a reader do: entries, sizes, and growth.

Names in them are only compared with others, and nothing is written, so that no path leads anywhere.
"""

from __future__ import annotations

from typing import IO
from zipfile import ZipFile, ZipInfo

from pipeline.readers.open import LimitedReads
from pipeline.readers.record import RejectedError

MAX_READ_BYTES = 32 << 20
"""Maximum bytes of one read, which are those of a directory of some 300,000 entries, or of a member's long header."""

MAX_PART_BYTES = 64 << 20
"""Maximum bytes of one part of a document, decompressed. The XML of a book of 5 MB has about 20 MB."""

_SMALL_PART_BYTES = 1 << 20  # which no limit on growth concerns
NAME_OFFSET = 30
"""In a zip file, of the first entry's name."""


ENCRYPTED = "document that is encrypted"
TOO_LARGE = "document with too large parts"


def limited(file: IO[bytes]) -> LimitedReads:
    """Return a file whose single reads have at most MAX_READ_BYTES."""
    return LimitedReads(file, MAX_READ_BYTES, _too_long_read)


def _too_long_read(size: int) -> OSError:
    return OSError(f"a header or directory of {size >> 20} MB is above the limit of {MAX_READ_BYTES >> 20} MB")


def open_zip(file: IO[bytes]) -> ZipFile:
    """Open a zip file. Raises the exceptions of zipfile for junk, and OSError for too large a directory."""
    return ZipFile(limited(file))


def is_encrypted(entry: ZipInfo) -> bool:
    """Return whether an entry needs a password."""
    return bool(entry.flag_bits & 1)


def read_part(archive: ZipFile, name: str, max_ratio: int) -> bytes:
    """Return a part of a document, decompressed.

    Raises KeyError if there is none, RejectedError if it is encrypted, has more than MAX_PART_BYTES or grows more than
    `max_ratio` times, and the exceptions of zipfile.
    """
    entry = archive.getinfo(name)
    if is_encrypted(entry):
        raise RejectedError(ENCRYPTED)
    with archive.open(entry) as opened:
        data = opened.read(MAX_PART_BYTES + 1)
    if len(data) > MAX_PART_BYTES or len(data) > max(_SMALL_PART_BYTES, max_ratio * entry.compress_size):
        raise RejectedError(TOO_LARGE)
    return data
