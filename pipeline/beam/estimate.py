"""Estimates a job for a dry run: its splits, the size of its result, its worker-hours and the size of its graph.

An estimate uses only amounts that are known before a job starts and the constants below. Speeds were measured on
English text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pipeline.beam.display import Work
from pipeline.readers.formats import named_format
from pipeline.readers.open import compression_of
from schemas.terminal import megabytes

# Bytes of text per stored byte. Assumed, because corpora differ and only the file's name is examined.
GROWTH_OF_COMPRESSED = 3.5  # .gz, .bz2, .xz and .zst
GROWTH_OF_PARQUET = 2.0

# Bytes of text that one core processes per second. The first three are also those of the table of worker-hours
# in docs/measurements.md ("At 16 GB to 10 TB").
WRITE_RUNS_BYTES_PER_SECOND = 14e6  # reading, cleaning, splitting into sentences, writing runs
WRITE_SHARDS_BYTES_PER_SECOND = 34e6  # reading runs, writing shards
MINHASH_BYTES_PER_SECOND = 35e6  # signatures alone
REPEATS_BYTES_PER_SECOND = 30e6  # what --drop_repeats adds: hashes of sentences, drafts written and read
# docs/measurements.md ("Pipeline speed"), 209 MB on two cores in a quiet hour: 7.6 s for `vocab`, 9.5 s for `pairs`.
COUNT_BYTES_PER_SECOND = 14e6
PAIRS_BYTES_PER_SECOND = 11e6

# Bytes of the result per byte of text.
TEXT_SHARE = 0.75  # measured on runs, which hold the same text
PAIRS_SHARE = 0.5  # assumed: two bytes per token, and one token per four bytes of text

VOCABULARY_BYTES = 2_000_000  # assumed: a tokenizer.json of 30,000 tokens
COUNTS_BYTES = 50_000_000  # assumed: a million different words, counted by three sets of rules


@dataclass(frozen=True)
class Estimate:
    """The size of a job.

    shards: number of shards in the result, about.
    output_bytes: of the result.
    seconds: on one core, all steps together.
    """

    shards: int
    output_bytes: int
    seconds: float

    def lines(self, command: str, work: Work, graph: Any) -> Iterator[str]:
        """Yield the lines that a dry run prints. `graph` is the job as Beam's protobuf message."""
        size = len(graph.SerializeToString())
        yield f"{command}: {work.pieces:,} splits of {megabytes(work.bytes)} of input"
        yield f"  result: about {self.shards:,} shards and {megabytes(self.output_bytes)} (estimate)"
        yield (
            f"  work: about {_hours(self.seconds)} worker-hours of one core each, without the time to start workers "
            "(estimate, from speeds measured on English text)"
        )
        yield f"  graph: {megabytes(size)}, {len(graph.components.transforms):,} transforms"


def text_bytes_of(path: str, stored_bytes: int) -> float:
    """Estimate the bytes of text in a corpus file from its name and stored size."""
    if compression_of(path) is not None:
        return stored_bytes * GROWTH_OF_COMPRESSED
    if named_format(path) == "parquet":
        return stored_bytes * GROWTH_OF_PARQUET
    return float(stored_bytes)


def _hours(seconds: float) -> str:
    hours = seconds / 3600
    return f"{hours:,.0f}" if hours >= 10 else f"{hours:.2g}"
