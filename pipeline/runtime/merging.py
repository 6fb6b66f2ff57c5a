"""Merges runs before the readers of an exchange (exchange.py) fetch from them.

With many runs, each reader would fetch many small ranges. So MERGED_RUNS neighboring runs become one, for each of
MERGE_RANGES ranges of keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from pipeline.runtime.exchange import (
    Entry,
    KeyedBatches,
    Stream,
    batches_of_runs,
    cut_entries,
    indexes_by_name,
    write_batches,
)
from pipeline.runtime.run_files import RunIndex
from pipeline.runtime.staging import Staging

MERGED_RUNS = 64
"""Maximum runs that are merged into one. One of MERGE_RANGES key ranges of each is in memory at the same time."""

MERGE_RANGES = 64

MERGED_BYTES = 64 << 20
"""Maximum stored bytes that are merged into one run, unless a single run has more: most rows of a run may be in one
range."""


def entries_by_range(index: RunIndex, stream: int) -> Iterator[tuple[int, Entry]]:
    """Split a run's index into one part for each range of keys to merge, and yield (range, entry)."""
    range_of_listed = index.numbers.astype(np.int64) * MERGE_RANGES // index.buckets
    yield from cut_entries(index, range_of_listed, stream)


def merge_runs(name: str, entries: Iterable[Entry], stream: Stream, buckets: int, staging: Staging) -> list[RunIndex]:
    """Write a run with the rows of every MERGED_RUNS entries, cut into the exchange's buckets, and return the indexes.

    Memory does not grow with the number of entries, which is high if a large compressed file is a single split.
    """
    indexes = [index for _, index in indexes_by_name(entries)]

    def make_batches() -> KeyedBatches:
        for together in _merged_together(indexes):
            yield from batches_of_runs(together, stream, staging)

    return write_batches(f"merged-{name}", make_batches, stream, buckets, staging)


def _merged_together(indexes: list[RunIndex]) -> Iterator[list[RunIndex]]:
    """Yield groups of neighboring runs that become one: each at most MERGED_RUNS runs and MERGED_BYTES."""
    together: list[RunIndex] = []
    bytes_together = 0

    for index in indexes:
        run_bytes = int(index.lengths.sum())
        if together and (len(together) == MERGED_RUNS or bytes_together + run_bytes > MERGED_BYTES):
            yield together
            together = []
            bytes_together = 0
        together.append(index)
        bytes_together += run_bytes

    if together:
        yield together
