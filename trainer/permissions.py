"""Gives files that a library wrote the permissions that the umask asks for."""

from __future__ import annotations

import uuid
from pathlib import Path


def follow_umask(folder: Path) -> None:
    """Give the files of a folder the permissions of a newly created file.

    safetensors writes through a temporary file, which only its owner may read, whatever the umask is. Raises OSError.
    """
    # Reading the umask itself would change it for a moment, for all threads.
    probe = folder / f".{uuid.uuid4().hex[:12]}"
    probe.touch()
    try:
        mode = probe.stat().st_mode & 0o777
    finally:
        probe.unlink()

    for path in folder.iterdir():
        # Some mounts give all files one mode and refuse to change it.
        if path.is_file() and path.stat().st_mode & 0o777 != mode:
            path.chmod(mode)
