"""Estimates the cost of `shard` and `vocab` from 16 GB to 10 TB: the table of docs/measurements.md, in Markdown.

    python benchmarks/model.py

Numbers of runs, shards, rounds and requests come from the pipeline's own functions, and the job graphs are built.
Everything else is computed from the constants below, whose comments give their sources. Nothing was run at these sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import apache_beam as beam

from pipeline.options import ShardJob
from pipeline.runtime.exchange import groups_for
from pipeline.runtime.merging import MERGE_RANGES, MERGED_RUNS
from pipeline.runtime.staging import Staging
from pipeline.shard.documents import ReadOptions
from pipeline.shard.inputs import SPLIT_BYTES
from pipeline.shard.job_files import files_for
from pipeline.shard.near_duplicates.hot_bands import MAX_STAR
from pipeline.shard.partition import RUN_BUCKETS
from pipeline.shard.plan import MAX_READS, shards_for
from pipeline.steps.near_duplicates import BUCKET_DOCUMENTS, rounds_for
from pipeline.steps.provenance import Provenance
from pipeline.transforms.shard import ShardCorpora
from pipeline.vocab.memory import estimated_memory

SIZES = {"16 GB": 16 * 10**9, "160 GB": 160 * 10**9, "1 TB": 10**12, "10 TB": 10**13}
"""Bytes of clean text, by name."""

SHARD_BYTES = 64 << 20  # the default of --shard_megabytes

# Assumed, not measured: typical latencies, speeds and prices of an object store.
REQUEST_SECONDS = 0.025
STREAM_BYTES_PER_SECOND = 100e6
DOLLARS_PER_REQUEST = 0.4e-6
DOLLARS_PER_SHUFFLED_BYTE = 0.011e-9  # Dataflow

# Measured on one 16 MiB split of Wikipedia: its run has 12.4 MB for 16.5 MB of text.
STORED_SHARE = 0.75

# Measured per core, in this order: the CPU time of the step of `shard` on English; signatures alone; the step
# consume_runs of `benchmarks/scale.py memory` with --dedup minhash, 1.15 s for 39.5 MB of text;
# `benchmarks/near_duplicates.py band`.
SPREAD_BYTES_PER_SECOND = 14e6
MINHASH_BYTES_PER_SECOND = 35e6
GATHER_BYTES_PER_SECOND = 34e6
PAIRED_DOCUMENTS_PER_SECOND = 300_000

# Measured: 0.42 ms of CPU per range of a run on a local disk, and 260 bytes per run in the survey's report.
RANGE_SECONDS = 0.00042
SURVEY_BYTES_OF_RUN = 260

# Web text has 3 KB per document. One document in five is in a candidate pair, so that its signature is sent.
DOCUMENT_BYTES = 3_000
PAIRED_SHARE = 0.2
MINHASH_BYTES_OF_DOCUMENT = 256 + 136
MINHASH_BYTES_OF_PAIRED = 32 + 144 + 16 + 144

LIST_PAGE = 1_000


@dataclass(frozen=True)
class Corpus:
    """A corpus of a given number of bytes of clean text, and the quantities that depend only on this number."""

    text_bytes: int

    @property
    def runs(self) -> int:
        return -(-self.text_bytes // SPLIT_BYTES)

    @property
    def shards(self) -> int:
        return shards_for(self.text_bytes, SHARD_BYTES)

    @property
    def documents(self) -> int:
        return self.text_bytes // DOCUMENT_BYTES

    @property
    def merges(self) -> bool:
        """Whether `--shuffle files` merges runs, by the rule of `plan_shards`."""
        return self.shards > RUN_BUCKETS or self.runs * self.shards > MAX_READS

    def range_requests(self) -> int:
        """Return the number of requests of `--shuffle files` if it does not merge runs: one per run and shard."""
        return self.runs * self.shards

    def merged_requests(self) -> int:
        """Return the number of requests if it merges runs: ranges of all runs, then of merged runs for each shard."""
        merged_runs_of_range = -(-self.runs // MERGED_RUNS)
        return self.runs * MERGE_RANGES + self.shards * merged_runs_of_range


def hours_to_read(requests: float, read_bytes: float) -> float:
    """Return the worker-hours of an exchange through files: 32 requests wait at a time, and all bytes are streamed."""
    seconds = requests * (REQUEST_SECONDS / 32 + RANGE_SECONDS) + read_bytes / STREAM_BYTES_PER_SECOND
    return seconds / 3600


def in_files(corpus: Corpus) -> str:
    stored = corpus.text_bytes * STORED_SHARE
    return exchange_of(corpus.range_requests(), stored, corpus)


def in_merged_files(corpus: Corpus) -> str:
    # Every byte is read twice: from the runs, and from the merged runs.
    stored = corpus.text_bytes * STORED_SHARE
    return exchange_of(corpus.merged_requests(), 2 * stored, corpus)


def in_service(corpus: Corpus) -> str:
    stored = corpus.text_bytes * STORED_SHARE
    dollars = corpus.runs * DOLLARS_PER_REQUEST + stored * DOLLARS_PER_SHUFFLED_BYTE
    hours = hours_to_read(corpus.runs, stored)
    return f"{short(corpus.runs)}, ${dollars:,.2f}, {size(stored)}, {hours:,.1f} h"


def exchange_of(requests: int, read_bytes: float, corpus: Corpus) -> str:
    dollars = requests * DOLLARS_PER_REQUEST
    return f"{short(requests)}, ${dollars:,.2f}, {size(read_bytes)}, {hours_to_read(requests, read_bytes):,.1f} h"


def longest_by_files(corpus: Corpus) -> str:
    """Return the seconds of the longest work of one worker, which writes a group of shards."""
    text_of_group = corpus.text_bytes / groups_for(corpus.shards)
    return f"{text_of_group / GATHER_BYTES_PER_SECOND:,.0f} s"


def longest_by_service(corpus: Corpus) -> str:
    """Return the seconds to spread a split or write a shard (the longer), and to pair a band of 1% of all documents."""
    spread = SPLIT_BYTES / SPREAD_BYTES_PER_SECOND + SPLIT_BYTES / MINHASH_BYTES_PER_SECOND
    shard = corpus.text_bytes / corpus.shards / GATHER_BYTES_PER_SECOND
    band = 0.01 * corpus.documents / PAIRED_DOCUMENTS_PER_SECOND
    return f"{max(spread, shard):,.1f} s ({band:,.0f} s)"


def near_duplicates(corpus: Corpus) -> str:
    moved = corpus.documents * (MINHASH_BYTES_OF_DOCUMENT + PAIRED_SHARE * MINHASH_BYTES_OF_PAIRED)
    buckets = 1 << (-(-corpus.documents // BUCKET_DOCUMENTS) - 1).bit_length()
    return f"{size(moved)} in {buckets:,} buckets, {rounds_for(corpus.text_bytes)} rounds"


def largest_star(corpus: Corpus) -> str:
    return f"{size(144 * min(MAX_STAR, corpus.documents))}"


def job_graph(corpus: Corpus) -> str:
    """Build the job graph of `shard --dedup minhash`, and return its size."""
    job = ShardJob(input=["x"], output="o", dedup="minhash")
    reading = ReadOptions("text", "blank_line", "en", "sentencex", dedup="minhash", seed=0)
    staging = Staging("s3://bucket/text", "job", "token")
    provenance = Provenance({"language": "en"}, [], 0)
    graph = ShardCorpora(corpus.runs, corpus.text_bytes, job, reading, provenance, "service", staging)
    pipeline = beam.Pipeline()
    _ = pipeline | graph
    proto = pipeline.to_runner_api()
    return f"{size(len(proto.SerializeToString()))}, {len(proto.components.transforms)} transforms"


def staging_objects(corpus: Corpus) -> str:
    """Return the objects in staging before anything is published: runs, shards, and a report for each."""
    objects = 2 * corpus.runs + 2 * corpus.shards + files_for(corpus.runs)
    return f"{short(objects)}; {-(-objects // LIST_PAGE):,}"


ROWS: dict[str, Callable[[Corpus], str]] = {
    "runs": lambda corpus: short(corpus.runs),
    "shards, text in each": lambda corpus: f"{corpus.shards:,} x {size(corpus.text_bytes / corpus.shards)}",
    "`files` merges runs": lambda corpus: "yes" if corpus.merges else "no",
    "files, not merged: requests, price, bytes fetched, worker-hours": in_files,
    "files, merged: the same": in_merged_files,
    "service: the same, with the price of its shuffle": in_service,
    "spread, worker-hours": lambda corpus: f"{corpus.text_bytes / SPREAD_BYTES_PER_SECOND / 3600:,.1f} h",
    "longest element, files (a group of shards)": longest_by_files,
    "longest element, service (a band of 1% of all documents)": longest_by_service,
    "near-duplicates: bytes of all exchanges": near_duplicates,
    "most signatures that one document sends for a band": largest_star,
    "survey, in one worker": lambda corpus: size(corpus.runs * SURVEY_BYTES_OF_RUN),
    "learning merges, in one worker": lambda corpus: size(estimated_memory(corpus.text_bytes)),
    "objects in staging; pages of a listing": staging_objects,
    "job graph of `shard --dedup minhash`": job_graph,
}


def short(count: float) -> str:
    """Return a count with at most three significant digits and a unit prefix."""
    for unit, name in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if count >= unit:
            return f"{count / unit:.3g}{name}"
    return f"{count:.0f}"


def size(count: float) -> str:
    """Return a number of bytes with at most three significant digits and a unit."""
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "KB")):
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return f"{count:.0f} bytes"


def main() -> None:
    print("| | " + " | ".join(SIZES) + " |")
    print("|---" * (1 + len(SIZES)) + "|")
    corpora = [Corpus(text_bytes) for text_bytes in SIZES.values()]
    for name, value_of in ROWS.items():
        print(f"| {name} | " + " | ".join(value_of(corpus) for corpus in corpora) + " |")


if __name__ == "__main__":
    main()
