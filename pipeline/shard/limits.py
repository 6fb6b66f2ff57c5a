"""Limits on the size of user input: the defaults of flags of `shard`."""

from __future__ import annotations

from dataclasses import dataclass

MAX_RECORD = 16 << 20
"""Maximum bytes of a document that is kept (--max_document_bytes). The longest books have about 5 MB."""

MAX_RATIO = 200
"""How many times its compressed size a file may grow to (--max_decompression_ratio).

Text grows 3 to 10 times and logs up to 100 times, so a file that grows more is most likely a decompression bomb.
"""

ALWAYS_ALLOWED = 256 << 20
"""Below this many decompressed bytes, no file counts as a bomb, whatever its ratio."""

MAX_UNDECODABLE_RATIO = 0.001
"""Share of a file's bytes that may be undecodable (--max_undecodable_ratio).

Damage is rare. In a text with a different encoding, a few percent of the bytes are undecodable.
"""


@dataclass(frozen=True)
class Limits:
    """The limits that a reader applies: larger documents are rejected, and files that grow more are refused."""

    document_bytes: int = MAX_RECORD
    decompression_ratio: int = MAX_RATIO
