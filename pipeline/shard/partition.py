"""The first half of the shuffle: turn one split of the input into sorted run files.

The shuffle puts the documents of the corpus into a random order that depends on nothing but their texts and the seed:

    id          64-bit hash of the document's text
    placement   64-bit bijection of the id that depends on the seed; documents are sorted by placement
    bucket      one of 1,024 (or --num_shards) equal ranges of placements
    shard       an equal number of consecutive buckets

    partition   each worker collects documents, sorts them by placement, and writes them as a run: an Arrow file with
                exactly one record batch per bucket (pipeline/runtime/bucket_files.py)
    merge       each shard reads its own buckets out of every run and sorts them; see merge.py

The number of shards follows from the amount of clean text, which is known only when all runs are written. So runs are
cut into MAX_SHARDS buckets, and the number that is then chosen divides it. With --num_shards, there are exactly that
many buckets.

Cost: one write and one read of all text, compressed with lz4. Bulk bytes never pass through Beam, which carries only a
small report per run. A split usually makes one run, more if it holds more than RUN_CHARACTERS, and every shard opens
every run, at one seek per bucket. A writer needs about five times RUN_CHARACTERS of memory, however large its split is.
"""

from __future__ import annotations

import numpy as np
import orjson
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.runtime.bucket_files import encode_buckets
from pipeline.runtime.counters import Report
from pipeline.runtime.staging import Staging
from pipeline.shard.documents import ReadOptions, RunBuffer, read_documents
from pipeline.shard.inputs import Split
from pipeline.shard.near_duplicates import encode_signatures
from schemas.randomness import key, mix
from schemas.shards import TEXT_SCHEMA

MAX_SHARDS = 1024
"""Buckets of a run, and the most shards, if --num_shards is not given. A power of two, as is the number chosen."""


def placements(documents: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """Return the sort keys of the shuffled corpus: a bijection of the document ids, another one for each seed."""
    return mix(documents ^ np.uint64(key("placement", seed)))


def report_name(split: Split) -> str:
    """Return the name under which the report of a split's runs is kept."""
    return f"split-{split.index:06d}"


def write_runs(split: Split, reading: ReadOptions, num_shards: int | None, staging: Staging) -> list[Report]:
    """Write the runs of one split and return one report per run.

    What an earlier attempt finished is not made again. Raises DataError if a file cannot be read, or if too many of its
    bytes are not in its encoding.
    """
    finished = staging.report(report_name(split))
    if finished is not None:
        return finished["runs"]

    buckets = num_shards or MAX_SHARDS
    reports: list[Report] = []
    for documents in read_documents(split, reading):
        name = f"run-{split.index:06d}-{len(reports):04d}"
        _write_run(name, documents, reading, buckets, staging)
        reports.append(run_report(name, documents))

    # Last, because the report is the proof that all runs of the split are complete.
    staging.keep_report(report_name(split), {"runs": reports})
    return reports


def _write_run(name: str, documents: RunBuffer, reading: ReadOptions, buckets: int, staging: Staging) -> None:
    """Write the files of one run: its documents, their signatures for `near_duplicates`, and its rejected records."""
    staging.put(f"{name}.arrow", encode_run(documents, reading.seed, buckets))

    if reading.near_duplicates:
        for suffix, data in encode_signatures(documents.ids, documents.sentences).items():
            staging.put(f"{name}.{suffix}", data)

    if documents.rejected:
        json_lines = b"".join(orjson.dumps(entry) + b"\n" for entry in documents.rejected)
        staging.put(f"{name}.rejected.jsonl", json_lines)


def encode_run(documents: RunBuffer, seed: int, buckets: int) -> bytes:
    """Return the Arrow file of a run: documents sorted by placement, one record batch per bucket."""
    ids = np.array(documents.ids, dtype=np.uint64)
    columns = [
        pa.array(ids),
        pa.array(documents.sources, pa.string()),
        pa.array(documents.sentences, TEXT_SCHEMA.types[2]),
    ]
    return encode_buckets(pa.record_batch(columns, schema=TEXT_SCHEMA), placements(ids, seed), buckets)


def run_report(name: str, documents: RunBuffer) -> Report:
    """Return what Beam carries of a run; `plan_shards` adds these reports up."""
    return {
        "run": name,
        "documents": len(documents.ids),
        "characters": documents.characters,
        "text_bytes": documents.text_bytes,
        "ledger": [[*entry, count] for entry, count in sorted(documents.ledger.items())],
        "cleaning": dict(sorted(documents.cleaning.items())),
        "rejected": len(documents.rejected),
        "first_rejected": documents.rejected[0] if documents.rejected else None,
        "undecodable": documents.undecodable,
        "unbroken": len(documents.unbroken),
        "first_unbroken": documents.unbroken[0] if documents.unbroken else None,
    }
