"""The second half of the shuffle: from every run the part that belongs to one shard, in order, without duplicates."""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.runtime.bucket_files import read_buckets
from pipeline.runtime.counters import Report
from pipeline.runtime.staging import Staging
from pipeline.shard.near_duplicates import dropped_ids
from pipeline.shard.partition import placements
from pipeline.shard.plan import CorpusSurvey, check_shard_bytes
from schemas import shards, storage
from schemas.randomness import key

Dedup = Literal["none", "exact", "minhash"]
Dropped = list[tuple[str, str, int]]


def merge_shard(
    index: int, corpus: CorpusSurvey, near: Report | None, dedup: Dedup, seed: int, staging: Staging
) -> Report:
    """Write one text shard into staging and return its report; `near` is what was resolved of near-duplicates."""
    name = shards.shard_name("text", index, corpus.num_shards)
    done = staging.report(name)
    if done is not None:
        return done

    arrived = read_runs(index, corpus, staging)
    check_shard_bytes(text_bytes(arrived), name, corpus.num_shards)
    rows = in_order(arrived, seed)
    ledger: Dropped = []
    if dedup != "none":
        rows, ledger = drop(rows, repeats_of_the_one_before(rows), "duplicate document")
    if near is not None:
        near_ids = np.isin(rows["document"].to_numpy(), dropped_ids(near, staging))
        rows, more = drop(rows, near_ids, "near-duplicate document")
        ledger += more
    batches = shards.equal_batches(rows)
    data = shards.encode_batches(batches, rows.schema)
    report = {"shard": describe(name, batches, data), "ledger": ledger, "sources": by_source(rows), **lengths(rows)}
    return staging.keep(name, data, report)


def read_runs(index: int, corpus: CorpusSurvey, staging: Staging) -> pa.Table:
    """The documents of shard `index`: the same range of buckets out of each run."""
    first = index * corpus.buckets // corpus.num_shards
    last = (index + 1) * corpus.buckets // corpus.num_shards
    return read_buckets([f"{run}.arrow" for run in corpus.runs], first, last, shards.TEXT, staging)


def in_order(table: pa.Table, seed: int) -> pa.Table:
    """Sort documents by placement, source and content: a total order, so the order of arrival leaves no trace.

    Documents of one placement have the same text, but it may have been cut into other sentences. What is still equal
    after that is equal in every column.
    """
    placed = placements(table["document"].to_numpy(), seed)
    sortable = pa.table({"placed": placed, "source": table["source"], "content": content_keys(table)})
    keys = [("placed", "ascending"), ("source", "ascending"), ("content", "ascending")]
    return table.take(pc.sort_indices(sortable, keys))  # type: ignore[attr-defined]


def content_keys(table: pa.Table) -> np.ndarray:
    """Return (documents,) uint64 a hash of each document's sentences with their boundaries; 0 where no id repeats.

    Only documents of one id can tie, and few do, so the others need no hash.
    """
    ids = table["document"].to_numpy()
    _, group, count = np.unique(ids, return_inverse=True, return_counts=True)
    repeated = np.flatnonzero(count[group] > 1)
    hashes = np.zeros(len(ids), dtype=np.uint64)
    hashes[repeated] = [key("content", *sentences) for sentences in table["sentences"].take(repeated).to_pylist()]
    return hashes


def repeats_of_the_one_before(table: pa.Table) -> np.ndarray:
    """True at documents with the id of the one before; equal ids mean equal text, for an id is its hash."""
    ids = table["document"].to_numpy()
    repeats = np.zeros(len(ids), dtype=bool)
    repeats[1:] = ids[1:] == ids[:-1]
    return repeats


def drop(table: pa.Table, where: np.ndarray, reason: str) -> tuple[pa.Table, Dropped]:
    """The other rows, and the ledger's entries for those dropped."""
    sources = Counter(table["source"].filter(pa.array(where)).to_pylist())
    return table.filter(pa.array(~where)), [(reason, source, count) for source, count in sorted(sources.items())]


def describe(name: str, batches: list[pa.RecordBatch], data: bytes) -> dict[str, Any]:
    """The shard's entry in the manifest."""
    return {
        "path": name,
        "rows": sum(batch.num_rows for batch in batches),
        "tokens": 0,
        "bytes": len(data),
        "sha256": storage.sha256(data),
        "fingerprint": shards.content_fingerprint(batches),
    }


def by_source(table: pa.Table) -> dict[str, int]:
    return dict(sorted(Counter(table["source"].to_pylist()).items()))


def lengths(table: pa.Table) -> dict[str, Any]:
    """Sentences, bytes of text, and histograms of sentences a document and characters a sentence by powers of two."""
    sentences = pc.list_value_length(table["sentences"]).to_numpy()  # type: ignore[attr-defined]
    flat = pc.list_flatten(table["sentences"])  # type: ignore[attr-defined]
    characters = pc.utf8_length(flat).to_numpy()  # type: ignore[attr-defined]
    return {
        "sentences": int(sentences.sum()),
        "text_bytes": text_bytes(table),
        "sentences_per_document": log2_histogram(sentences),
        "characters_per_sentence": log2_histogram(characters),
    }


def text_bytes(table: pa.Table) -> int:
    """Bytes of all sentences in UTF-8."""
    flat = pc.list_flatten(table["sentences"])  # type: ignore[attr-defined]
    return int(pc.sum(pc.binary_length(flat)).as_py() or 0)  # type: ignore[attr-defined]


def log2_histogram(values: np.ndarray) -> list[int]:
    """[i] counts the values in [2**i, 2**(i+1))."""
    return np.bincount(np.log2(values[values > 0]).astype(int)).tolist() if len(values) else []
