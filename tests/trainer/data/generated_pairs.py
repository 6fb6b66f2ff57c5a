"""Finished folders of pairs with made-up rows, written in a moment: any number of shards, of any numbers of rows.

Rows are drawn by schemas.randomness and not by numpy, whose generators may change, so a folder is the same forever.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from schemas import FORMAT_VERSION, shards
from schemas.manifest import Input, Manifest, Shard, fingerprint
from schemas.ragged import offsets_of
from schemas.randomness import key, numbers
from schemas.vocabulary import parse_vocabulary

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCABULARY_SIZE = 200
MAX_LENGTH = 40
CLS, SEP = 2, 3


@dataclass(frozen=True)
class Generated:
    """What to generate. static_masks: how many stored masks each row carries."""

    rows_per_shard: tuple[int, ...]
    seed: int = 0
    objective: str = "nsp"
    static_masks: int = 0


def write_vocabulary(folder: Path) -> str:
    """Write a WordPiece vocabulary of made-up words. Returns its fingerprint."""
    folder.mkdir(parents=True)
    words = SPECIAL + [f"word{i}" for i in range(VOCABULARY_SIZE - len(SPECIAL))]
    special = [
        {"id": i, "content": token, "special": True, "single_word": False, "lstrip": False, "rstrip": False}
        for i, token in enumerate(SPECIAL)
    ]
    model = {"type": "WordPiece", "unk_token": "[UNK]", "vocab": {word: i for i, word in enumerate(words)}}
    data = json.dumps({"added_tokens": special, "normalizer": None, "model": model}).encode()
    (folder / "tokenizer.json").write_bytes(data)
    return parse_vocabulary(data, "tokenizer.json").fingerprint


def drawn(count: int, limit: int, *identity: int | str) -> np.ndarray:
    """Return `count` numbers below `limit`."""
    return (numbers(np.uint64(key(*identity)), np.arange(count)) % np.uint64(limit)).astype(np.int64)


def shard_table(wanted: Generated, number: int) -> pa.Table:
    """Return the rows of one shard: two segments each, of 8 to 40 tokens in all."""
    rows = wanted.rows_per_shard[number]
    identity = (wanted.seed, number)
    lengths_B = 8 + drawn(rows, MAX_LENGTH - 7, *identity, "lengths")
    offsets_B1 = offsets_of(lengths_B)
    tokens = int(offsets_B1[-1])

    ids_T = 5 + drawn(tokens, VOCABULARY_SIZE - 5, *identity, "ids")
    segment_b_B = 3 + drawn(rows, 4, *identity, "segments")
    ids_T[offsets_B1[:-1]] = CLS
    ids_T[offsets_B1[:-1] + segment_b_B - 1] = SEP
    ids_T[offsets_B1[1:] - 1] = SEP

    offsets = pa.array(offsets_B1, pa.int32())
    columns = [
        pa.ListArray.from_arrays(offsets, pa.array(ids_T, pa.uint16())),
        pa.array(segment_b_B, pa.int32()),
        pa.array(drawn(rows, 2, *identity, "labels"), pa.int8()),
        pa.ListArray.from_arrays(offsets, pa.array(drawn(tokens, 4, *identity, "words") > 0)),
        pa.array(drawn(rows, 1 << 40, *identity, "a"), pa.uint64()),
        pa.array(drawn(rows, 1 << 40, *identity, "b"), pa.uint64()),
    ]
    if wanted.static_masks:
        columns += stored_masks(wanted, rows, identity)
    return pa.Table.from_arrays(columns, schema=shards.pairs_schema(VOCABULARY_SIZE, wanted.static_masks > 0))


def stored_masks(wanted: Generated, rows: int, identity: tuple[int, int]) -> list[pa.Array]:
    """Return the columns of masks: of one or two tokens, none of them special."""
    two = drawn(rows * wanted.static_masks, 2, *identity, "two").tolist()
    positions = [[1, 7] if both else [1] for both in two]
    tokens = [[150 + i % 50, 7][: len(places)] for i, places in enumerate(positions)]
    of_rows = pa.array(np.arange(rows + 1) * wanted.static_masks, pa.int32())
    kind = pa.list_(pa.uint16())
    return [pa.ListArray.from_arrays(of_rows, pa.array(lists, kind)) for lists in (positions, tokens)]


def write_pairs(folder: Path, wanted: Generated) -> Path:
    """Write a finished folder of pairs and return it."""
    identity = write_vocabulary(folder / "vocabulary")
    histogram = np.zeros(MAX_LENGTH + 1, dtype=np.int64)
    entries = []
    for number in range(len(wanted.rows_per_shard)):
        table = shard_table(wanted, number)
        lengths_B = np.diff(table["input_ids"].combine_chunks().offsets.to_numpy())
        histogram += np.bincount(lengths_B, minlength=MAX_LENGTH + 1)

        name = shards.shard_name("pairs", number, len(wanted.rows_per_shard))
        data, entry = shards.encode_shard(name, table, int(lengths_B.sum()))
        (folder / name).write_bytes(data)
        entries.append(Shard(**entry))

    options = {"objective": wanted.objective, "max_length": MAX_LENGTH, "static_masks": wanted.static_masks}
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        kind="pairs",
        options=options | {"vocabulary": identity, "vocabulary_size": VOCABULARY_SIZE},
        inputs=[Input(path="text", fingerprint="00")],
        seed=0,
        fingerprint=fingerprint("pairs", entries, identity),
        shards=entries,
        totals={"rows": sum(entry.rows for entry in entries), "tokens": sum(entry.tokens for entry in entries)},
        statistics={"lengths": histogram.tolist()},
        ledger=[],
    )
    (folder / "manifest.json").write_bytes(manifest.to_json())
    return folder
