"""Checks candidate pairs: sharing a band is only a hint, and the whole signatures decide.

No worker has the signatures of all documents, so they are brought together in two exchanges by document id:

    request    for a pair (a, b), a < b: a row at a, "send your signature to b", and one at b, "send it to yourself"
    delivery   what document a sends to b, and b to itself: a signature
    check      at b: compare each delivered signature with b's own

Every document gets at most 17 deliveries, because it is the larger one of at most one pair for each of its 16 bands. So
however many near-copies a page has, no single document receives all of their signatures.

Only documents of a pair send their signature. Bytes: 136 for each document of the corpus (the signatures), 32 for each
pair (requests), and about 144 for each pair and each document that is the larger one of a pair (deliveries).

Shape suffixes: D documents, R requests, V deliveries, M minima (PERMUTATIONS), E edges.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.near_duplicates.bands import Ids, distinct_pairs
from pipeline.near_duplicates.components import Edges
from pipeline.near_duplicates.signatures import PERMUTATIONS, binary_column

THRESHOLD = 0.7

_ACCIDENTAL = 1 / 256  # the share of different minima that agree in their 8 stored bits

MIN_EQUAL = int(np.ceil(PERMUTATIONS * (THRESHOLD + (1 - THRESHOLD) * _ACCIDENTAL)))
"""Minimum number of equal minima of a similar pair: 90 of 128, both with the 8 stored bits and with all 32."""

REQUEST_SCHEMA = pa.schema([("document", pa.uint64()), ("to", pa.uint64())])
"""document: whose signature is requested. to: where the signature goes."""

DELIVERY_SCHEMA = pa.schema(
    [("to", pa.uint64()), ("sender", pa.uint64()), ("minima", pa.binary(PERMUTATIONS)), ("is_center", pa.bool_())]
)
"""minima: of the sender. is_center: whether the sender is the smaller document of any pair."""

_DELIVERIES_AT_A_TIME = 1 << 18  # 36 MB
_COMPARED_AT_A_TIME = 1 << 13  # 1 MB of each side


def requests(smaller: Ids, larger: Ids) -> pa.RecordBatch:
    """Return REQUEST_SCHEMA rows for candidate pairs."""
    documents_R = np.concatenate([smaller, np.unique(larger)])
    to_R = np.concatenate([larger, np.unique(larger)])
    return pa.record_batch([pa.array(documents_R), pa.array(to_R)], schema=REQUEST_SCHEMA)


def deliveries(signatures: pa.Table, requested: pa.Table) -> Iterator[pa.RecordBatch]:
    """Yield the requested signatures as DELIVERY_SCHEMA rows, at most 36 MB at a time.

    signatures: of all documents of a bucket; copies of a text may occur several times.
    requested: the bucket's requests; several buckets of bands may have found the same pair.
    """
    to_R, documents_R = distinct_pairs(requested["to"].to_numpy(), requested["document"].to_numpy())
    goes_elsewhere_R = documents_R != to_R
    centers = np.unique(documents_R[goes_elsewhere_R])

    known_D, place_D = np.unique(signatures["document"].to_numpy(), return_index=True)
    minima = _minima_of(signatures)
    for start in range(0, len(documents_R), _DELIVERIES_AT_A_TIME):
        end = start + _DELIVERIES_AT_A_TIME
        senders = documents_R[start:end]
        minima_VM = minima[place_D[np.searchsorted(known_D, senders)]]
        columns = [
            pa.array(to_R[start:end]),
            pa.array(senders),
            binary_column(minima_VM),
            pa.array(np.isin(senders, centers)),
        ]
        yield pa.record_batch(columns, schema=DELIVERY_SCHEMA)


def similar_pairs(delivered: pa.Table) -> tuple[Edges, Ids]:
    """Return the pairs of a bucket whose estimated similarity is at least THRESHOLD, and the centers of other pairs.

    The larger documents of the pairs belong to the bucket. The centers are (N,) uint64, sorted: the documents of the
    bucket that may be the smaller one of pairs in other buckets.
    """
    to_V = delivered["to"].to_numpy()
    senders_V = delivered["sender"].to_numpy()
    minima_VM = _minima_of(delivered)

    is_own_V = to_V == senders_V
    own_places = np.flatnonzero(is_own_V)
    own_places = own_places[np.argsort(to_V[own_places])]
    own_documents = to_V[own_places]

    pair_places = np.flatnonzero(~is_own_V)
    own_place_of_pair = own_places[np.searchsorted(own_documents, to_V[pair_places])]
    equal_E = _equal_minima(minima_VM, pair_places, own_place_of_pair)
    similar_places = pair_places[equal_E >= MIN_EQUAL]

    is_center_V = delivered["is_center"].to_numpy()
    centers = np.sort(to_V[own_places[is_center_V[own_places]]])
    return Edges(senders_V[similar_places], to_V[similar_places]), centers


def _equal_minima(minima_VM: NDArray[np.uint8], first_E: NDArray[np.int64], second_E: NDArray[np.int64]) -> NDArray:
    """Return (E,) int64: for each pair of rows, the number of minima in which they agree."""
    counts = [np.zeros(0, np.int64)]
    for start in range(0, len(first_E), _COMPARED_AT_A_TIME):
        end = start + _COMPARED_AT_A_TIME
        agrees = minima_VM[first_E[start:end]] == minima_VM[second_E[start:end]]
        counts.append(np.count_nonzero(agrees, axis=1))
    return np.concatenate(counts)


def _minima_of(table: pa.Table) -> NDArray[np.uint8]:
    """Return the table's `minima`, a column of fixed-size binary values, as (rows, PERMUTATIONS) uint8."""
    column = table["minima"].combine_chunks()
    values = np.frombuffer(column.buffers()[1] or b"", np.uint8)
    start = column.offset * PERMUTATIONS
    return values[start : start + len(column) * PERMUTATIONS].reshape(-1, PERMUTATIONS)
