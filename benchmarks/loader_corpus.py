"""Generates corpora for benchmarks/loader.py: shards of random rows, and a folder that repeats them many times."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa

from schemas import FORMAT_VERSION, shards, storage
from schemas.manifest import (
    PART_ENTRIES,
    Input,
    Manifest,
    Part,
    Shard,
    encode_entries,
    fingerprint,
    part_name,
    read_manifest,
)
from schemas.vocabulary import parse_vocabulary

VOCABULARY = 30_522
ROWS_PER_SHARD = 16_000
MAX_LENGTH = 128
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def write_vocabulary(folder: Path) -> str:
    """Write a WordPiece vocabulary of made-up words. Returns its fingerprint."""
    folder.mkdir(parents=True)
    words = SPECIAL + [f"word{i}" for i in range(VOCABULARY - len(SPECIAL))]
    special = [
        {"id": i, "content": token, "special": True, "single_word": False, "lstrip": False, "rstrip": False}
        for i, token in enumerate(SPECIAL)
    ]
    model = {"type": "WordPiece", "unk_token": "[UNK]", "vocab": {word: i for i, word in enumerate(words)}}
    data = json.dumps({"added_tokens": special, "normalizer": None, "model": model}).encode()
    (folder / "tokenizer.json").write_bytes(data)
    return parse_vocabulary(data, "tokenizer.json").fingerprint


def made_shard(number: int) -> tuple[pa.Table, np.ndarray]:
    """Return the rows of a shard and their lengths, int64 (B,). Nine of ten rows have 100 tokens or more."""
    draws = np.random.default_rng(number)
    lengths_B = np.where(
        draws.random(ROWS_PER_SHARD) < 0.9,
        draws.integers(100, MAX_LENGTH + 1, ROWS_PER_SHARD),
        draws.integers(8, 100, ROWS_PER_SHARD),
    )
    offsets_B1 = np.concatenate([[0], np.cumsum(lengths_B)])
    tokens = int(offsets_B1[-1])

    # Zipf's law: the frequency of the word of rank r is proportional to 1 / r.
    ids_T = (VOCABULARY - len(SPECIAL)) ** draws.random(tokens)
    ids_T = (ids_T.astype(np.int64) + len(SPECIAL) - 1).astype(np.uint16)
    segment_b_B = (lengths_B // 2).astype(np.int32)
    ids_T[offsets_B1[:-1]] = SPECIAL.index("[CLS]")
    ids_T[offsets_B1[:-1] + segment_b_B - 1] = SPECIAL.index("[SEP]")
    ids_T[offsets_B1[1:] - 1] = SPECIAL.index("[SEP]")

    columns = [
        pa.ListArray.from_arrays(offsets_B1.astype(np.int32), pa.array(ids_T)),
        pa.array(segment_b_B),
        pa.array(draws.integers(0, 2, ROWS_PER_SHARD).astype(np.int8)),
        pa.ListArray.from_arrays(offsets_B1.astype(np.int32), pa.array(draws.random(tokens) < 0.8)),
        pa.array(draws.integers(0, 1 << 60, ROWS_PER_SHARD).astype(np.uint64)),
        pa.array(draws.integers(0, 1 << 60, ROWS_PER_SHARD).astype(np.uint64)),
    ]
    return pa.Table.from_arrays(columns, schema=shards.pairs_schema(VOCABULARY)), lengths_B


def make_corpus(folder: Path, count: int) -> None:
    """Write a finished folder of pairs with `count` shards."""
    identity = write_vocabulary(folder / "vocabulary")
    histogram = np.zeros(MAX_LENGTH + 1, dtype=np.int64)
    entries = []
    for number in range(count):
        table, lengths_B = made_shard(number)
        histogram += np.bincount(lengths_B, minlength=MAX_LENGTH + 1)
        data = shards.encode_table(table)
        name = shards.shard_name("pairs", number, count)
        (folder / name).write_bytes(data)
        content = shards.content_fingerprint(shards.equal_batches(table))
        tokens = int(lengths_B.sum())
        entries.append(Shard(name, ROWS_PER_SHARD, tokens, len(data), storage.sha256(data), content))

    options = {"objective": "nsp", "max_length": MAX_LENGTH, "vocabulary": identity, "vocabulary_size": VOCABULARY}
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        kind="pairs",
        options=options,
        inputs=[Input(path="text", fingerprint="00")],
        seed=0,
        fingerprint=fingerprint("pairs", entries, identity),
        shards=entries,
        totals={"rows": sum(shard.rows for shard in entries), "tokens": sum(shard.tokens for shard in entries)},
        statistics={"lengths": histogram.tolist()},
        ledger=[],
    )
    (folder / "manifest.json").write_bytes(manifest.to_json())


def repeat_shards(folder: Path, many: Path, count: int) -> None:
    """Write a folder of `count` shards that are links to the shards of `folder`, repeated in order, with a manifest."""
    small = read_manifest(str(folder), "pairs")
    entries = []
    (many / "vocabulary").mkdir(parents=True, exist_ok=True)
    shutil.copy(folder / "vocabulary" / "tokenizer.json", many / "vocabulary")
    for number in range(count):
        shard = small.shards[number % len(small.shards)]
        name = shards.shard_name("pairs", number, count)
        os.symlink(folder.resolve() / shard.path, many / name)
        entries.append(Shard(name, shard.rows, shard.tokens, shard.bytes, shard.sha256, shard.fingerprint))

    parts = []
    groups = range(0, count, PART_ENTRIES)
    for number, start in enumerate(groups):
        group = entries[start : start + PART_ENTRIES]
        data = encode_entries(group)
        name = part_name("shards", number, len(groups))
        (many / name).write_bytes(data)
        parts.append(Part(name, "shards", len(group), len(data), storage.sha256(data)))

    # The last round of shards may be incomplete, so the histogram of lengths cannot be scaled. This one has the right
    # totals, with all rows at the two lengths next to the mean.
    totals = {name: sum(getattr(entry, name) for entry in entries) for name in ("rows", "tokens")}
    lengths = [0] * (MAX_LENGTH + 1)
    mean, rest = divmod(totals["tokens"], totals["rows"])
    lengths[mean] = totals["rows"] - rest
    lengths[mean + 1] = rest
    identity = small.options["vocabulary"]
    manifest = small.model_copy(
        update={
            "shards": entries,
            "parts": parts,
            "totals": totals,
            "statistics": {"lengths": lengths},
            "fingerprint": fingerprint("pairs", entries, identity),
        }
    )
    (many / "manifest.json").write_bytes(manifest.to_json())
