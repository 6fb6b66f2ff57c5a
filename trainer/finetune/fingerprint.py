"""Hashes an encoder's folder to identify it. Does not import torch, so that the process of a suite stays small."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

SUFFIXES = {".json", ".safetensors", ".bin", ".txt", ".model"}


def fingerprint_of(folder: str) -> str:
    """Return a hash of a folder's configuration, tokenizer and weights, as 16 hex digits."""
    digest = hashlib.sha256()
    for path in sorted(Path(folder).iterdir()):
        if path.suffix not in SUFFIXES or not path.is_file():
            continue
        status = path.stat()
        digest.update(path.name.encode() + b"\0")
        digest.update(_hash_of_file(path, (status.st_size, status.st_mtime_ns, status.st_ino)))
    return digest.hexdigest()[:16]


@cache
def _hash_of_file(path: Path, state: tuple[int, int, int]) -> bytes:
    """Return the SHA-256 of a file. state: its size, time and inode, because a suite asks for each of its tasks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
