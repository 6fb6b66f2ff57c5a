"""Writes folders of pairs with random tokens, as `python -m pipeline pairs` would, but without Beam or a corpus.

The trainer reads such a folder like any other. The work of a GPU on a row depends only on the row's length, so random
tokens are as good as text for a speed benchmark, although a model learns nothing from them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas import FORMAT_VERSION, shards
from schemas.manifest import NAME, Input, Manifest, Shard, fingerprint
from schemas.vocabulary import TOKENIZER_FILE, VOCABULARY_FOLDER, Vocabulary, read_vocabulary
from schemas.vocabulary_kinds import Model, kind_of

Ints = NDArray[np.int64]

RULES: dict[str, dict[str, Any]] = {
    "wordpiece": {
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
    },
    "bytebpe": {
        # Whole words, because there are no merges that would build them.
        "model": {"type": "BPE", "ignore_merges": True, "merges": []},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    },
}
"""What tokenizer.json says of a kind of vocabulary, besides its words."""

ROWS_PER_SHARD = 4096


def write_pairs(folder: Path, lengths_B: Ints, max_length: int, model: Model, vocabulary_size: int) -> None:
    """Write a folder of pairs: NSP pairs with a WordPiece vocabulary, or one segment per row with a byte-level one.

    lengths_B: the tokens of each row, int64, at least 8. The same arguments write the same bytes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = write_vocabulary(folder / VOCABULARY_FOLDER, model, vocabulary_size)
    groups = np.array_split(lengths_B, -(-len(lengths_B) // ROWS_PER_SHARD))

    written = []
    for index, group_B in enumerate(groups):
        name = shards.shard_name("pairs", index, len(groups))
        table = random_rows(group_B, vocabulary, np.random.default_rng(index))
        data, entry = shards.encode_shard(name, table, int(group_B.sum()))
        (folder / name).write_bytes(data)
        written.append(Shard(**entry))

    manifest = manifest_of(written, lengths_B, max_length, vocabulary)
    (folder / NAME).write_bytes(manifest.to_json())


def write_vocabulary(folder: Path, model: Model, size: int) -> Vocabulary:
    """Write a tokenizer.json of made-up words that the tokenizers library reads, and return the vocabulary."""
    specials = kind_of(model).specials[0].all
    tokens = [*specials, *(f"word{i}" for i in range(size - len(specials)))]
    flags = {"special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    rules = RULES[model]
    content = {
        **rules,
        "version": "1.0",
        "normalizer": None,
        "model": rules["model"] | {"vocab": {token: i for i, token in enumerate(tokens)}},
        "added_tokens": [{"id": i, "content": token, **flags} for i, token in enumerate(specials)],
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / TOKENIZER_FILE).write_text(json.dumps(content))
    return read_vocabulary(str(folder))


def random_rows(lengths_B: Ints, vocabulary: Vocabulary, random: np.random.Generator) -> pa.Table:
    """Return a shard's table: [CLS] A [SEP] B [SEP] with a label, or [CLS] A [SEP] with a byte-level vocabulary."""
    has_pairs = vocabulary.model == "wordpiece"
    ends_B = lengths_B.cumsum()
    starts_B = ends_B - lengths_B
    first_of_b_B = lengths_B // 2 if has_pairs else lengths_B

    ids_T = random.choice(vocabulary.ordinary_ids, int(ends_B[-1]))
    ids_T[starts_B] = vocabulary.special_id("cls")
    ids_T[ends_B - 1] = vocabulary.special_id("sep")
    if has_pairs:
        ids_T[starts_B + first_of_b_B - 1] = vocabulary.special_id("sep")

    offsets = pa.array(np.append(0, ends_B), pa.int32())
    token_type = shards.token_type(vocabulary.size)
    labels_B = random.integers(0, 2, len(lengths_B)) if has_pairs else None
    label_column = pa.nulls(len(lengths_B), pa.int8()) if labels_B is None else pa.array(labels_B, pa.int8())
    documents = pa.array(np.arange(len(lengths_B)), pa.uint64())

    columns = [
        pa.ListArray.from_arrays(offsets, pa.array(ids_T, token_type)),
        pa.array(first_of_b_B, pa.int32()),
        label_column,
        pa.ListArray.from_arrays(offsets, pa.array(np.ones(len(ids_T), dtype=bool))),
        documents,
        documents,
    ]
    schema = shards.pairs_schema(vocabulary.size)
    arrays = [column.cast(field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def manifest_of(written: list[Shard], lengths_B: Ints, max_length: int, vocabulary: Vocabulary) -> Manifest:
    """Return the manifest of a folder of pairs. lengths_B: the lengths of all rows."""
    return Manifest(
        format_version=FORMAT_VERSION,
        kind="pairs",
        options={
            "objective": "nsp" if vocabulary.model == "wordpiece" else "full_sentences",
            "max_length": max_length,
            "vocabulary": vocabulary.fingerprint,
            "vocabulary_size": vocabulary.size,
        },
        inputs=[Input(path="random", fingerprint="00")],
        seed=0,
        fingerprint=fingerprint("pairs", written, vocabulary.fingerprint),
        shards=written,
        totals={"rows": len(lengths_B), "tokens": int(lengths_B.sum())},
        statistics={"lengths": np.bincount(lengths_B, minlength=max_length + 1).tolist()},
        ledger=[],
    )


def spread_lengths(low: int, high: int, rows: int) -> Ints:
    """Return `rows` lengths, evenly spread from `low` to `high` and shuffled with a fixed seed."""
    lengths_B = np.linspace(low, high, rows).round().astype(np.int64)
    return np.random.default_rng(0).permutation(lengths_B)
