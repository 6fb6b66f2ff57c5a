"""Write runs, the first half of the shuffle: turns one split of the input into sorted run files.

The shuffle puts the documents of the corpus into a random order that depends only on their texts and the seed:

    id          64-bit hash of the document's text
    placement   64-bit bijection of the id that depends on the seed; documents are sorted by placement
    shard       an equal range of placements, `placement * num_shards >> 64`

    write runs      each worker collects documents, drops copies (copies.py) unless --dedup is none, sorts the rest by
                    placement, and writes it as a run file (pipeline/exchange/runs.py)
    write shards    all documents of a shard meet in an exchange (pipeline/exchange) and are sorted; see write_shard.py

The number of shards follows from the amount of clean text, which is known only when all runs are written. So runs are
cut into RUN_BUCKETS buckets, or into --num_shards if that is given.

Cost: one write and one read of all text, compressed with lz4, and one more of each if runs are merged. A split usually
makes one run, or more if it has more than RUN_CHARACTERS. A writer needs about five times RUN_CHARACTERS of memory,
however large its split is.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import orjson
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.commit.reports import Report
from pipeline.commit.staging import Staging
from pipeline.exchange.blocks import Stream
from pipeline.exchange.runs import RunIndex, encode_run, one_batch
from pipeline.near_duplicates.bands import band_rows
from pipeline.near_duplicates.signatures import SIGNATURE_BUCKETS, distinct_signatures, signature_rows
from pipeline.readers.inputs import Split
from pipeline.shard.copies import Dedup, drop_copies, run_schema
from pipeline.shard.documents import ReadOptions
from pipeline.shard.hosts import HOST_BUCKETS, host_keys, host_rows
from pipeline.shard.run_buffer import RunBuffer, read_split
from schemas.randomness import key, mix

RUN_BUCKETS = 1024
"""Number of ranges of placements that a run is cut into if --num_shards is not given. It is a power of two, as the
number of shards then is. With more shards than this, runs are merged before they are read, and cut again."""


def placements(documents: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """Return the sort keys of the shuffled corpus: a bijection of the document ids that depends on the seed."""
    return mix(documents ^ np.uint64(key("placement", seed)))


def report_name(split: Split) -> str:
    """Return the name of the report on a split's runs."""
    return f"split-{split.index:06d}"


def placements_of(documents: pa.RecordBatch, seed: int) -> NDArray[np.uint64]:
    """Return (documents,) uint64: the placement of each document in a batch with a column `document`."""
    return placements(documents["document"].to_numpy(), seed)


def documents_stream(dedup: Dedup, seed: int, has_languages: bool = False) -> Stream:
    """Return the stream that brings documents from their runs to their shards."""
    combine = None if dedup == "none" else drop_copies
    return Stream(0, "documents", run_schema(dedup, has_languages), partial(placements_of, seed=seed), combine)


def write_runs(split: Split, reading: ReadOptions, num_shards: int | None, staging: Staging) -> list[Report]:
    """Write the runs of one split and return one report per run.

    A split that an earlier attempt finished is not read again. Raises DataError if a file cannot be read, or if too
    many of its bytes are not in its encoding.
    """
    finished = staging.report(report_name(split))
    if finished is not None:
        return finished["runs"]

    buckets = num_shards or RUN_BUCKETS
    reports: list[Report] = []
    for documents in read_split(split, reading):
        name = f"run-{split.index:06d}-{len(reports):04d}"
        report = run_report(name, documents)
        report["split"] = split.index
        report["index"] = _write_run(name, documents, reading, buckets, staging).to_row()
        if reading.dedup == "minhash":
            report |= _write_signatures(name, documents, staging)
        if reading.has_urls:
            report["hosts"] = _write_hosts(name, documents, staging)
        reports.append(report)

    # Last, because the report proves that all runs of the split are complete.
    staging.keep_report(report_name(split), {"runs": reports})
    return reports


def _write_run(name: str, documents: RunBuffer, reading: ReadOptions, buckets: int, staging: Staging) -> RunIndex:
    rows = rows_of(documents, reading)
    data, index = encode_run(rows, placements_of(rows, reading.seed), buckets, f"{name}.run")
    staging.put(index.name, data)

    entries = [*documents.excerpts, *documents.listed]
    if entries:
        json_lines = b"".join(orjson.dumps(entry) + b"\n" for entry in entries)
        staging.put(f"{name}.rejected.jsonl", json_lines)
    return index


def _write_signatures(name: str, documents: RunBuffer, staging: Staging) -> Report:
    """Write run files of the documents' bands and signatures. Return their indexes for the run's report."""
    ids, minima = distinct_signatures(documents.ids, documents.sentences)
    bands = band_rows(ids, minima)

    band_data, band_index = encode_run(bands, bands["band"].to_numpy(), SIGNATURE_BUCKETS, f"{name}.bands.run")
    staging.put(band_index.name, band_data)
    data, index = encode_run(signature_rows(ids, minima), ids, SIGNATURE_BUCKETS, f"{name}.signatures.run")
    staging.put(index.name, data)
    return {"bands": band_index.to_row(), "signatures": index.to_row()}


def _write_hosts(name: str, documents: RunBuffer, staging: Staging) -> list | None:
    """Write a run file of the number of documents of each host. Return its index for the run's report, None without."""
    if not documents.hosts:
        return None
    rows = host_rows(documents.hosts)
    data, index = encode_run(rows, host_keys(rows), HOST_BUCKETS, f"{name}.hosts.run")
    staging.put(index.name, data)
    return index.to_row()


def rows_of(documents: RunBuffer, reading: ReadOptions) -> pa.RecordBatch:
    """Return the documents in the columns of `run_schema`, without copies if --dedup drops these."""
    schema = run_schema(reading.dedup, reading.has_languages)
    columns = [
        pa.array(np.array(documents.ids, dtype=np.uint64)),
        pa.array(documents.sources, pa.string()),
        documents.sentences.to_arrow(),
    ]
    if reading.has_languages:
        columns += [pa.array(documents.languages, pa.string()), pa.array(documents.confidences, pa.float32())]
    if reading.dedup == "none":
        return pa.record_batch(columns, schema=schema)

    columns.append(pa.nulls(len(documents.ids), pa.string()))
    return one_batch(drop_copies(pa.table(columns, schema=schema)))


def run_report(name: str, documents: RunBuffer) -> Report:
    """Return the facts about a run that Beam carries; `survey_corpus` gets the sum of these reports."""
    return {
        "run": name,
        "documents": len(documents.ids),
        "characters": documents.characters,
        "text_bytes": documents.text_bytes,
        "ledger": [[*entry, count] for entry, count in sorted(documents.ledger.items())],
        "cleaning": dict(sorted(documents.cleaning.items())),
        "dropped": documents.dropped,
        "rejected": documents.rejected,
        "bad": [[*entry, count] for entry, count in sorted(documents.bad.items())],
        "listed": len(documents.listed),
        "first_rejected": _first(name, documents.excerpts),
        "undecodable": documents.undecodable,
        "encodings": documents.encodings,
        "pieces": dict(sorted(documents.pieces.items())),
        "unbroken": len(documents.unbroken),
        "first_unbroken": _first(name, documents.unbroken),
    }


def _first(run: str, entries: list[Report]) -> Report | None:
    """Return the first of some entries with its run's name, by which the first entry of all runs is found."""
    return {"run": run, **entries[0]} if entries else None
