"""What the manifest and the data card tell of a shard of pairs: counts that add up over shards."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.pairs.layout import RowLayout, Tokens
from pipeline.pairs.nsp_sop import EncodedCorpus, Objective
from schemas.randomness import mix
from schemas.vocabulary import Vocabulary

COMMONEST = 24  # tokens that the card names


def describe_rows(
    laid: RowLayout, table: pa.Table, tokens: Tokens, objective: Objective, max_length: int, vocabulary: Vocabulary
) -> dict[str, Any]:
    """Labels and whether the documents bear them out, lengths, unknown tokens, sources, rows that occur twice."""
    column = table["input_ids"].combine_chunks()
    ids_T, offsets_R1 = column.values.to_numpy(), column.offsets.to_numpy()
    source_tokens: Counter[str] = Counter()
    for document, length in zip(laid.documents_R2[:, 0].tolist(), np.diff(offsets_R1).tolist(), strict=True):
        source_tokens[tokens.sources[document]] += length
    return {
        "labels": np.bincount(laid.label_R[laid.label_R >= 0], minlength=2).tolist(),
        "contradicted_labels": contradicted(laid, tokens.corpus, objective),
        "lengths": np.bincount(np.diff(offsets_R1), minlength=max_length + 1).tolist(),
        "segment_a_lengths": segment_a_lengths(laid, max_length),
        "unknown_tokens": int((ids_T == vocabulary.special_id("unk")).sum()),
        "duplicate_rows": duplicate_rows(ids_T, offsets_R1),
        "source_tokens": dict(sorted(source_tokens.items())),
    }


def contradicted(laid: RowLayout, corpus: EncodedCorpus, objective: Objective) -> int:
    """Rows whose label is not true of where their segments come from.

    0 means that B lies after A in the same document; 1 that it is of another document (nsp) or lies before A (sop).
    Each segment must lie in the document that the row names.
    """
    if laid.segments_R4 is None:
        return 0
    a_start, a_end, b_start, b_end = laid.segments_R4.T
    bounds, ids_D = np.array(corpus.sentences)[corpus.documents], np.array(corpus.ids, np.uint64)
    a, b = laid.documents_R2.T
    inside = (bounds[a] <= a_start) & (a_end <= bounds[a + 1]) & (bounds[b] <= b_start) & (b_end <= bounds[b + 1])
    same = ids_D[a] == ids_D[b]
    otherwise = ~same if objective == "nsp" else same & (b_end <= a_start)
    return int((~(inside & np.where(laid.label_R == 0, same & (a_end <= b_start), otherwise))).sum())


def segment_a_lengths(laid: RowLayout, max_length: int) -> list[int]:
    if laid.segments_R4 is None:
        return []
    return np.bincount(laid.segments_R4[:, 1] - laid.segments_R4[:, 0], minlength=max_length + 1).tolist()


def duplicate_rows(ids_T: NDArray[np.integer], offsets_R1: NDArray[np.integer]) -> int:
    """Rows with the ids of another row of the shard, found by a 64-bit hash of each row."""
    if len(offsets_R1) < 2:
        return 0
    place_T = np.arange(len(ids_T)) - np.repeat(offsets_R1[:-1], np.diff(offsets_R1))
    hashes_T = mix(ids_T.astype(np.uint64) << np.uint64(32) | place_T.astype(np.uint64))
    hashes_R = np.add.reduceat(hashes_T, offsets_R1[:-1])
    return len(hashes_R) - len(np.unique(hashes_R))


def commonest_tokens(table: pa.Table, vocabulary: Vocabulary) -> list[list[str | int]]:
    """The ordinary tokens that a shard holds most often; ties go to the lower id."""
    counts_V = np.bincount(table["input_ids"].combine_chunks().values.to_numpy(), minlength=vocabulary.size)
    counts_V[vocabulary.is_special_V] = 0
    first = np.argsort(-counts_V, kind="stable")[:COMMONEST].tolist()
    return [[vocabulary.tokens[i], int(counts_V[i])] for i in first if counts_V[i]]
