"""One text shard and a vocabulary to one pair shard: encode, pair or fill, lay out, shuffle, mask, describe."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.pairs.encoding import Encoder
from pipeline.pairs.full_sentences import fill_rows
from pipeline.pairs.layout import RowLayout, Tokens, lay_pairs, lay_sentences, special_tokens, to_table
from pipeline.pairs.nsp_sop import EMPTY, EncodedCorpus, Ledger, PairingOptions, pair_sentences
from pipeline.pairs.static_masks import StaticMasks, with_masks
from pipeline.pairs.statistics import describe_rows
from pipeline.runtime.counters import add_ledgers
from schemas import shards, storage
from schemas.manifest import Shard, read_shard_bytes
from schemas.masking import Masking
from schemas.ragged import offsets_of
from schemas.randomness import key, permutation
from schemas.vocabulary import Vocabulary


@dataclass(frozen=True)
class PairOptions:
    """What decides rows beside text and vocabulary. `static_masks` masks are stored with each row."""

    pairing: PairingOptions
    static_masks: int = 0
    masking: Masking = field(default_factory=Masking)


def build_shard(
    folder: str,
    shard: Shard,
    name: str,
    encoder: Encoder,
    vocabulary: Vocabulary,
    making: PairOptions,
    pass_number: int,
) -> tuple[bytes, dict[str, Any]]:
    """The pair shard's bytes and its report."""
    text = shards.decode_table(read_shard_bytes(folder, shard), storage.join(folder, shard.path), shards.TEXT)
    pairing = making.pairing
    tokens = encode_documents(text, encoder, vocabulary)
    laid, ledger = lay_rows(tokens, pairing, vocabulary, pass_number)
    identity = (pairing.seed, pass_number, shard.fingerprint)
    laid = laid.take(permutation(len(laid.label_R), key(pairing.seed, "row order", pass_number, shard.fingerprint)))
    table = to_table(laid, tokens, vocabulary)
    told = describe_rows(laid, table, tokens, pairing.objective, pairing.max_length, vocabulary)
    if making.static_masks:
        table, told["masks"] = with_masks(table, StaticMasks(making.static_masks, making.masking, identity), vocabulary)
    batches = shards.equal_batches(table)
    data = shards.encode_batches(batches, table.schema)
    left_out = [(why, tokens.sources[j], n) for (why, j), n in ledger.items() if n]
    told["ledger"] = add_ledgers([left_out, ((EMPTY, source, 1) for source in tokens.empty)])
    return data, {"shard": describe(name, batches, data), **told}


def encode_documents(text: pa.Table, encoder: Encoder, vocabulary: Vocabulary) -> Tokens:
    """All sentences of the shard as ids; a sentence or document that the vocabulary turns into nothing is none."""
    column = text["sentences"].combine_chunks()
    ids_T, offsets_N1, joined_T = encoder.encode(column.flatten())
    filled = np.flatnonzero(np.diff(offsets_N1))
    before_N1 = offsets_of(np.diff(offsets_N1) > 0)
    starts_T = vocabulary.starts_word_V[ids_T]
    if joined_T is not None:
        starts_T &= ~joined_T
    starts_T[offsets_N1[filled]] = True
    documents = before_N1[column.offsets.to_numpy() - column.offsets[0].as_py()]
    sentences = [*offsets_N1[filled].tolist(), len(ids_T)]
    empty = np.diff(documents) == 0
    kept = text.filter(pa.array(~empty))
    bounds = [*documents[:-1][~empty].tolist(), len(sentences) - 1]
    corpus = EncodedCorpus(sentences, bounds, kept["document"].to_pylist())
    return Tokens(
        ids_T, starts_T, corpus, kept["source"].to_pylist(), text["source"].filter(pa.array(empty)).to_pylist()
    )


def lay_rows(
    tokens: Tokens, pairing: PairingOptions, vocabulary: Vocabulary, pass_number: int
) -> tuple[RowLayout, Ledger]:
    """The shard's rows in reading order, and what was left out or cut."""
    if pairing.objective in ("nsp", "sop"):
        before, between, after = special_tokens(vocabulary)
        pairs = pair_sentences(tokens.corpus, pairing, len(before + between + after), pass_number)
        return lay_pairs(pairs.rows, len(tokens.ids_T), len(between)), pairs.ledger
    made = fill_rows(tokens.corpus, pairing, pass_number)
    return lay_sentences(made.rows, len(tokens.ids_T)), made.ledger


def describe(name: str, batches: list[pa.RecordBatch], data: bytes) -> dict[str, Any]:
    """The shard's entry in the manifest."""
    return {
        "path": name,
        "rows": sum(batch.num_rows for batch in batches),
        "tokens": sum(len(batch["input_ids"].flatten()) for batch in batches),
        "bytes": len(data),
        "sha256": storage.sha256(data),
        "fingerprint": shards.content_fingerprint(batches),
    }
