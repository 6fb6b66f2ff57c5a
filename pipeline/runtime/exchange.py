"""The worker side of an exchange, which moves rows from the workers that make them to those that need them.

A worker makes *keyed batches*: record batches with a 64-bit key for each row. A *bucket* is one of N equal ranges of
keys, and one worker gets all rows of a bucket, from all workers. There are two ways to bring them together:

    files     Each worker writes its batches as run files into staging, and only their indexes go through Beam, to the
              readers of *groups* of neighboring buckets. A reader fetches exact ranges of bytes. For local runners,
              which keep every element in memory.
    service   Each worker cuts its batches into small blocks (blocks.py), and the engine's own shuffle brings all blocks
              of a bucket together. For engines whose shuffle spills to disk.

The two deliver a bucket's rows in different orders, so processing must not depend on the order. Rows of different kinds
(documents, and ids of documents to drop) can meet in one exchange, each kind as a *stream*.

With many runs, each reader would fetch many small ranges. Then runs are *merged* once: MERGED_RUNS neighbors become
one, for each of MERGE_RANGES ranges of keys (merging.py).

A run file's bytes must depend on its rows alone, because an engine may make the file twice: a worker that was given up
may still write its file after its twin has reported the checksums. So indexes are sorted by name wherever runs are
read.
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
"""Number of groups of buckets (fewer if there are fewer buckets), and so of tasks that can read at the same time. Each
run's index is cut into one element per group, and elements cost Beam time and memory."""

GROUP_BUCKETS = 8
"""Maximum buckets in a group: a group is one element, and takes as long as writing that many shards. So there are more
than GROUPS groups from 2,049 buckets on. With 16,384 shards and 60,000 runs (2,048 groups) the indexes are 1.9 million
elements, because runs are merged first; the merge itself takes 3.8 million."""

PIECE_BYTES = 16 << 20
"""Compressed bytes of a bucket that are read at a time by a step that processes rows in pieces."""


KeyedBatch = tuple[Keys, pa.RecordBatch]
"""(rows,) uint64 keys, and the rows."""

KeyedBatches = Iterable[KeyedBatch]


def no_keys(rows: pa.RecordBatch) -> Keys:
    """Default of `Stream.keys_of`, for streams whose batches come with their keys."""
    raise NotImplementedError("this stream's rows have no function for their keys")


def _nothing(_: Any) -> None:
    """Default of `BatchSource.made`."""


def all_rows(rows: pa.Table) -> pa.Table:
    """Default of `Stream.combine`: return all rows."""
    return rows


@dataclass(frozen=True)
class BatchSource:
    """How the batches of a stream are made from elements.

    name_of: returns the name of an element, unique within the stream.
    batches_of: called with an element and the plan's details.
    made: called with an element once its batches are made, or were found in staging.
    """

    name_of: Callable[[Any], str]
    batches_of: Callable[[Any, Any], KeyedBatches]
    made: Callable[[Any], None] = _nothing


@dataclass(frozen=True)
class Stream:
    """One kind of rows in an exchange.

    number: position of its table among those that a reader gets.
    name: prefix of the names of its files in staging.
    keys_of: returns the keys of rows; needed for runs that were written before the exchange, as those of `shard` are.
    combine: returns fewer, equivalent rows, as MapReduce's combiner does. Called when runs are merged.
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
    """Write each batch as a run file, and return the indexes; those of an earlier attempt if it finished the element.

    `name` identifies the element within the stream.
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
    """Split a run's index into one part per group, and yield (group, entry).

    The run must have as many buckets as the exchange, or a multiple of that number.
    """
    groups = groups_for(buckets)
    bucket_of_listed = index.numbers.astype(np.int64) * buckets // index.buckets
    group_of_listed = bucket_of_listed * groups // buckets
    yield from cut_entries(index, group_of_listed, stream)


def cut_entries(index: RunIndex, key_of_listed: np.ndarray, stream: int) -> Iterator[tuple[int, Entry]]:
    """Split a run's index wherever `key_of_listed` changes: one number for each listed bucket, in ascending order."""
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
    """Reads the buckets of one group from all runs.

    indexes: (stream, index) of each run that has rows in the group, sorted by name.
    buckets: number of buckets in the exchange.
    """

    indexes: list[tuple[int, RunIndex]]
    buckets: int
    staging: Staging

    def tables(self, bucket: int, streams: list[Stream]) -> list[pa.Table]:
        """Return one table per stream with the rows of one bucket. Raises as `read_buckets` does."""
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
        """Return the part of a run's index that belongs to one bucket of the exchange."""
        bucket_of_listed = index.numbers.astype(np.int64) * self.buckets // index.buckets
        first, end = np.searchsorted(bucket_of_listed, [bucket, bucket + 1]).tolist()
        return index.part(first, end)


def batches_of_runs(indexes: list[RunIndex], stream: Stream, staging: Staging) -> KeyedBatches:
    """Yield the rows of some runs, combined, with their keys. Raises as `read_buckets` does."""
    table = pa.Table.from_batches(read_buckets(indexes, stream.schema, staging), stream.schema)
    table = stream.combine(table)
    for batch in table.combine_chunks().to_batches():
        yield stream.keys_of(batch), batch
