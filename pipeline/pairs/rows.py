"""One text shard and a vocabulary to one pair shard: encode, pair, lay out, shuffle, describe.

A row is laid out as five ranges of one long token array, specials at its end, so that a whole shard's rows are copied
by a few array operations:   [CLS] A [SEP] B [SEP]   or, in RoBERTa's layout,   <s> A </s></s> B </s>
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.pairs.encoding import Encoder
from pipeline.pairs.pairing import Corpus, Pairing, Pairs, pair_sentences
from schemas import shards, storage
from schemas.manifest import Shard, read_shard_bytes
from schemas.ragged import offsets_of, take_ranges
from schemas.randomness import key, permutation
from schemas.vocabulary import Vocabulary


@dataclass(frozen=True)
class Tokens:
    """A text shard as token ids: `corpus` says where sentences and documents lie in ids_T."""

    ids_T: NDArray[np.int32]
    starts_T: NDArray[np.bool_]
    corpus: Corpus
    sources: list[str]


def special_tokens(vocabulary: Vocabulary) -> tuple[list[int], list[int], list[int]]:
    """The ids before A, between A and B, and after B. Example for BERT: `([CLS], [SEP], [SEP])`."""
    cls, sep = vocabulary.special_id("cls"), vocabulary.special_id("sep")
    return [cls], [sep] if vocabulary.model == "wordpiece" else [sep, sep], [sep]


def build_shard(
    folder: str, shard: Shard, name: str, encoder: Encoder, vocabulary: Vocabulary, pairing: Pairing, pass_number: int
) -> tuple[bytes, dict[str, Any]]:
    """The pair shard's bytes and its report."""
    text = shards.decode_table(read_shard_bytes(folder, shard), storage.join(folder, shard.path), shards.TEXT)
    tokens = encode_documents(text, encoder, vocabulary)
    layout = special_tokens(vocabulary)
    pairs = pair_sentences(tokens.corpus, pairing, sum(map(len, layout)), pass_number)
    order_key = key(pairing.seed, "row order", pass_number, shard.fingerprint)
    table = lay_out(pairs, tokens, vocabulary, permutation(len(pairs.rows), order_key))
    data = shards.encode_table(table)
    return data, {"shard": describe(name, table, data), **statistics(table, pairs, tokens, pairing, vocabulary)}


def encode_documents(text: pa.Table, encoder: Encoder, vocabulary: Vocabulary) -> Tokens:
    """All sentences of the shard as ids; a sentence that the vocabulary turns into nothing is no sentence."""
    column = text["sentences"].combine_chunks()
    ids_T, offsets_N1 = encoder.encode(column.flatten())
    filled = np.flatnonzero(np.diff(offsets_N1))
    before_N1 = offsets_of(np.diff(offsets_N1) > 0)
    starts_T = vocabulary.starts_word_V[ids_T]
    starts_T[offsets_N1[filled]] = True
    documents = before_N1[column.offsets.to_numpy() - column.offsets[0].as_py()]
    sentences = [*offsets_N1[filled].tolist(), len(ids_T)]
    corpus = Corpus(sentences, documents.tolist(), text["document"].to_pylist())
    return Tokens(ids_T, starts_T, corpus, text["source"].to_pylist())


def lay_out(pairs: Pairs, tokens: Tokens, vocabulary: Vocabulary, order: NDArray[np.int64]) -> pa.Table:
    """The rows as Arrow columns, in the given order, special tokens in their places."""
    rows = np.array(pairs.rows, dtype=np.int64).reshape(-1, 7)[order]
    a_start, a_end, b_start, b_end, label, document_a, document_b = rows.T
    before, between, after = special_tokens(vocabulary)
    place = len(tokens.ids_T)  # specials lie after the shard's own tokens
    whole = np.ones_like(a_start)
    starts = [place * whole, a_start, (place + 1) * whole, b_start, (place + 1 + len(between)) * whole]
    lengths = [len(before) * whole, a_end - a_start, len(between) * whole, b_end - b_start, len(after) * whole]
    starts_N, lengths_N = np.stack(starts, axis=1).ravel(), np.stack(lengths, axis=1).ravel()
    specials = np.array(before + between + after, dtype=np.int32)
    ids_T = take_ranges(np.concatenate([tokens.ids_T, specials]), starts_N, lengths_N)
    starts_T = take_ranges(np.concatenate([tokens.starts_T, np.zeros(len(specials), bool)]), starts_N, lengths_N)
    offsets = pa.array(offsets_of(lengths_N.reshape(-1, 5).sum(axis=1)).astype(np.int32))
    schema = shards.pairs_schema(vocabulary.size)
    ids_D = np.array(tokens.corpus.ids, dtype=np.uint64)
    columns = [
        pa.ListArray.from_arrays(offsets, pa.array(ids_T, schema.types[0].value_type)),
        pa.array((lengths[0] + lengths[1] + lengths[2]).astype(np.int32)),
        pa.array(label.astype(np.int8)),
        pa.ListArray.from_arrays(offsets, pa.array(starts_T)),
        pa.array(ids_D[document_a]),
        pa.array(ids_D[document_b]),
    ]
    return pa.table(columns, schema=schema)


def describe(name: str, table: pa.Table, data: bytes) -> dict[str, Any]:
    """The shard's entry in the manifest."""
    return {
        "path": name,
        "rows": table.num_rows,
        "tokens": len(table["input_ids"].combine_chunks().values),
        "bytes": len(data),
        "sha256": storage.sha256(data),
        "fingerprint": shards.content_fingerprint(shards.equal_batches(table)),
    }


def statistics(
    table: pa.Table, pairs: Pairs, tokens: Tokens, pairing: Pairing, vocabulary: Vocabulary
) -> dict[str, Any]:
    """What the manifest and the data card tell of a shard: counts that add up over shards."""
    column = table["input_ids"].combine_chunks()
    a_start, a_end, b_start, b_end, label, document_a, document_b = np.array(pairs.rows, np.int64).reshape(-1, 7).T
    other = np.array(tokens.corpus.ids, np.uint64)[document_a] != np.array(tokens.corpus.ids, np.uint64)[document_b]
    told_apart = label == 1 if pairing.objective == "nsp" else np.zeros_like(other)
    source_tokens: Counter[str] = Counter()
    for document, length in zip(document_a.tolist(), (a_end - a_start + b_end - b_start).tolist(), strict=True):
        source_tokens[tokens.sources[document]] += length
    return {
        "labels": np.bincount(label, minlength=2).tolist(),
        "contradicted_labels": int((told_apart != other).sum()),
        "lengths": np.bincount(np.diff(column.offsets.to_numpy()), minlength=pairing.max_length + 1).tolist(),
        "segment_a_lengths": np.bincount(a_end - a_start, minlength=pairing.max_length + 1).tolist(),
        "unknown_tokens": int((column.values.to_numpy() == vocabulary.special_id("unk")).sum()),
        "source_tokens": dict(sorted(source_tokens.items())),
        "ledger": [[reason, "all", count] for reason, count in sorted(pairs.ledger.items())],
    }
