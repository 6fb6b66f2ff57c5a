"""Writes finished folders of many shards without the shards, because opening a folder reads none of them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.commit.parts import part_name
from schemas import FORMAT_VERSION, shards, storage
from schemas.manifest import PART_ENTRIES, Input, Listed, Manifest, Part, Shard, encode_entries, fingerprint


def many_shards(kind: str, count: int) -> list[Shard]:
    """Return the manifest entries of a folder of `count` shards, all different."""
    entries = []
    for index in range(count):
        digest = hashlib.sha256(str(index).encode()).hexdigest()
        name = shards.shard_name(kind, index, count)
        rows = 1000 + index % 7
        entries.append(Shard(name, rows, 20 * rows, 30_000_000 + index, digest, digest[:32]))
    return entries


def write_parts(folder: Path, holds: Listed, entries: Sequence[Any], size: int = PART_ENTRIES) -> list[Part]:
    """Write entries as parts of `size` entries, and return their descriptions for the manifest."""
    groups = [entries[start : start + size] for start in range(0, len(entries), size)]
    parts = []
    for number, group in enumerate(groups):
        data = encode_entries(group)
        name = part_name(holds, number, len(groups))
        (folder / name).write_bytes(data)
        parts.append(Part(name, holds, len(group), len(data), storage.sha256(data)))
    return parts


def large_pairs(folder: Path, count: int, vocabulary: str = "ab", vocabulary_size: int = 160) -> Manifest:
    """Write the manifest of a folder of pairs of `count` shards, with its parts, and return the whole manifest."""
    entries = many_shards("pairs", count)
    rows = sum(shard.rows for shard in entries)
    folder.mkdir(parents=True, exist_ok=True)
    parts = write_parts(folder, "shards", entries) if count > PART_ENTRIES else []
    options = {"objective": "nsp", "max_length": 32}
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        kind="pairs",
        options=options | {"vocabulary": vocabulary, "vocabulary_size": vocabulary_size},
        inputs=[Input(path="text", fingerprint="00")],
        seed=0,
        fingerprint=fingerprint("pairs", entries, vocabulary),
        shards=entries,
        totals={"rows": rows, "tokens": 20 * rows},
        statistics={"lengths": [0] * 20 + [rows]},
        ledger=[],
        parts=parts,
    )
    (folder / "manifest.json").write_bytes(manifest.to_json())
    return manifest
