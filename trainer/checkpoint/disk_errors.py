"""Turns disk errors into a StorageError that names the file or the checkpoint."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from schemas.errors import StorageError


@contextlib.contextmanager
def write_errors_of(path: Path) -> Iterator[None]:
    """Turn an OSError or StorageError of the block into a StorageError that says that `path` could not be written."""
    try:
        yield
    except (OSError, StorageError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise StorageError(f"{path} could not be written: {reason}.") from error


@contextlib.contextmanager
def read_errors_of(path: Path) -> Iterator[None]:
    """Turn an OSError of the block into a StorageError that says that `path` could not be read back."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise StorageError(f"{path} could not be read back: {reason}.") from error
