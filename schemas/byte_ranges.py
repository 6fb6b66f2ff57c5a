"""Reads ranges of bytes of files, on a disk, in an object store, on the Hub or on a web server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fsspec.implementations.local import LocalFileSystem

from schemas.errors import DataError
from schemas.storage import THREADS, exists, open_input
from schemas.urls import filesystem, storage_errors_of


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
    fs = filesystem(first_url)[0]
    if isinstance(fs, LocalFileSystem):
        return [_read_local(wanted) for wanted in ranges]

    paths = [filesystem(wanted.url)[1] for wanted in ranges]
    starts = [wanted.start for wanted in ranges]
    ends = [wanted.end for wanted in ranges]
    try:
        with storage_errors_of(first_url, FileNotFoundError):
            return fs.cat_ranges(paths, starts, ends, batch_size=THREADS, on_error="raise")
    except FileNotFoundError as error:
        # A store's own error does not name the file.
        missing = next((wanted.url for wanted in ranges if not exists(wanted.url)), first_url)
        raise DataError(f"{missing} does not exist.") from error


def _read_local(wanted: ByteRange) -> bytes:
    with open_input(wanted.url) as file, storage_errors_of(wanted.url):
        file.seek(wanted.start)
        return file.read(wanted.end - wanted.start)
