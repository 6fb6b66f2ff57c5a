"""Build one pair shard from one text shard: encode, pair or fill rows, lay them out, shuffle, mask, describe.

Shape suffixes: N sentences, T tokens, D documents. N1 and D1 have one element more.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.pairs.encoding import Encoder
from pipeline.pairs.full_sentences import fill_rows
from pipeline.pairs.layout import EncodedDocuments, RowLayout, SpecialTokens, lay_pairs, lay_sentences, to_table
from pipeline.pairs.nsp_sop import EMPTY, DocumentLedger, EncodedCorpus, PairingOptions, pair_sentences
from pipeline.pairs.static_masks import StaticMasks, with_masks
from pipeline.pairs.statistics import describe_rows
from pipeline.runtime import counters
from schemas import shards, storage
from schemas.manifest import Shard, read_shard_bytes
from schemas.masking import Masking
from schemas.ragged import offsets_of
from schemas.randomness import key, permutation
from schemas.vocabulary import Vocabulary


@dataclass(frozen=True)
class PairOptions:
    """What decides rows besides text and vocabulary. `static_masks` masks are stored with each row."""

    pairing: PairingOptions
    static_masks: int = 0
    masking: Masking = field(default_factory=Masking)


@dataclass(frozen=True)
class PairShard:
    """One pair shard to build: its file name, the text shard it is made from, and which pass over the text it is.

    Passes of the same text shard (--dupe_factor) differ in their random draws.
    """

    name: str
    text_folder: str
    text_shard: Shard
    pass_number: int = 0


def build_shard(
    target: PairShard, encoder: Encoder, vocabulary: Vocabulary, options: PairOptions
) -> tuple[bytes, dict[str, Any]]:
    """Return the bytes of a pair shard and its report. Raises DataError if the text shard is damaged."""
    text_shard = target.text_shard
    data = read_shard_bytes(target.text_folder, text_shard)
    text = shards.decode_table(data, storage.join(target.text_folder, text_shard.path), shards.TEXT_SCHEMA)
    documents = encode_documents(text, encoder, vocabulary)

    pairing = options.pairing
    in_reading_order, ledger = lay_rows(documents, pairing, vocabulary, target.pass_number)
    order_key = key(pairing.seed, "row order", target.pass_number, text_shard.fingerprint)
    layout = in_reading_order.take(permutation(len(in_reading_order.label_R), order_key))

    table = to_table(layout, documents, vocabulary)
    report = describe_rows(layout, table, documents, pairing, vocabulary)
    if options.static_masks:
        identity = (pairing.seed, target.pass_number, text_shard.fingerprint)
        stored = StaticMasks(options.static_masks, options.masking, identity)
        table, report["masks"] = with_masks(table, stored, vocabulary)

    batches = shards.equal_batches(table)
    data = shards.encode_batches(batches, table.schema)
    report["ledger"] = ledger_by_source(ledger, documents)
    return data, {"shard": describe_pairs(target.name, batches, data), **report}


def encode_documents(text: pa.Table, encoder: Encoder, vocabulary: Vocabulary) -> EncodedDocuments:
    """Encode all sentences of a text shard.

    Sentences without a token (such as invisible characters alone) are left out, and so are documents without any.
    """
    column = text["sentences"].combine_chunks()
    encoded = encoder.encode(column.flatten())
    offsets_N1 = encoded.offsets_N1

    has_tokens_N = np.diff(offsets_N1) > 0
    kept_starts = offsets_N1[:-1][has_tokens_N]
    sentence_offsets = [*kept_starts.tolist(), len(encoded.ids_T)]

    # The first token of a sentence begins a word, whatever the vocabulary says of it.
    word_starts_T = vocabulary.starts_word_V[encoded.ids_T]
    if encoded.joined_T is not None:
        word_starts_T &= ~encoded.joined_T
    word_starts_T[kept_starts] = True

    # From numbers of sentences to numbers of kept sentences. The first offset of a sliced array is not 0.
    kept_before_N1 = offsets_of(has_tokens_N)
    sentences_D1 = column.offsets.to_numpy() - column.offsets[0].as_py()
    kept_sentences_D1 = kept_before_N1[sentences_D1]
    is_empty_D = np.diff(kept_sentences_D1) == 0
    document_offsets = [*kept_sentences_D1[:-1][~is_empty_D].tolist(), len(sentence_offsets) - 1]

    kept = text.filter(pa.array(~is_empty_D))
    empty = text.filter(pa.array(is_empty_D))
    corpus = EncodedCorpus(sentence_offsets, document_offsets, kept["document"].to_pylist())
    return EncodedDocuments(
        encoded.ids_T, word_starts_T, corpus, kept["source"].to_pylist(), empty["source"].to_pylist()
    )


def lay_rows(
    documents: EncodedDocuments, pairing: PairingOptions, vocabulary: Vocabulary, pass_number: int
) -> tuple[RowLayout, DocumentLedger]:
    """Return the shard's rows in reading order, and what was left out or cut."""
    tokens = len(documents.ids_T)
    if pairing.objective in ("nsp", "sop"):
        special = SpecialTokens.of(vocabulary)
        pairs = pair_sentences(documents.corpus, pairing, len(special.all_ids()), pass_number)
        return lay_pairs(pairs.rows, tokens, len(special.between)), pairs.ledger

    filled = fill_rows(documents.corpus, pairing, pass_number)
    return lay_sentences(filled.rows, tokens), filled.ledger


def ledger_by_source(ledger: DocumentLedger, documents: EncodedDocuments) -> counters.Ledger:
    """Return what was left out or cut as (reason, source, count), documents without a token included."""
    left_out = [(reason, documents.sources[j], count) for (reason, j), count in ledger.items() if count > 0]
    empty = [(EMPTY, source, 1) for source in documents.empty_sources]
    return counters.add_ledgers([left_out, empty])


def describe_pairs(name: str, batches: list[pa.RecordBatch], data: bytes) -> dict[str, Any]:
    """Return the shard's entry in the manifest."""
    return {
        "path": name,
        "rows": sum(batch.num_rows for batch in batches),
        "tokens": sum(len(batch["input_ids"].flatten()) for batch in batches),
        "bytes": len(data),
        "sha256": storage.sha256(data),
        "fingerprint": shards.content_fingerprint(batches),
    }
