"""Builds one pair shard from one text shard: encodes, pairs or fills rows, lays them out, shuffles, masks, counts.

Shape suffixes: N sentences, T tokens, D documents, R rows, V the vocabulary. N1, D1 and R1 have one element more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.commit import reports
from pipeline.pairs.corpus import DocumentLedger, EncodedCorpus, PairOptions
from pipeline.pairs.encoding import TextEncoder
from pipeline.pairs.encoding_cache import EncodedStrings
from pipeline.pairs.full_sentences import fill_rows
from pipeline.pairs.layout import (
    NO_PAIR_LABEL,
    EncodedDocuments,
    RowBatch,
    RowLayout,
    copy_rows,
    lay_pairs,
    lay_sentences,
    special_ids_of_row,
    to_columns,
)
from pipeline.pairs.nsp_sop import pair_sentences
from pipeline.pairs.static_masks import StaticMaskDrawer
from pipeline.pairs.word_segmentation import BEGINS, CONTINUES
from schemas import shards, storage
from schemas.manifest import Shard
from schemas.ragged import offsets_of
from schemas.randomness import U64, key, mix, permutation
from schemas.shards import read_shard_bytes
from schemas.vocabulary import Vocabulary

MAX_TOKENS_LISTED = 24  # on the data card
EMPTY = "document without a token of the vocabulary"


@dataclass(frozen=True)
class PairShard:
    """One pair shard to build: its file name, its text shard, and the number of the pass over the text.

    Passes of the same text shard (--dupe_factor) differ in their random draws. languages: those of the documents that
    rows are made of; empty for all.
    """

    name: str
    text_folder: str
    text_shard: Shard
    pass_number: int = 0
    languages: tuple[str, ...] = ()


def build_shard(
    target: PairShard, encoder: TextEncoder, vocabulary: Vocabulary, options: PairOptions
) -> tuple[bytes, dict[str, Any]]:
    """Return the bytes of a pair shard and its report. Raises DataError if the text shard is damaged.

    Peak memory is about four bytes per byte of text, on top of the process and the encoder's caches.
    """
    documents, others = read_as_tokens(target, encoder, vocabulary)
    in_reading_order, ledger = lay_rows(documents, options, vocabulary, target.pass_number)
    order_key = key(options.seed, "row order", target.pass_number, target.text_shard.fingerprint)
    layout = in_reading_order.take(permutation(len(in_reading_order.label_R), order_key))

    data, report = write_rows(layout, documents, target, vocabulary, options)

    left_out = [(reason, documents.sources[j], count) for (reason, j), count in ledger.items() if count > 0]
    empty = [(EMPTY, source, 1) for source in documents.empty_sources]
    report["ledger"] = reports.add_ledgers([left_out, empty, others])
    return data, report


def read_as_tokens(
    target: PairShard, encoder: TextEncoder, vocabulary: Vocabulary
) -> tuple[EncodedDocuments, reports.Ledger]:
    """Read and encode the text shard. Returns the ledger of documents in other languages, too.

    Once this returns, the text is no longer needed.
    """
    text_shard = target.text_shard
    path = storage.join(target.text_folder, text_shard.path)
    text = shards.decode_text(read_shard_bytes(target.text_folder, text_shard), path)
    others: reports.Ledger = ()
    if target.languages:
        is_wanted = pc.is_in(text["language"], pa.array(target.languages))  # type: ignore[attr-defined]
        left_out = text.filter(pc.invert(is_wanted)).select(["language", "source"])  # type: ignore[attr-defined]
        entries = [(f"language {row['language']}", row["source"], 1) for row in left_out.to_pylist()]
        others = reports.add_ledgers([entries])
        text = text.filter(is_wanted)
    return to_tokens(text, encoder, vocabulary), others


def to_tokens(text: pa.Table, encoder: TextEncoder, vocabulary: Vocabulary) -> EncodedDocuments:
    """Encode all sentences of a text shard.

    Sentences without a token (for example only invisible characters) are left out, and so are documents without tokens.
    """
    id_type = np.dtype(str(shards.token_type(vocabulary.size)))
    ids = []
    word_starts = []
    lengths = [np.zeros(0, dtype=np.int64)]
    for encoded in encoder.encode_text(text):
        ids.append(encoded.ids_T.astype(id_type))
        word_starts.append(word_starts_of(encoded, vocabulary))
        lengths.append(np.diff(encoded.offsets_N1))

    # No word begins at a special token.
    special_ids = np.array(special_ids_of_row(vocabulary), dtype=id_type)
    ids.append(special_ids)
    word_starts.append(np.zeros(len(special_ids), dtype=bool))

    lengths_N = np.concatenate(lengths)
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


def word_starts_of(encoded: EncodedStrings, vocabulary: Vocabulary) -> NDArray[np.bool_]:
    """Return (T,) bool: whether each token begins a word."""
    word_starts_T = vocabulary.starts_word_V.take(encoded.ids_T)
    if encoded.marks_T is not None:
        word_starts_T[encoded.marks_T == CONTINUES] = False
        word_starts_T[encoded.marks_T == BEGINS] = True

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
    return EncodedCorpus(sentence_offsets, document_offsets, document_ids), is_kept_D


def lay_rows(
    documents: EncodedDocuments, options: PairOptions, vocabulary: Vocabulary, pass_number: int
) -> tuple[RowLayout, DocumentLedger]:
    """Return the shard's rows in reading order, and what was left out or cut."""
    tokens = documents.tokens
    if options.objective in ("nsp", "sop"):
        special_tokens = len(special_ids_of_row(vocabulary))
        rows_R7, ledger = pair_sentences(documents.corpus, options, special_tokens, pass_number)
        return lay_pairs(rows_R7, tokens, vocabulary.separators), ledger

    filled = fill_rows(documents.corpus, options, pass_number)
    return lay_sentences(filled, tokens), filled.ledger


def write_rows(
    layout: RowLayout, documents: EncodedDocuments, target: PairShard, vocabulary: Vocabulary, options: PairOptions
) -> tuple[bytes, dict[str, Any]]:
    """Return the bytes of a shard with these rows, and its report without a ledger. Copies one batch at a time."""
    drawer = None
    if options.static_masks:
        identity = (options.seed, target.pass_number, target.text_shard.fingerprint)
        drawer = StaticMaskDrawer(options.static_masks, options.masking, identity, vocabulary)

    schema = shards.pairs_schema(vocabulary.size, static_masks=drawer is not None)
    encoder = shards.ShardEncoder(schema)
    statistics = RowStatistics(options.max_length, vocabulary)

    num_rows = len(layout.label_R)
    for start in range(0, num_rows, shards.ROWS_PER_BATCH):
        rows = copy_rows(layout, documents, start, min(start + shards.ROWS_PER_BATCH, num_rows))
        columns = to_columns(rows, layout, documents)
        if drawer is not None:
            columns |= drawer.draw(rows)
        encoder.add(pa.record_batch(columns, schema=schema))
        statistics.add(rows)

    data, entry = encoder.finish(target.name, int(layout.range_lengths_N.sum()))
    report = statistics.describe(layout, documents)
    if drawer is not None:
        report["masks"] = drawer.counts()
    return data, {"shard": entry, **report}


# Statistics for the manifest and the data card


class RowStatistics:
    """Counts of a shard's rows, which are added batch by batch."""

    def __init__(self, max_length: int, vocabulary: Vocabulary):
        """Start without rows. `max_length`: the maximum number of tokens in a row."""
        self._max_length = max_length
        self._unknown_id = vocabulary.special_id("unk")
        self._unknown_tokens = 0
        self._unknown_words = 0
        self._words = 0
        self._hashes: list[U64] = []

        # A hash for each id and an odd factor for each position, from the same generator as all random numbers.
        self._id_hashes_V = mix(np.arange(1, vocabulary.size + 1, dtype=np.uint64))
        self._factors = mix(np.arange(1, max_length + 1, dtype=np.uint64) << np.uint64(32)) | np.uint64(1)

    def add(self, rows: RowBatch) -> None:
        """Count the tokens of a batch of rows."""
        # Words are numbered from 1, and special tokens continue the word before them.
        word_T = np.cumsum(rows.word_starts_T)
        word_of_unknown = word_T[rows.ids_T == self._unknown_id]
        self._words += int(word_T[-1]) if len(word_T) else 0
        self._unknown_words += len(np.unique(word_of_unknown))
        self._unknown_tokens += len(word_of_unknown)
        self._hashes.append(self._hash(rows))

    def describe(self, layout: RowLayout, documents: EncodedDocuments) -> dict[str, Any]:
        """Return the counts of a shard, after all of its rows were added."""
        lengths_R = layout.lengths()
        labels_R = layout.label_R[layout.label_R != NO_PAIR_LABEL]
        return {
            "labels": np.bincount(labels_R, minlength=2).tolist(),
            "lengths": np.bincount(lengths_R, minlength=self._max_length + 1).tolist(),
            "segment_a_lengths": segment_a_lengths(layout, self._max_length),
            "unknown_tokens": self._unknown_tokens,
            "unknown_words": self._unknown_words,
            "words": self._words,
            "duplicate_rows": self._duplicate_rows(),
            "source_tokens": tokens_by_source(layout, lengths_R, documents.sources),
        }

    def _duplicate_rows(self) -> int:
        """Count the rows with the same ids as an earlier row of the shard, by a 64-bit hash of each row."""
        if not self._hashes:
            return 0
        hashes_R = np.concatenate(self._hashes)
        return len(hashes_R) - len(np.unique(hashes_R))

    def _hash(self, rows: RowBatch) -> U64:
        """Return (R,) uint64 hashes of rows, which are never empty.

        The hash of a row is the sum of the hashes of its tokens, each times the factor of its position (multilinear
        hashing: Lemire and Kaser, "Strongly universal string hashing is fast", 2014).
        """
        starts_R = rows.offsets_R1[:-1]
        lengths_R = np.diff(rows.offsets_R1)
        positions_T = np.arange(len(rows.ids_T))
        positions_T -= np.repeat(starts_R, lengths_R)  # now counted from the row's first token

        hashes_T = self._id_hashes_V.take(rows.ids_T)
        hashes_T *= self._factors.take(positions_T)
        return np.add.reduceat(hashes_T, starts_R)


def tokens_by_source(layout: RowLayout, lengths_R: NDArray[np.integer], sources: list[str]) -> dict[str, int]:
    """Return the number of tokens of each source, sorted by name. A row counts for its first document's source."""
    # Map source names to numbers, then each row's first document to its source's number.
    names = sorted(set(sources))
    number_of = {name: number for number, name in enumerate(names)}
    source_D = np.array([number_of[source] for source in sources], dtype=np.int64)
    source_R = source_D[layout.documents_R2[:, 0]]

    tokens = np.zeros(len(names), dtype=np.int64)
    np.add.at(tokens, source_R, lengths_R)
    return {name: count for name, count in zip(names, tokens.tolist(), strict=True) if count > 0}


def segment_a_lengths(layout: RowLayout, max_length: int) -> list[int]:
    """Return how many rows have a segment A of 0, 1, ... `max_length` tokens; empty for rows without pairs."""
    if layout.segments_R4 is None:
        return []
    lengths_R = layout.segments_R4[:, 1] - layout.segments_R4[:, 0]
    return np.bincount(lengths_R, minlength=max_length + 1).tolist()


def most_frequent_tokens(table: pa.Table, vocabulary: Vocabulary) -> list[list[str | int]]:
    """Return [token as people read it, count] of a shard's most frequent ordinary tokens; ties go to the lower id."""
    ids_T = table["input_ids"].combine_chunks().values.to_numpy()
    counts_V = np.bincount(ids_T, minlength=vocabulary.size)
    counts_V[vocabulary.is_special_V] = 0

    most_frequent = np.argsort(-counts_V, kind="stable")[:MAX_TOKENS_LISTED].tolist()
    return [[vocabulary.shown(i), int(counts_V[i])] for i in most_frequent if counts_V[i] > 0]
