"""How large things may be that users bring: the defaults of the flags of `shard`."""

from __future__ import annotations

from dataclasses import dataclass

MAX_RECORD = 16 << 20  # bytes; the longest books have about 5 MB
MAX_RATIO = 200  # text shrinks 3 to 10 times, logs up to 100; a file that grows more than this is a bomb,
ALWAYS_ALLOWED = 256 << 20  # unless it stays below this size
MAX_UNDECODABLE_RATIO = 0.001  # of a file's bytes; damage is rare, and another encoding has a few percent


@dataclass(frozen=True)
class Limits:
    """Sizes that a user can set: larger documents are rejected, files that grow more are refused."""

    document_bytes: int = MAX_RECORD
    decompression_ratio: int = MAX_RATIO
