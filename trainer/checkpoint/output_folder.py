"""Creates and locks the local folder that --output names, so that no other process writes into it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from schemas.errors import StorageError, UsageError
from trainer.checkpoint.run_lock import RunLock, hold


@contextlib.contextmanager
def held(output: Path) -> Iterator[None]:
    """Create a folder if it does not exist, and lock it for this process until the block ends.

    Raises UsageError if a live process holds it or a file is in its place, and StorageError if it cannot be written.
    """
    with contextlib.closing(_lock(output)):
        yield


def _lock(output: Path) -> RunLock:
    try:
        output.mkdir(parents=True, exist_ok=True)
        return hold(str(output), "--output")
    except (FileExistsError, NotADirectoryError) as error:
        raise UsageError(f"--output {output} cannot be a folder: {error.strerror}. Choose another path.") from error
    except OSError as error:
        raise StorageError(
            f"--output {output} cannot be written: {error.strerror}. Check the disk and your permissions, or choose "
            "another folder."
        ) from error
