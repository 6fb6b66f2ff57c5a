"""What an exchange does on workers: rows go from the workers that make them to those that need them.

A worker makes *keyed batches*: record batches with a 64-bit key for each row. A *bucket* is one of N equal ranges of
keys, and one worker gets all rows of a bucket, from all workers. There are two ways to get there:

    files     Each worker writes its batches as run files into staging, and only their indexes go through Beam, to the
              readers of *groups* of neighboring buckets. A reader fetches exact ranges of bytes. For local runners,
              which keep every element in memory.
    service   Each worker cuts its batches into small blocks (blocks.py), and the engine's own shuffle brings all blocks
              of a bucket together. For engines whose shuffle spills to disk.

A bucket's rows come in another order in each, so what is done with them must not depend on it. Rows of different kinds
(documents, and ids of documents to drop) can meet in one exchange, each as a *stream*.

When there are many runs, each reader would fetch many small ranges. Then runs are *merged* once: MERGED_RUNS neighbors
become one, for each of MERGE_RANGES ranges of keys (merging.py).

A run file is a function of its rows, even if an engine makes it twice: a worker that was given up may still write its
file after its twin has reported the checksums. So indexes are sorted by name wherever runs are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from pipeline.runtime.run_files import Keys, RunIndex, encode_run, read_buckets
from pipeline.runtime.staging import Staging

Shuffle = Literal["files", "merged", "service"]

GROUPS = 256
"""Groups of buckets, or fewer if there are fewer buckets: as many tasks can read at once. Each run's index is cut into
as many elements, which cost Beam time and memory."""

GROUP_BUCKETS = 8
"""Most buckets of a group: a group is one element, which takes as long as writing that many shards. So there are more
than GROUPS groups from 2,049 buckets on. Of 16,384 shards and 60,000 runs (2,048 groups) the indexes are 1.9 million
elements, because runs are merged before; the merge itself takes 3.8 million."""

PIECE_BYTES = 16 << 20
"""The compressed bytes of a bucket that a step reads at a time if it takes the rows in pieces."""


KeyedBatch = tuple[Keys, pa.RecordBatch]
"""(rows,) uint64 keys, and the rows."""

KeyedBatches = Iterable[KeyedBatch]


def no_keys(rows: pa.RecordBatch) -> Keys:
    """The keys of a stream whose batches come with theirs."""
    raise NotImplementedError("this stream's rows have no function for their keys")


def _nothing(_: Any) -> None:
    """What most streams do once the batches of an element are made."""


def all_rows(rows: pa.Table) -> pa.Table:
    """The rows of a stream that has no function to combine them."""
    return rows


@dataclass(frozen=True)
class BatchSource:
    """How the batches of a stream are made from elements.

    name_of: the name of an element, distinct within the stream.
    batches_of: called with an element and the plan's details.
    made: called with an element once its batches are made, or were found in staging.
    """

    name_of: Callable[[Any], str]
    batches_of: Callable[[Any, Any], KeyedBatches]
    made: Callable[[Any], None] = _nothing


@dataclass(frozen=True)
class Stream:
    """One kind of rows in an exchange.

    number: the place of its table among those that a reader gets.
    name: how the names of its files in staging begin.
    keys_of: returns the keys of rows; needed for runs that were written before the exchange, as those of `shard` are.
    combine: returns fewer rows that stand for the same, as MapReduce's combiner does. Called where runs are merged.
    """

    number: int
    name: str
    schema: pa.Schema
    keys_of: Callable[[pa.RecordBatch], Keys] = no_keys
    combine: Callable[[pa.Table], pa.Table] = all_rows


# How batches leave a worker.


def write_batches(
    name: str, make_batches: Callable[[], KeyedBatches], stream: Stream, buckets: int, staging: Staging
) -> list[RunIndex]:
    """Write each batch as a run file, and return the indexes. What an earlier attempt finished is not made again.

    `name` tells this worker's element from all others of the stream.
    """
    report_name = f"{stream.name}-{name}"
    finished = staging.report(report_name)
    if finished is not None:
        return [RunIndex.from_row(row) for row in finished["runs"]]

    indexes = []
    for number, (keys, rows) in enumerate(make_batches()):
        file_name = f"{report_name}-{number:04d}.run"
        data, index = encode_run(rows, keys, buckets, file_name)
        staging.put(file_name, data)
        indexes.append(index)

    staging.keep_report(report_name, {"runs": [index.to_row() for index in indexes]})
    return indexes


# How the rows of a bucket come together.

Entry = tuple[int, list]
"""(stream, a row of RunIndex): where the rows of one run are that belong to one group of buckets."""


def groups_for(buckets: int) -> int:
    """Return the number of groups: neighboring buckets that one worker reads one after another."""
    small_enough = -(-buckets // GROUP_BUCKETS)
    return min(buckets, max(GROUPS, small_enough))


def buckets_of_group(group: int, buckets: int) -> range:
    """Return the buckets of one group."""
    groups = groups_for(buckets)
    first = -(-group * buckets // groups)
    end = -(-(group + 1) * buckets // groups)
    return range(first, end)


def entries_by_group(index: RunIndex, stream: int, buckets: int) -> Iterator[tuple[int, Entry]]:
    """Cut the index of a run into parts for each group, and yield (group, entry).

    The run is cut into as many buckets as the exchange has, or into a multiple of it.
    """
    groups = groups_for(buckets)
    bucket_of_listed = index.numbers.astype(np.int64) * buckets // index.buckets
    group_of_listed = bucket_of_listed * groups // buckets
    yield from cut_entries(index, group_of_listed, stream)


def cut_entries(index: RunIndex, key_of_listed: np.ndarray, stream: int) -> Iterator[tuple[int, Entry]]:
    """Cut the index of a run where `key_of_listed`, one ascending number for each listed bucket, changes."""
    keys, starts = np.unique(key_of_listed, return_index=True)
    ends = np.append(starts, len(key_of_listed))[1:]
    for key, start, end in zip(keys.tolist(), starts.tolist(), ends.tolist(), strict=True):
        yield key, (stream, index.part(start, end).to_row())


def indexes_by_name(entries: Iterable[Entry]) -> list[tuple[int, RunIndex]]:
    """Return (stream, index) for entries that arrived in any order, sorted by the names of their runs."""
    indexes = [(stream, RunIndex.from_row(row)) for stream, row in entries]
    return sorted(indexes, key=lambda numbered: numbered[1].name)


@dataclass(frozen=True)
class GroupReader:
    """Reads the buckets of one group, out of all runs.

    indexes: (stream, index) of each run that has rows in the group, sorted by name. buckets: of the exchange.
    """

    indexes: list[tuple[int, RunIndex]]
    buckets: int
    staging: Staging

    def tables(self, bucket: int, streams: list[Stream]) -> list[pa.Table]:
        """Return the table of each stream with the rows of one bucket. Raises as `read_buckets` does."""
        tables = []
        for stream in streams:
            parts = [self._part(bucket, index) for number, index in self.indexes if number == stream.number]
            batches = read_buckets(parts, stream.schema, self.staging)
            tables.append(pa.Table.from_batches(batches, stream.schema))
        return tables

    def pieces(self, bucket: int, stream: Stream) -> Iterator[pa.Table]:
        """Yield the rows of one bucket as tables of about PIECE_BYTES. Raises as `read_buckets` does."""
        together: list[RunIndex] = []
        size = 0
        for number, index in self.indexes:
            if number != stream.number:
                continue
            part = self._part(bucket, index)
            together.append(part)
            size += int(part.lengths.sum())
            if size >= PIECE_BYTES:
                yield pa.Table.from_batches(read_buckets(together, stream.schema, self.staging), stream.schema)
                together = []
                size = 0
        yield pa.Table.from_batches(read_buckets(together, stream.schema, self.staging), stream.schema)

    def _part(self, bucket: int, index: RunIndex) -> RunIndex:
        """The part of a run's index that belongs to one bucket of the exchange."""
        bucket_of_listed = index.numbers.astype(np.int64) * self.buckets // index.buckets
        first, end = np.searchsorted(bucket_of_listed, [bucket, bucket + 1]).tolist()
        return index.part(first, end)


def batches_of_runs(indexes: list[RunIndex], stream: Stream, staging: Staging) -> KeyedBatches:
    """Yield the rows of some runs, combined, with their keys. Raises as `read_buckets` does."""
    table = pa.Table.from_batches(read_buckets(indexes, stream.schema, staging), stream.schema)
    table = stream.combine(table)
    for batch in table.combine_chunks().to_batches():
        yield stream.keys_of(batch), batch
