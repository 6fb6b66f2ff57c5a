"""Corpora whose documents are given by the lengths of their sentences."""

from __future__ import annotations

from itertools import accumulate

import numpy as np

from pipeline.pairs.corpus import EncodedCorpus


def corpus_of(documents: list[list[int]], ids: list[int] | None = None) -> EncodedCorpus:
    """Return a corpus of these documents, with ids of 100 and more where none are given."""
    sentence_offsets = [0, *accumulate(length for document in documents for length in document)]
    document_offsets = [0, *accumulate(map(len, documents))]
    document_ids = ids or [100 + i for i in range(len(documents))]
    return EncodedCorpus(
        np.array(sentence_offsets, np.int64), np.array(document_offsets, np.int64), np.array(document_ids, np.uint64)
    )
