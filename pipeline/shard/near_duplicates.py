"""Find near-duplicates by MinHash and banding (Broder 1997; Leskovec et al., Mining of Massive Datasets, chapter 3).

    signature   128 minima over the document's shingles of 5 consecutive words (of single characters in Chinese and
                Japanese); the share of equal minima estimates the Jaccard similarity of two documents' shingles
    join        the minima are cut into 16 bands of 8; documents that agree in all minima of a band are a candidate
                pair. A pair of similarity s is found with probability 1 - (1 - s**8)**16: 0.61 at 0.7, 0.95 at 0.8,
                0.999 at 0.9
    resolve     candidates with an estimated similarity of at least THRESHOLD are connected; the document with the
                smallest id of each connected group stays, and the others are dropped

Workers write signatures and bands next to their runs. Bands are distributed over JOINS buckets by their hash; each
join reads its bucket out of every run, and only pairs of ids come back. Which copy stays follows from the ids, and so
from the texts alone.

Cost per document: 520 bytes of signature and 256 bytes of bands, written and read once. A join needs memory for 1/64
of all bands, and `resolve` for the signatures of the documents in any candidate pair.

Shape suffixes: D documents of a run, M minima (PERMUTATIONS), B bands (BANDS), W 64-bit words of a band, N entries of
bands (one band of one document each), P candidate pairs, S similar pairs, C documents in any candidate pair.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.runtime.bucket_files import encode_buckets, read_buckets
from pipeline.runtime.counters import Report
from pipeline.runtime.staging import Staging
from schemas.randomness import GOLDEN, mix

SHINGLE_WORDS = 5
PERMUTATIONS = 128
BANDS = 16
THRESHOLD = 0.7

JOINS = 64
"""Buckets of bands. One join reads a quarter of an entry (16 bytes) for each document of the corpus: 4 bytes."""

_WORDS_PER_BAND = PERMUTATIONS // BANDS // 2  # 64-bit words, each of two 32-bit minima

# Kana, CJK ideographs and their extension A, compatibility ideographs.
_IDEOGRAPHS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"

# A word is one such character, or a run of other letters, digits and underscores.
_WORD = re.compile(rf"[{_IDEOGRAPHS}]|[^\W{_IDEOGRAPHS}]+")

_SIGNATURES = pa.schema([("document", pa.uint64()), ("minima", pa.binary(4 * PERMUTATIONS))])
_BANDS = pa.schema([("band", pa.uint64()), ("document", pa.uint64())])
Ids = NDArray[np.uint64]


@cache
def _empty_signature() -> Any:
    """Return the signature of no shingle. It is only copied, so threads may share it, or compute it twice."""
    from datasketch import MinHash  # takes a second to import with scipy, and few jobs need it

    return MinHash(num_perm=PERMUTATIONS, seed=1, scheme="affine32")


def minhash_signature(sentences: list[str]) -> NDArray[np.uint32]:
    """Return (PERMUTATIONS,) uint32, the signature of a document. One with fewer words has a single shingle."""
    words = _WORD.findall(" ".join(sentences).lower())
    starts = range(max(1, len(words) - SHINGLE_WORDS + 1))
    shingles = {" ".join(words[i : i + SHINGLE_WORDS]).encode() for i in starts}

    signature = _empty_signature().copy()
    signature.update_batch(shingles)
    return signature.hashvalues.astype(np.uint32)


def encode_signatures(ids: list[int], sentences: Iterable[list[str]]) -> dict[str, bytes]:
    """Return the files that a run leaves for `join` and `resolve`, by their suffix."""
    ids_D = np.array(ids, dtype=np.uint64)
    signature_of_document = [minhash_signature(document) for document in sentences]
    minima_DM = np.array(signature_of_document, np.uint32).reshape(-1, PERMUTATIONS)

    stored_D = pa.array([row.tobytes() for row in minima_DM], _SIGNATURES.field("minima").type)
    signatures = pa.record_batch([pa.array(ids_D), stored_D], schema=_SIGNATURES)

    keys_N = band_keys(minima_DM).ravel()
    documents_N = np.repeat(ids_D, BANDS)
    bands = pa.record_batch([pa.array(keys_N), pa.array(documents_N)], schema=_BANDS)

    return {
        "signatures.arrow": encode_buckets(signatures, ids_D, 1),
        "bands.arrow": encode_buckets(bands, keys_N, JOINS),
    }


def band_keys(minima_DM: NDArray[np.uint32]) -> NDArray[np.uint64]:
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


def join_bands(bucket: int, runs: tuple[str, ...], staging: Staging) -> Report:
    """Write the candidate pairs of one bucket of bands, and return the name of their file as a report.

    Documents that share a band form a star, not a clique: each is paired with the smallest id only. So n equal bands
    cost n - 1 pairs instead of n * (n - 1) / 2.
    """
    name = f"join-{bucket:03d}"
    finished = staging.report(name)
    if finished is not None:
        return finished

    files = [f"{run}.bands.arrow" for run in runs]
    table = read_buckets(files, bucket, bucket + 1, _BANDS, staging)
    bands_N = table["band"].to_numpy()
    documents_N = table["document"].to_numpy()

    # Sort by band, then by document: each band is then a run of rows whose first document is its smallest.
    order_N = np.lexsort((documents_N, bands_N))
    bands_N = bands_N[order_N]
    documents_N = documents_N[order_N]

    # The first row always begins a band: it is compared with its own bitwise complement.
    group_starts = np.flatnonzero(np.diff(bands_N, prepend=~bands_N[:1]))
    group_sizes = np.diff(np.append(group_starts, len(bands_N)))
    smallest_N = np.repeat(documents_N[group_starts], group_sizes)

    is_pair_N = smallest_N != documents_N
    pairs_P2 = np.stack([smallest_N, documents_N], axis=1)[is_pair_N]
    distinct_P2 = np.unique(pairs_P2, axis=0)  # most near-duplicates share several bands
    return staging.keep(name, distinct_P2.tobytes(), {"pairs": name})


def resolve(runs: tuple[str, ...], joined: list[Report], staging: Staging) -> Report:
    """Write the sorted ids of the documents to drop: all but the smallest of each group of near-duplicates."""
    pairs_of_join = []
    for report in joined:
        flat_ids = _ids(staging.piece(report["pairs"]))
        pairs_of_join.append(flat_ids.reshape(-1, 2))

    # A pair that shares several bands is usually found by several joins.
    pairs_P2 = np.unique(np.concatenate(pairs_of_join), axis=0)
    ids_C = np.unique(pairs_P2)

    # Sharing a band is only a hint: the pair stays if the whole signatures agree well enough.
    minima_CM = load_signatures(runs, ids_C, staging)
    rows_P2 = np.searchsorted(ids_C, pairs_P2)
    similar_S2 = pairs_P2[_similarities(minima_CM, rows_P2) >= THRESHOLD]

    larger_ids = all_but_smallest(similar_S2.tolist())
    dropped = np.array(sorted(larger_ids), dtype=np.uint64)
    return staging.keep("dropped", dropped.tobytes(), {"dropped": "dropped"})


def _similarities(minima_CM: NDArray[np.uint32], rows_P2: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return (P,) float64: the estimated Jaccard similarity of each pair of rows."""
    first_PM = minima_CM[rows_P2[:, 0]]
    second_PM = minima_CM[rows_P2[:, 1]]
    return np.mean(first_PM == second_PM, axis=1)


def load_signatures(runs: Iterable[str], ids_C: Ids, staging: Staging) -> NDArray[np.uint32]:
    """Return (C, PERMUTATIONS) uint32: the signatures of sorted ids. Only one run is in memory at a time."""
    minima_CM = np.zeros((len(ids_C), PERMUTATIONS), dtype=np.uint32)
    for run in runs:
        table = read_buckets([f"{run}.signatures.arrow"], 0, 1, _SIGNATURES, staging)
        documents_D = table["document"].to_numpy()
        is_wanted_D = np.isin(documents_D, ids_C)

        stored = table["minima"].filter(pa.array(is_wanted_D)).to_pylist()
        minima = np.frombuffer(b"".join(stored), np.uint32).reshape(-1, PERMUTATIONS)

        # Every wanted id is in the sorted ids_C, so the search returns its exact row.
        rows = np.searchsorted(ids_C, documents_D[is_wanted_D])
        minima_CM[rows] = minima
    return minima_CM


def all_but_smallest(pairs: list[list[int]]) -> set[int]:
    """Return the members of each connected group of pairs except its smallest. Example: `[[1, 2], [2, 5]]` -> `{2, 5}`.

    This is union-find with path halving. The smaller root always becomes the parent, so a group's root is its
    smallest member.
    """
    parent: dict[int, int] = {}

    def root(member: int) -> int:
        while parent.setdefault(member, member) != member:
            parent[member] = parent[parent[member]]
            member = parent[member]
        return member

    for first, second in pairs:
        smaller, larger = sorted((root(first), root(second)))
        parent[larger] = smaller
    return {member for member in parent if root(member) != member}


def dropped_ids(report: Report, staging: Staging) -> Ids:
    """Return the sorted ids that `resolve` decided to drop."""
    return _ids(staging.piece(report["dropped"]))


def _ids(data: bytes) -> Ids:
    return np.frombuffer(data, dtype=np.uint64)
