"""Finds near-duplicates by MinHash and banding (Broder 1997; Leskovec et al., Mining of Massive Datasets, chapter 3).

    words        a hash of each word, for many documents at once
    signatures   128 minima over a document's shingles of 5 consecutive words (of single characters in Chinese and
                 Japanese); the share of equal minima estimates the Jaccard similarity of two documents' shingles
    bands        documents that agree in 8 minima in a row are a candidate pair
    hot_bands    the same for bands of more than a hundred thousand documents
    similarity   candidate pairs whose signatures agree in at least 70% of the minima are connected
    components   the document with the smallest id of each connected group stays, and the others are dropped

Everything here is a function of arrays and tables. Workers write signatures and bands as runs, and rows meet by key
from step to step (pipeline/steps/near_duplicates.py, pipeline/transforms/near_duplicates.py), so no worker needs more
than one bucket of them. Which copy stays follows from the ids, and so from the texts alone.

Cost, in bytes that are written and read once: 256 for bands and 136 for signatures, for each document of the corpus; 32
and 144 for each candidate pair, and another 16 and 144 for each document that is the larger one of a pair; 8 for each
document to drop; and, in each round of stars, 48 for each edge that `check_pairs` leaves.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipeline.shard.near_duplicates.bands import BAND_SCHEMA, BANDS, band_keys, band_rows
from pipeline.shard.near_duplicates.signatures import (
    PERMUTATIONS,
    SIGNATURE_SCHEMA,
    minhash_signatures,
    signature_rows,
)
from pipeline.shard.near_duplicates.similarity import THRESHOLD

__all__ = [
    "BANDS",
    "BAND_SCHEMA",
    "PERMUTATIONS",
    "SIGNATURE_BUCKETS",
    "SIGNATURE_SCHEMA",
    "THRESHOLD",
    "SignatureRows",
    "band_keys",
    "minhash_signatures",
    "rows_of_documents",
]

SIGNATURE_BUCKETS = 256
"""Number of ranges of keys that the runs of bands and signatures are cut into. With more buckets than this, they are
merged before they are read, and cut again."""


@dataclass(frozen=True)
class SignatureRows:
    """The rows that a run of documents adds to the search for near-duplicates (BAND_SCHEMA and SIGNATURE_SCHEMA)."""

    bands: pa.RecordBatch
    signatures: pa.RecordBatch


def rows_of_documents(ids: list[int], documents: Iterable[list[str]]) -> SignatureRows:
    """Return the rows of documents, each a list of sentences. Copies of one text occur only once."""
    distinct_ids, places = np.unique(np.array(ids, dtype=np.uint64), return_index=True)
    minima = minhash_signatures(documents)[places]
    return SignatureRows(band_rows(distinct_ids, minima), signature_rows(distinct_ids, minima))
