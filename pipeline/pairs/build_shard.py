"""Builds one pair shard from one text shard: encodes, pairs or fills rows, lays them out, shuffles, masks, counts.

Shape suffixes: N sentences, T tokens, D documents. N1 and D1 have one element more.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.commit import reports
from pipeline.pairs.encoded import EncodedStrings
from pipeline.pairs.encoded_corpus import EncodedCorpus
from pipeline.pairs.encoding import Encoder
from pipeline.pairs.full_sentences import fill_rows
from pipeline.pairs.layout import (
    EncodedDocuments,
    RowLayout,
    SpecialTokens,
    copy_rows,
    lay_pairs,
    lay_sentences,
    to_columns,
)
from pipeline.pairs.nsp_sop import EMPTY, DocumentLedger, PairingOptions
from pipeline.pairs.pairs_in_step import pair_sentences
from pipeline.pairs.static_masks import StaticMaskDrawer, StaticMasks
from pipeline.pairs.statistics import RowStatistics
from schemas import shards, storage
from schemas.manifest import Shard, read_shard_bytes
from schemas.masking import Masking
from schemas.ragged import offsets_of
from schemas.randomness import key, permutation
from schemas.vocabulary import Vocabulary


@dataclass(frozen=True)
class PairOptions:
    """What decides rows besides text and vocabulary. `static_masks` is the number of masks stored with each row."""

    pairing: PairingOptions
    static_masks: int = 0
    masking: Masking = field(default_factory=Masking)


@dataclass(frozen=True)
class PairShard:
    """One pair shard to build: its file name, its text shard, and the number of the pass over the text.

    Passes of the same text shard (--dupe_factor) differ in their random draws.
    """

    name: str
    text_folder: str
    text_shard: Shard
    pass_number: int = 0


def build_shard(
    target: PairShard, encoder: Encoder, vocabulary: Vocabulary, options: PairOptions
) -> tuple[bytes, dict[str, Any]]:
    """Return the bytes of a pair shard and its report. Raises DataError if the text shard is damaged.

    Peak memory is about four bytes per byte of text, on top of the process and the encoder's caches.
    """
    documents = read_documents(target, encoder, vocabulary)
    pairing = options.pairing
    in_reading_order, ledger = lay_rows(documents, pairing, vocabulary, target.pass_number)
    order_key = key(pairing.seed, "row order", target.pass_number, target.text_shard.fingerprint)
    layout = in_reading_order.take(permutation(len(in_reading_order.label_R), order_key))

    data, report = write_rows(layout, documents, target, vocabulary, options)
    report["ledger"] = ledger_by_source(ledger, documents)
    return data, report


def read_documents(target: PairShard, encoder: Encoder, vocabulary: Vocabulary) -> EncodedDocuments:
    """Read and encode the text shard. Once this returns, its text is no longer needed."""
    text_shard = target.text_shard
    path = storage.join(target.text_folder, text_shard.path)
    text = shards.decode_table(read_shard_bytes(target.text_folder, text_shard), path, shards.TEXT_SCHEMA)
    return encode_documents(text, encoder, vocabulary)


def encode_documents(text: pa.Table, encoder: Encoder, vocabulary: Vocabulary) -> EncodedDocuments:
    """Encode all sentences of a text shard.

    Sentences without a token (for example only invisible characters) are left out, and so are documents without tokens.
    """
    ids = []
    word_starts = []
    lengths = []
    for sentences in sentence_arrays(text):
        for encoded in encoder.encode_chunks(sentences):
            ids.append(encoded.ids_T.astype(id_type(vocabulary)))
            word_starts.append(word_starts_of(encoded, vocabulary))
            lengths.append(np.diff(encoded.offsets_N1))

    # No word begins at a special token.
    special_ids = np.array(SpecialTokens.of(vocabulary).all_ids(), dtype=id_type(vocabulary))
    ids.append(special_ids)
    word_starts.append(np.zeros(len(special_ids), dtype=bool))

    lengths_N = np.concatenate([np.zeros(0, dtype=np.int64), *lengths])
    corpus, is_kept_D = locate_documents(lengths_N, text)
    sources = text["source"].combine_chunks()
    return EncodedDocuments(
        ids_T=np.concatenate(ids),
        word_starts_T=np.concatenate(word_starts),
        tokens=int(lengths_N.sum()),
        corpus=corpus,
        sources=sources.filter(pa.array(is_kept_D)).to_pylist(),
        empty_sources=sources.filter(pa.array(~is_kept_D)).to_pylist(),
    )


def sentence_arrays(text: pa.Table) -> list[pa.Array]:
    """Return the sentences of a text shard, one array for each of its record batches. Nothing is copied."""
    return [chunk.flatten() for chunk in text["sentences"].chunks]


def id_type(vocabulary: Vocabulary) -> Any:
    """Return the numpy type of token ids in a pair shard: uint16 for a small vocabulary, otherwise uint32."""
    is_small = shards.token_type(vocabulary.size) == pa.uint16()
    return np.uint16 if is_small else np.uint32


def word_starts_of(encoded: EncodedStrings, vocabulary: Vocabulary) -> NDArray[np.bool_]:
    """Return (T,) bool: whether each token begins a word."""
    word_starts_T = vocabulary.starts_word_V.take(encoded.ids_T)
    if encoded.joined_T is not None:
        word_starts_T &= ~encoded.joined_T

    # The first token of a sentence begins a word, whatever the vocabulary says of it.
    has_tokens_N = np.diff(encoded.offsets_N1) > 0
    word_starts_T[encoded.offsets_N1[:-1][has_tokens_N]] = True
    return word_starts_T


def locate_documents(lengths_N: NDArray[np.int64], text: pa.Table) -> tuple[EncodedCorpus, NDArray[np.bool_]]:
    """Return where sentences and documents are, and (D,) bool: which documents of the text have a token.

    lengths_N: the number of tokens of each sentence. The corpus contains only sentences and documents with tokens.
    """
    has_tokens_N = lengths_N > 0
    sentence_offsets = offsets_of(lengths_N[has_tokens_N])

    # Convert sentence numbers of the text to numbers among the kept sentences.
    sentences_per_document_D = pc.list_value_length(text["sentences"]).to_numpy()  # type: ignore[attr-defined]
    kept_before_N1 = offsets_of(has_tokens_N)
    kept_sentences_D1 = kept_before_N1[offsets_of(sentences_per_document_D)]

    is_kept_D = np.diff(kept_sentences_D1) > 0
    document_offsets = np.append(kept_sentences_D1[:-1][is_kept_D], len(sentence_offsets) - 1)
    document_ids = text["document"].to_numpy()[is_kept_D]
    return EncodedCorpus.of(sentence_offsets, document_offsets, document_ids), is_kept_D


def lay_rows(
    documents: EncodedDocuments, pairing: PairingOptions, vocabulary: Vocabulary, pass_number: int
) -> tuple[RowLayout, DocumentLedger]:
    """Return the shard's rows in reading order, and what was left out or cut."""
    tokens = documents.tokens
    if pairing.objective in ("nsp", "sop"):
        special = SpecialTokens.of(vocabulary)
        pairs = pair_sentences(documents.corpus, pairing, len(special.all_ids()), pass_number)
        return lay_pairs(pairs.rows_R7, tokens, len(special.between)), pairs.ledger

    filled = fill_rows(documents.corpus, pairing, pass_number)
    return lay_sentences(filled, tokens), filled.ledger


def write_rows(
    layout: RowLayout, documents: EncodedDocuments, target: PairShard, vocabulary: Vocabulary, options: PairOptions
) -> tuple[bytes, dict[str, Any]]:
    """Return the bytes of a shard with these rows, and its report without a ledger. Copies one batch at a time."""
    drawer = None
    if options.static_masks:
        identity = (options.pairing.seed, target.pass_number, target.text_shard.fingerprint)
        drawer = StaticMaskDrawer(StaticMasks(options.static_masks, options.masking, identity), vocabulary)

    schema = shards.pairs_schema(vocabulary.size, static_masks=drawer is not None)
    encoder = shards.ShardEncoder(schema)
    statistics = RowStatistics(options.pairing.max_length, vocabulary)

    num_rows = len(layout.label_R)
    for start in range(0, num_rows, shards.ROWS_PER_BATCH):
        rows = copy_rows(layout, documents, start, min(start + shards.ROWS_PER_BATCH, num_rows))
        columns = to_columns(rows, layout, documents)
        if drawer is not None:
            columns += drawer.draw(rows)
        encoder.add(pa.record_batch(columns, schema=schema))
        statistics.add(rows)

    data, fingerprint = encoder.finish()
    report = statistics.describe(layout, documents, options.pairing.objective)
    if drawer is not None:
        report["masks"] = drawer.counts()

    tokens = int(layout.range_lengths_N.sum())
    entry = shards.shard_entry(target.name, data, num_rows, fingerprint, tokens)
    return data, {"shard": entry, **report}


def ledger_by_source(ledger: DocumentLedger, documents: EncodedDocuments) -> reports.Ledger:
    """Return what was left out or cut as (reason, source, count), including documents without a token."""
    left_out = [(reason, documents.sources[j], count) for (reason, j), count in ledger.items() if count > 0]
    empty = [(EMPTY, source, 1) for source in documents.empty_sources]
    return reports.add_ledgers([left_out, empty])
