"""Near-duplicates by MinHash and banding (Broder 1997; Leskovec et al., Mining of Massive Datasets, chapter 3).

    signature   PERMUTATIONS minima over the document's shingles of SHINGLE words (single characters in Chinese and
                Japanese); the share of equal minima estimates the Jaccard similarity of two documents' shingles
    join        documents that agree in all 8 minima of a band are a candidate pair; a pair of similarity s is found
                with probability 1 - (1 - s**8)**16: 0.61 at 0.7, 0.95 at 0.8, 0.999 at 0.9
    resolve     candidates whose estimated similarity is THRESHOLD or more are one group; its smallest id stays

Workers write signatures and bands beside their runs; each join reads its bucket of bands out of every run, and only
pairs come back. Which copy stays follows from the ids, so from the texts alone.
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

SHINGLE, PERMUTATIONS, BANDS, THRESHOLD = 5, 128, 16, 0.7
JOINS = 64  # buckets of bands: one join holds 4 bytes for each document of the corpus
_IDEOGRAPHS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_IDEOGRAPHS}]|[^\W{_IDEOGRAPHS}]+")
_SIGNATURES = pa.schema([("document", pa.uint64()), ("minima", pa.binary(4 * PERMUTATIONS))])
_BANDS = pa.schema([("band", pa.uint64()), ("document", pa.uint64())])
Ids = NDArray[np.uint64]


@cache
def _empty() -> Any:
    """The signature of no shingle. Threads share it, and only copy it; two that compute it at once get equal ones."""
    from datasketch import MinHash  # with scipy it takes a second to import, and few jobs need it

    return MinHash(num_perm=PERMUTATIONS, seed=1, scheme="affine32")


def minima(sentences: list[str]) -> NDArray[np.uint32]:
    """(PERMUTATIONS,) the signature of a document."""
    words = _WORD.findall(" ".join(sentences).lower())
    starts = range(max(1, len(words) - SHINGLE + 1))
    signature = _empty().copy()
    signature.update_batch({" ".join(words[i : i + SHINGLE]).encode() for i in starts})
    return signature.hashvalues.astype(np.uint32)


def encode_signatures(ids: list[int], sentences: list[list[str]]) -> dict[str, bytes]:
    """The files that a run leaves for `join` and `resolve`, by suffix."""
    minima_DP = np.array([minima(document) for document in sentences], np.uint32).reshape(-1, PERMUTATIONS)
    ids_D = np.array(ids, dtype=np.uint64)
    stored = pa.array([row.tobytes() for row in minima_DP], _SIGNATURES.types[1])
    signatures = pa.record_batch([pa.array(ids_D), stored], schema=_SIGNATURES)
    bands = band_keys(minima_DP).ravel()
    repeated = pa.record_batch([pa.array(bands), pa.array(np.repeat(ids_D, BANDS))], schema=_BANDS)
    return {
        "signatures.arrow": encode_buckets(signatures, ids_D, 1),
        "bands.arrow": encode_buckets(repeated, bands, JOINS),
    }


def band_keys(minima_DP: NDArray[np.uint32]) -> NDArray[np.uint64]:
    """(D, BANDS) a hash of each band's minima and of the band's number."""
    # Each width is written out: numpy cannot infer one for a run without documents.
    parts = np.ascontiguousarray(minima_DP).view(np.uint64).reshape(len(minima_DP), BANDS, PERMUTATIONS // BANDS // 2)
    keys = np.broadcast_to(np.arange(BANDS, dtype=np.uint64), parts.shape[:2])
    for i in range(parts.shape[2]):
        keys = mix((keys + np.uint64(GOLDEN)) ^ parts[:, :, i])
    return keys


def join(bucket: int, runs: tuple[str, ...], staging: Staging) -> Report:
    """Write the candidate pairs of one bucket of bands: each document with the smallest id that shares its band."""
    name = f"join-{bucket:03d}"
    done = staging.report(name)
    if done is not None:
        return done
    table = read_buckets([f"{run}.bands.arrow" for run in runs], bucket, bucket + 1, _BANDS, staging)
    bands, documents = table["band"].to_numpy(), table["document"].to_numpy()
    order = np.lexsort((documents, bands))
    bands, documents = bands[order], documents[order]
    begins = np.flatnonzero(np.diff(bands, prepend=~bands[:1]))
    smallest = np.repeat(documents[begins], np.diff(np.append(begins, len(bands))))
    pairs = np.stack([smallest, documents], axis=1)[smallest != documents]
    return staging.keep(name, np.unique(pairs, axis=0).tobytes(), {"pairs": name})


def resolve(runs: tuple[str, ...], joined: list[Report], staging: Staging) -> Report:
    """Write the sorted ids of the documents to drop: all but the smallest of each group of near-duplicates."""
    candidates = np.concatenate([_ids(staging.piece(report["pairs"])).reshape(-1, 2) for report in joined])
    pairs = np.unique(candidates, axis=0)
    concerned = np.unique(pairs)
    minima_CP = load_minima(runs, concerned, staging)
    places = np.searchsorted(concerned, pairs)
    similar = pairs[np.mean(minima_CP[places[:, 0]] == minima_CP[places[:, 1]], axis=1) >= THRESHOLD]
    dropped = np.array(sorted(all_but_smallest(similar.tolist())), dtype=np.uint64)
    return staging.keep("dropped", dropped.tobytes(), {"dropped": "dropped"})


def load_minima(runs: Iterable[str], concerned: Ids, staging: Staging) -> NDArray[np.uint32]:
    """(C, PERMUTATIONS) the signatures of the concerned ids, which are sorted; one run in memory at a time."""
    minima_CP = np.zeros((len(concerned), PERMUTATIONS), dtype=np.uint32)
    for run in runs:
        table = read_buckets([f"{run}.signatures.arrow"], 0, 1, _SIGNATURES, staging)
        documents = table["document"].to_numpy()
        wanted = np.isin(documents, concerned)
        stored = table["minima"].filter(pa.array(wanted)).to_pylist()
        rows = np.frombuffer(b"".join(stored), np.uint32).reshape(-1, PERMUTATIONS)
        minima_CP[np.searchsorted(concerned, documents[wanted])] = rows
    return minima_CP


def all_but_smallest(pairs: list[list[int]]) -> set[int]:
    """The members of each connected group of pairs but the smallest. Example: `[[1, 2], [2, 5]]` -> `{2, 5}`."""
    parent: dict[int, int] = {}

    def root(member: int) -> int:
        while parent.setdefault(member, member) != member:
            parent[member] = parent[parent[member]]
            member = parent[member]
        return member

    for a, b in pairs:
        low, high = sorted((root(a), root(b)))
        parent[high] = low
    return {member for member in parent if root(member) != member}


def dropped_ids(report: Report, staging: Staging) -> Ids:
    """The ids that `resolve` decided to drop."""
    return _ids(staging.piece(report["dropped"]))


def _ids(data: bytes) -> Ids:
    return np.frombuffer(data, dtype=np.uint64)
