"""Fingerprints of a folder's content. Equal content has equal fingerprints, regardless of compression.

    format 1    hash of (kind, "1", identity, a line for each shard)
    format 2    hash of (kind, "2", identity, the digest of each 4,096 lines)

A shard's line is its path and the fingerprint of its rows. The digests of format 2 can be computed in parallel,
each from the entries of its own part.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from schemas import FORMAT_VERSION
from schemas.manifest_entries import PART_ENTRIES, Shard


def fingerprint(kind: str, shards: Sequence[Shard], identity: str = "", version: int = FORMAT_VERSION) -> str:
    """Return the fingerprint of a folder's content, by the rule of a format version.

    `identity` is the vocabulary's fingerprint, which gives ids their meaning; it is empty for text.
    """
    if version == 1:
        return _hash([kind, "1", identity, *_lines(shards)])

    digests = []
    for start in range(0, len(shards), PART_ENTRIES):
        digests.append(digest_of_part(shards[start : start + PART_ENTRIES]))
    return fingerprint_of_parts(kind, digests, identity, version)


def digest_of_part(shards: Iterable[Shard]) -> str:
    """Return the digest of up to PART_ENTRIES consecutive shards, which must begin at a multiple of PART_ENTRIES."""
    return _hash(_lines(shards))


def fingerprint_of_parts(kind: str, digests: Iterable[str], identity: str = "", version: int = FORMAT_VERSION) -> str:
    """Return what `fingerprint` returns, from the digests of all parts in order. Format 2 and later."""
    return _hash([kind, str(version), identity, *digests])


def _lines(shards: Iterable[Shard]) -> list[str]:
    return [f"{shard.path} {shard.fingerprint}" for shard in shards]


def _hash(lines: list[str]) -> str:
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=16).hexdigest()
