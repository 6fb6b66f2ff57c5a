"""Holds the folder that a command writes, so that no other process writes there at the same time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from schemas.errors import StorageError, UsageError
from trainer.checkpoint.run_lock import hold


@contextlib.contextmanager
def held(output: Path) -> Iterator[None]:
    """Create a folder if there is none, and hold it while the block lasts.

    Raises UsageError if a live process holds it or if its path is a file, and StorageError if it cannot be written.
    """
    try:
        output.mkdir(parents=True, exist_ok=True)
        lock = hold(str(output), "--output")
    except (FileExistsError, NotADirectoryError) as error:
        raise UsageError(f"--output {output} cannot be a folder: {error.strerror}. Choose another path.") from error
    except OSError as error:
        raise StorageError(
            f"--output {output} cannot be written: {error.strerror}. Check the disk and your permissions, or choose "
            "another folder."
        ) from error

    with contextlib.closing(lock):
        yield
