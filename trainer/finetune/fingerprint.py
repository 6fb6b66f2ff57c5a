"""Hashes an encoder's folder to identify it. Does not import torch, so that the process of a suite stays small."""

from __future__ import annotations

import hashlib
from pathlib import Path

SUFFIXES = {".json", ".safetensors", ".bin", ".txt", ".model"}


def fingerprint_of(folder: str) -> str:
    """Return a hash of a folder's configuration, tokenizer and weights, as 16 hex digits."""
    digest = hashlib.sha256()
    for path in sorted(Path(folder).iterdir()):
        if path.suffix not in SUFFIXES or not path.is_file():
            continue
        digest.update(path.name.encode() + b"\0")
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]
