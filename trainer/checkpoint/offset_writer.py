"""Writes at offsets of a file that other ranks write, too, and records each written piece and the first error.

Every rank records the CRC-32 of each piece as it was passed to the operating system. verification.py compares them with
what is read back. CRC-32 is enough to detect lost writes and takes a seventh of the time of SHA-256.

Suffixes: N float32 elements.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from trainer.checkpoint.disk_errors import write_errors_of
from trainer.distributed.watchdog import progress


class WrittenPiece(NamedTuple):
    """Bytes `begin` to `end` (exclusive) of a file and their CRC-32, as `rank` passed them to the operating system."""

    begin: int
    end: int
    crc: int
    rank: int


class OffsetWriter:
    """Writes at offsets of an existing file, and keeps the first error until `close`.

    The file is opened at the first write, and for writing only. If it were open for reading, too, an NFS client would
    read the rest of the page around a write and later write back bytes that belong to another node.
    """

    def __init__(self, path: Path, rank: int):
        self._path = path
        self._rank = rank
        self._written: list[WrittenPiece] = []
        self._error: Exception | None = None
        self._handle: int | None = None

    @contextlib.contextmanager
    def keeping_error(self) -> Iterator[None]:
        """Catch an exception in the block. `close` raises the first one."""
        try:
            yield
        except Exception as error:
            if self._error is None:
                self._error = error

    def write(self, begin: int, values_N: Tensor) -> None:
        """Write float32 elements at byte `begin`. Does nothing after a kept error. Raises StorageError."""
        if self._error is not None:
            return

        values: Any = values_N.cpu().contiguous().numpy()
        data = memoryview(values).cast("B")
        checksum = zlib.crc32(data)
        self._written.append(WrittenPiece(begin, begin + len(data), checksum, self._rank))

        with write_errors_of(self._path):
            if self._handle is None:
                self._handle = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)

            # pwrite may write fewer bytes than it was given.
            done = 0
            while done < len(data):
                done += os.pwrite(self._handle, data[done:], begin + done)
        progress()

    def close(self) -> list[WrittenPiece]:
        """Sync and close the file, and return what was written. Raises the first error."""
        if self._handle is not None:
            with self.keeping_error(), write_errors_of(self._path):
                try:
                    os.fsync(self._handle)
                finally:
                    os.close(self._handle)  # NFS reports a full disk here

        if self._error is not None:
            raise self._error
        return self._written
