"""Reads exact ranges of bytes from many files, several at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from schemas import storage
from schemas.errors import DataError

RANGES_AT_ONCE = 32
"""Concurrent requests to a store. More would gain little and make stores respond with 503."""


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
    if storage.is_local(first_url):
        return [_read_local(wanted) for wanted in ranges]

    fs = storage.filesystem(first_url)[0]
    paths = [storage.filesystem(wanted.url)[1] for wanted in ranges]
    starts = [wanted.start for wanted in ranges]
    ends = [wanted.end for wanted in ranges]
    try:
        with storage.storage_errors_of(first_url, FileNotFoundError):
            return fs.cat_ranges(paths, starts, ends, batch_size=RANGES_AT_ONCE, on_error="raise")
    except FileNotFoundError as error:
        raise DataError(f"{_first_missing(ranges)} does not exist.") from error


def _first_missing(ranges: Sequence[ByteRange]) -> str:
    """Return the missing file's URL for the error message; a store's own error does not name the file."""
    return next((wanted.url for wanted in ranges if not storage.exists(wanted.url)), ranges[0].url)


def _read_local(wanted: ByteRange) -> bytes:
    with storage.open_input(wanted.url) as file, storage.storage_errors_of(wanted.url):
        file.seek(wanted.start)
        return file.read(wanted.end - wanted.start)
