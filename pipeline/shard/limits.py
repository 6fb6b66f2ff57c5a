"""Limits on the size of what users bring: the defaults of flags of `shard`."""

from __future__ import annotations

from dataclasses import dataclass

MAX_RECORD = 16 << 20
"""Bytes in the largest document that is kept (--max_document_bytes). The longest books have about 5 MB."""

MAX_RATIO = 200
"""How many times a compressed file may grow (--max_decompression_ratio).

Text grows 3 to 10 times and logs up to 100 times, so a file that grows more is most likely a decompression bomb.
"""

ALWAYS_ALLOWED = 256 << 20
"""Decompressed bytes below which no file counts as a bomb, whatever its ratio."""

MAX_UNDECODABLE_RATIO = 0.001
"""Share of a file's bytes that may be undecodable (--max_undecodable_ratio).

Damage is rare. A text that is in another encoding has a few percent of such bytes.
"""


@dataclass(frozen=True)
class Limits:
    """The limits that a reader applies: larger documents are rejected, and files that grow more are refused."""

    document_bytes: int = MAX_RECORD
    decompression_ratio: int = MAX_RATIO
