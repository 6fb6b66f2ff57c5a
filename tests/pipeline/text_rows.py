"""The documents of finished text folders, for tests that compare them."""

from __future__ import annotations

from typing import Any

from schemas import shards, storage
from schemas.manifest import read_manifest


def text_rows(folder: object) -> list[dict[str, Any]]:
    """Return all documents of a text folder, in the order of its shards: document, source, sentences and so on."""
    rows = []
    for shard in read_manifest(str(folder), "text").shards:
        data = storage.read(storage.join(str(folder), shard.path))
        rows += shards.decode_text(data, shard.path).to_pylist()
    return rows


def sentences_of(folder: object) -> list[str]:
    return [sentence for row in text_rows(folder) for sentence in row["sentences"]]
