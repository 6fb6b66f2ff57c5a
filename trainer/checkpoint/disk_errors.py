"""Turns errors of the disk into a StorageError that names the file or the checkpoint."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from schemas.errors import StorageError


@contextlib.contextmanager
def write_errors_of(path: Path) -> Iterator[None]:
    """Raise a StorageError that names `path` for an OSError or a StorageError of the block."""
    try:
        yield
    except (OSError, StorageError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise StorageError(f"{path} could not be written: {reason}.") from error


@contextlib.contextmanager
def read_errors_of(path: Path) -> Iterator[None]:
    """Raise a StorageError that names `path` for an OSError of the block."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise StorageError(f"{path} could not be read back: {reason}.") from error
