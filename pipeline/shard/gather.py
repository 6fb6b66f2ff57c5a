"""The second half of the shuffle: from every run the part that belongs to one shard, in order, without duplicates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.reports import Ledger, add_ledgers
from pipeline.shard.spread import MAX_SHARDS, placements
from pipeline.staging import Staging
from schemas import shards, storage
from schemas.errors import DataError

Dedup = Literal["none", "exact"]
SHARD_CHARACTERS = 8 << 20  # a shard's worth of tokens and rows fits easily into one worker's memory
NOT_BAD = {"blank line", "empty document", "characters removed by cleaning"}  # reasons that do not make a corpus bad


@dataclass(frozen=True)
class Corpus:
    """What `spread` found in all: enough to gather any shard."""

    runs: tuple[str, ...]
    buckets: int
    num_shards: int
    ledger: Ledger


def survey(reports: Iterable[list[dict[str, Any]]], num_shards: int | None, max_bad_ratio: float) -> Corpus:
    """Add up the runs and decide the number of shards from the cleaned text, which files and compression do not change.

    Raises DataError when there is no document, or when more than `max_bad_ratio` of the records were bad.
    """
    runs = sorted((run for report in reports for run in report), key=lambda run: run["run"])
    ledger = add_ledgers(run["ledger"] for run in runs)
    documents = sum(run["documents"] for run in runs)
    check_bad_ratio(ledger, documents, max_bad_ratio)
    if documents == 0:
        raise DataError(
            "The input holds no document with any text in it. Check --format, --text_layout and --text_key."
        )
    wanted = num_shards or shards_for(sum(run["characters"] for run in runs))
    return Corpus(tuple(run["run"] for run in runs), num_shards or MAX_SHARDS, wanted, ledger)


def check_bad_ratio(ledger: Ledger, documents: int, max_bad_ratio: float) -> None:
    bad = {(reason, source): count for reason, source, count in ledger if reason not in NOT_BAD}
    ratio = sum(bad.values()) / max(1, documents + sum(bad.values()))
    if ratio > max_bad_ratio:
        (reason, source), count = max(bad.items(), key=lambda item: item[1])
        raise DataError(
            f"{ratio:.2%} of the records are bad, above --max_bad_ratio {max_bad_ratio}; most often ({count} times): "
            f"{reason}, in {source} input. Nothing was published. Mend the input or raise --max_bad_ratio."
        )


def shards_for(characters: int) -> int:
    """A power of two, so that it divides MAX_SHARDS buckets: about SHARD_CHARACTERS a shard, more beyond 8 GB."""
    return min(MAX_SHARDS, 1 << max(0, (characters - 1) // SHARD_CHARACTERS).bit_length())


def gather(index: int, corpus: Corpus, dedup: Dedup, seed: int, staging: Staging) -> dict[str, Any]:
    """Write one text shard into staging and return its report."""
    name = shards.shard_name("text", index, corpus.num_shards)
    done = staging.report(name)
    if done is not None:
        return done
    rows = in_order(read_runs(index, corpus, staging), seed)
    kept, ledger = drop_duplicates(rows) if dedup == "exact" else (rows, [])
    data = shards.encode_table(kept)
    report = {"shard": describe(name, kept, data), "ledger": ledger, "sources": by_source(kept), **lengths(kept)}
    staging.keep(name, data, report)
    return report


def read_runs(index: int, corpus: Corpus, staging: Staging) -> pa.Table:
    """The documents of shard `index`: the same range of buckets out of each run."""
    first = index * corpus.buckets // corpus.num_shards
    last = (index + 1) * corpus.buckets // corpus.num_shards
    batches: list[pa.RecordBatch] = []
    for run in corpus.runs:
        with storage.open_input(staging.url(run)) as file, pa.ipc.open_file(file) as reader:
            batches += (batch for i in range(first, last) if (batch := reader.get_batch(i)).num_rows)
    return pa.Table.from_batches(batches, shards.TEXT)


def in_order(table: pa.Table, seed: int) -> pa.Table:
    """By placement, then source: the order of arrival leaves no trace."""
    placed = placements(table["document"].to_numpy(), seed)
    sortable = pa.table({"placed": placed, "source": table["source"]})
    order = pc.sort_indices(sortable, [("placed", "ascending"), ("source", "ascending")])  # type: ignore[attr-defined]
    return table.take(order)


def drop_duplicates(table: pa.Table) -> tuple[pa.Table, list[tuple[str, str, int]]]:
    """Keep the first of documents with one id; equal ids mean equal text, for an id is its hash."""
    ids = table["document"].to_numpy()
    again = np.zeros(len(ids), dtype=bool)
    again[1:] = ids[1:] == ids[:-1]
    dropped = Counter(table["source"].filter(pa.array(again)).to_pylist())
    return table.filter(pa.array(~again)), [("duplicate document", s, n) for s, n in sorted(dropped.items())]


def describe(name: str, table: pa.Table, data: bytes) -> dict[str, Any]:
    """The shard's entry in the manifest."""
    return {
        "path": name,
        "rows": table.num_rows,
        "tokens": 0,
        "bytes": len(data),
        "sha256": storage.sha256(data),
        "fingerprint": shards.content_fingerprint(shards.equal_batches(table)),
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
        "text_bytes": int(pc.sum(pc.binary_length(flat)).as_py() or 0),  # type: ignore[attr-defined]
        "sentences_per_document": log2_histogram(sentences),
        "characters_per_sentence": log2_histogram(characters),
    }


def log2_histogram(values: np.ndarray) -> list[int]:
    """[i] counts the values in [2**i, 2**(i+1))."""
    return np.bincount(np.log2(values[values > 0]).astype(int)).tolist() if len(values) else []
