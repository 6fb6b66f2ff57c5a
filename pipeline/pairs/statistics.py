"""Statistics of a shard of pairs, for the manifest and the data card: counts that can be added up over shards.

Shape suffixes: R rows, T tokens, D documents, V the vocabulary. R1 has one element more than R.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.pairs.layout import EncodedDocuments, Ints, RowLayout
from pipeline.pairs.nsp_sop import EncodedCorpus, Objective, PairingOptions
from schemas.randomness import mix
from schemas.vocabulary import Vocabulary

MAX_TOKENS_LISTED = 24  # on the data card


def describe_rows(
    layout: RowLayout, table: pa.Table, documents: EncodedDocuments, pairing: PairingOptions, vocabulary: Vocabulary
) -> dict[str, Any]:
    """Return the counts of a shard whose rows are in `table`, laid out by `layout`."""
    column = table["input_ids"].combine_chunks()
    ids_T = column.values.to_numpy()
    offsets_R1 = column.offsets.to_numpy()
    lengths_R = np.diff(offsets_R1)
    labels_R = layout.label_R[layout.label_R >= 0]

    return {
        "labels": np.bincount(labels_R, minlength=2).tolist(),
        "contradicted_labels": contradicted(layout, documents.corpus, pairing.objective),
        "lengths": np.bincount(lengths_R, minlength=pairing.max_length + 1).tolist(),
        "segment_a_lengths": segment_a_lengths(layout, pairing.max_length),
        "unknown_tokens": int((ids_T == vocabulary.special_id("unk")).sum()),
        "duplicate_rows": duplicate_rows(ids_T, offsets_R1),
        "source_tokens": tokens_by_source(layout, lengths_R, documents.sources),
    }


def tokens_by_source(layout: RowLayout, lengths_R: NDArray[np.integer], sources: list[str]) -> dict[str, int]:
    """Return the tokens of each source, sorted by name. A row counts for the source of its first document."""
    first_document_R = layout.documents_R2[:, 0]
    tokens: Counter[str] = Counter()
    for document, length in zip(first_document_R.tolist(), lengths_R.tolist(), strict=True):
        tokens[sources[document]] += length
    return dict(sorted(tokens.items()))


def contradicted(layout: RowLayout, corpus: EncodedCorpus, objective: Objective) -> int:
    """Count the rows whose label is not true of where their segments come from. There should be none.

    Label 0 means that B comes after A in the same document. Label 1 means that B is from another document (nsp) or
    comes before A (sop). And each segment must be inside the document that the row names.
    """
    if layout.segments_R4 is None:
        return 0

    a_start_R, a_end_R, b_start_R, b_end_R = layout.segments_R4.T
    document_a_R, document_b_R = layout.documents_R2.T
    bounds_D1 = np.array(corpus.sentence_offsets)[corpus.document_offsets]
    ids_D = np.array(corpus.document_ids, np.uint64)

    a_is_inside_R = (bounds_D1[document_a_R] <= a_start_R) & (a_end_R <= bounds_D1[document_a_R + 1])
    b_is_inside_R = (bounds_D1[document_b_R] <= b_start_R) & (b_end_R <= bounds_D1[document_b_R + 1])

    same_document_R = ids_D[document_a_R] == ids_D[document_b_R]
    zero_is_true_R = same_document_R & (a_end_R <= b_start_R)
    exchanged_R = same_document_R & (b_end_R <= a_start_R)
    one_is_true_R = ~same_document_R if objective == "nsp" else exchanged_R

    label_is_true_R = np.where(layout.label_R == 0, zero_is_true_R, one_is_true_R)
    return int((~(a_is_inside_R & b_is_inside_R & label_is_true_R)).sum())


def segment_a_lengths(layout: RowLayout, max_length: int) -> list[int]:
    """Return how many rows have a segment A of 0, 1, ... `max_length` tokens; an empty list without pairs."""
    if layout.segments_R4 is None:
        return []
    lengths_R = layout.segments_R4[:, 1] - layout.segments_R4[:, 0]
    return np.bincount(lengths_R, minlength=max_length + 1).tolist()


def duplicate_rows(ids_T: Ints, offsets_R1: Ints) -> int:
    """Count the rows with the same ids as an earlier row of the shard, by a 64-bit hash of each row."""
    if len(offsets_R1) < 2:
        return 0

    # The hash of a row is the sum of the hashes of its tokens, each together with its position.
    row_start_T = np.repeat(offsets_R1[:-1], np.diff(offsets_R1))
    position_T = np.arange(len(ids_T)) - row_start_T
    hashes_T = mix(ids_T.astype(np.uint64) << np.uint64(32) | position_T.astype(np.uint64))
    hashes_R = np.add.reduceat(hashes_T, offsets_R1[:-1])
    return len(hashes_R) - len(np.unique(hashes_R))


def most_frequent_tokens(table: pa.Table, vocabulary: Vocabulary) -> list[list[str | int]]:
    """Return [token, count] of a shard's most frequent ordinary tokens; ties go to the lower id."""
    ids_T = table["input_ids"].combine_chunks().values.to_numpy()
    counts_V = np.bincount(ids_T, minlength=vocabulary.size)
    counts_V[vocabulary.is_special_V] = 0

    most_frequent = np.argsort(-counts_V, kind="stable")[:MAX_TOKENS_LISTED].tolist()
    return [[vocabulary.tokens[i], int(counts_V[i])] for i in most_frequent if counts_V[i] > 0]
