"""Candidate pairs by banding (Leskovec, Rajaraman and Ullman, Mining of Massive Datasets, section 3.4).

The minima of a signature are cut into 16 bands of 8. Documents that agree in all minima of a band are candidates. A
pair of similarity s shares a band with probability 1 - (1 - s**8)**16: 0.61 at 0.7, 0.95 at 0.8, 0.999 at 0.9.

The documents of a band form a star, not a clique: each is paired with the smallest id only. So n documents cost n - 1
pairs instead of n * (n - 1) / 2. For bands of very many documents, see hot_bands.py.

Shape suffixes: D documents of a run, M minima (PERMUTATIONS), B bands (BANDS), W 64-bit words of a band, N rows (one
band of one document each), G rows that share their band with another row, P pairs.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.shard.near_duplicates.signatures import PERMUTATIONS, Minima
from schemas.randomness import GOLDEN, mix

BANDS = 16

BAND_SCHEMA = pa.schema([("band", pa.uint64()), ("document", pa.uint64())])
"""band: a hash of the band's number and minima. document: an id that has this band. 16 rows of 16 bytes per id."""

_WORDS_PER_BAND = PERMUTATIONS // BANDS // 2  # 64-bit words, each of two 32-bit minima

Ids = NDArray[np.uint64]


def band_keys(minima_DM: Minima) -> Ids:
    """Return (D, BANDS) uint64: a hash of each band's number and minima."""
    # Every dimension is written out, because numpy cannot infer one for a run without documents.
    shape = (len(minima_DM), BANDS, _WORDS_PER_BAND)
    words_DBW = np.ascontiguousarray(minima_DM).view(np.uint64).reshape(shape)

    # Each band starts from its own number, so that equal minima in different bands do not collide.
    keys_DB = np.broadcast_to(np.arange(BANDS, dtype=np.uint64), words_DBW.shape[:2])
    for i in range(_WORDS_PER_BAND):
        next_keys_DB = keys_DB + np.uint64(GOLDEN)
        keys_DB = mix(next_keys_DB ^ words_DBW[:, :, i])
    return keys_DB


def band_rows(ids_D: Ids, minima_DM: Minima) -> pa.RecordBatch:
    """Return the BAND_SCHEMA rows of documents, BANDS rows for each."""
    bands_N = band_keys(minima_DM).ravel()
    documents_N = np.repeat(ids_D, BANDS)
    return pa.record_batch([pa.array(bands_N), pa.array(documents_N)], schema=BAND_SCHEMA)


def star_pairs(bands_N: Ids, documents_N: Ids) -> tuple[Ids, Ids]:
    """Return (P,) uint64 twice: the smallest document of a band, and another document of that band.

    Pairs are distinct, in ascending order of the second document and then the first. Needs about 40 bytes per row in
    addition to the rows.
    """
    order_N = np.argsort(bands_N)
    sorted_bands_N = bands_N[order_N]
    equals_previous_N = np.zeros(len(order_N), bool)
    equals_previous_N[1:] = sorted_bands_N[1:] == sorted_bands_N[:-1]

    # Most bands belong to one document. Keep the rows of the others: those equal to the previous row, and the row
    # before each such group.
    is_shared_N = equals_previous_N.copy()
    is_shared_N[:-1] |= equals_previous_N[1:]
    documents_G = documents_N[order_N[is_shared_N]]
    group_starts = np.flatnonzero(~equals_previous_N[is_shared_N])
    if len(group_starts) == 0:
        return documents_G, documents_G

    group_sizes = np.diff(group_starts, append=len(documents_G))
    smallest_G = np.repeat(np.minimum.reduceat(documents_G, group_starts), group_sizes)

    # Copies of one text have the same id, so a document may be in a band several times.
    is_pair_G = smallest_G != documents_G
    return distinct_pairs(smallest_G[is_pair_G], documents_G[is_pair_G])


def distinct_pairs(first_N: Ids, second_N: Ids) -> tuple[Ids, Ids]:
    """Return the distinct pairs of N (first, second), in ascending order of second and then first."""
    order_N = np.lexsort((first_N, second_N))
    first_N = first_N[order_N]
    second_N = second_N[order_N]
    is_new_N = np.ones(len(order_N), bool)
    is_new_N[1:] = (first_N[1:] != first_N[:-1]) | (second_N[1:] != second_N[:-1])
    return first_N[is_new_N], second_N[is_new_N]
