"""Statistics of a pair shard for the manifest and the data card: counts that can be added up over shards.

Shape suffixes: R rows, T tokens, D documents, V the vocabulary. R1 has one element more than R.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.pairs.encoded_corpus import EncodedCorpus
from pipeline.pairs.layout import NO_PAIR_LABEL, EncodedDocuments, RowBatch, RowLayout
from pipeline.pairs.nsp_sop import Objective
from schemas.randomness import U64, mix
from schemas.vocabulary import Vocabulary

MAX_TOKENS_LISTED = 24  # on the data card


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

    def describe(self, layout: RowLayout, documents: EncodedDocuments, objective: Objective) -> dict[str, Any]:
        """Return the counts of a shard, after all of its rows were added."""
        lengths_R = layout.lengths()
        labels_R = layout.label_R[layout.label_R != NO_PAIR_LABEL]
        return {
            "labels": np.bincount(labels_R, minlength=2).tolist(),
            "contradicted_labels": contradicted(layout, documents.corpus, objective),
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


def contradicted(layout: RowLayout, corpus: EncodedCorpus, objective: Objective) -> int:
    """Count the rows whose label contradicts where their segments come from. There should be none.

    Label 0 means that B comes after A in the same document. Label 1 means that B is from another document (nsp) or
    comes before A (sop). Each segment must also be inside the document that the row names.
    """
    if layout.segments_R4 is None:
        return 0

    a_start_R, a_end_R, b_start_R, b_end_R = layout.segments_R4.T
    document_a_R, document_b_R = layout.documents_R2.T

    # Document j is the tokens bounds_D1[j] : bounds_D1[j + 1].
    bounds_D1 = corpus.sentence_offsets_N1[corpus.document_offsets_D1]
    a_is_inside_R = (bounds_D1[document_a_R] <= a_start_R) & (a_end_R <= bounds_D1[document_a_R + 1])
    b_is_inside_R = (bounds_D1[document_b_R] <= b_start_R) & (b_end_R <= bounds_D1[document_b_R + 1])

    # Two copies of a document have equal ids but different numbers.
    ids_D = corpus.document_ids_D
    same_document_R = ids_D[document_a_R] == ids_D[document_b_R]
    in_order_R = same_document_R & (a_end_R <= b_start_R)
    exchanged_R = same_document_R & (b_end_R <= a_start_R)

    one_is_true_R = ~same_document_R if objective == "nsp" else exchanged_R
    label_is_true_R = np.where(layout.label_R == 0, in_order_R, one_is_true_R)
    is_right_R = a_is_inside_R & b_is_inside_R & label_is_true_R
    return int(np.count_nonzero(~is_right_R))


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
