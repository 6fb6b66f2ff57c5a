"""How rows travel in an exchange: cut into blocks where they are made, and read again where they are needed.

A worker makes *keyed batches*: record batches with a 64-bit key for each row. A *bucket* is one of N equal ranges of
keys, and one worker gets all rows of a bucket, from all workers. A *block* has rows of one stream for one *group* of
neighboring buckets. Blocks come together in one of these ways:

    files     Each worker writes its batches as run files into staging. A block is a reference: the part of a run's
              index that belongs to the group. The reader of a group fetches exact ranges of bytes, bucket by bucket.
              For local runners, which keep every element in memory.
    merged    The same, and runs that were written before the exchange are merged first, as described below.
    service   A block is bytes, at most BLOCK_BYTES, and each bucket is a group. The engine's own shuffle brings all
              blocks of a bucket together. For engines whose shuffle spills to disk.

They deliver a bucket's rows in different orders, so processing must not depend on the order. Rows of different kinds
(documents, and ids of documents to drop) can meet in one exchange, each kind as a *stream*.

With many runs, each reader would fetch many small ranges. Then runs of neighboring sources are *merged* once: up to
MERGED_RUNS become one, for each of MERGE_RANGES ranges of keys. `Plan.merges` asks for that with `files`, too.

A run file's bytes must depend on its rows alone, because an engine may make the file twice: a worker that was given up
may still write its file after its twin has reported the checksums. So references are sorted by name wherever runs are
read.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from pipeline.commit.staging import Staging
from pipeline.exchange.runs import (
    Keys,
    RunIndex,
    decode_batches,
    encode_batches,
    encode_run,
    read_buckets,
    rows_by_bucket,
)

Shuffle = Literal["files", "merged", "service"]

GROUPS = 256
"""Number of groups of buckets (fewer if there are fewer buckets), and so of tasks that can read at the same time. Each
run's index is cut into one element per group, and elements cost Beam time and memory."""

GROUP_BUCKETS = 8
"""Maximum buckets in a group: a group is one element, and takes as long as writing that many shards. So there are more
than GROUPS groups from 2,049 buckets on. With 16,384 shards and 60,000 runs (2,048 groups) the indexes are 1.9 million
elements, because runs are merged first; the merge itself takes 3.8 million."""

BLOCK_BYTES = 1 << 20
"""Maximum bytes of a block in the engine's shuffle. Flink rejects records of 10 MB."""

PIECE_BYTES = 16 << 20
"""Compressed bytes of a bucket that are read at a time by a step that processes rows in pieces."""

MERGED_SOURCES = 64
"""Neighboring sources (input splits; for held-out documents, text shards) whose runs are merged by one worker."""

MERGED_RUNS = 64
"""Maximum runs that are merged into one. One of MERGE_RANGES key ranges of each is in memory at the same time."""

MERGE_RANGES = 64

MERGED_BYTES = 64 << 20
"""Maximum stored bytes that are merged into one run, unless a single run has more: most rows of a run may be in one
range."""


KeyedBatch = tuple[Keys, pa.RecordBatch]
"""(rows,) uint64 keys, and the rows."""

Addressed = tuple[int, KeyedBatch]
"""(number of the output in the list of outputs, batch)."""

Block = tuple[int, Any]
"""(number of the stream, content): a reference, as a row of RunIndex; bytes; or one part of bytes above BLOCK_BYTES, as
(name of the whole, number of the part, bytes). Beam encodes plain tuples in a sixth of the time that others take."""


@dataclass(frozen=True)
class Stream:
    """One kind of rows in an exchange.

    number: position of its table among those that a reader gets.
    name: prefix of the names of its files in staging.
    keys_of: returns the keys of rows; needed for runs that were written before the exchange.
    combine: returns fewer, equivalent rows, as MapReduce's combiner does. Called when runs are merged.
    """

    number: int
    name: str
    schema: pa.Schema
    keys_of: Callable[[pa.RecordBatch], Keys] | None = None
    combine: Callable[[pa.Table], pa.Table] | None = None


Outputs = list[tuple[Stream, int]]
"""The streams that batches go to, and the number of buckets that each of their exchanges has."""


@dataclass(frozen=True)
class Way:
    """How rows travel, and the staging that run files are in."""

    shuffle: Shuffle
    staging: Staging

    @property
    def by_service(self) -> bool:
        """Whether rows travel as bytes through the engine's shuffle, instead of in run files."""
        return self.shuffle == "service"

    def groups(self, buckets: int) -> int:
        return buckets if self.by_service else groups_for(buckets)


def groups_for(buckets: int) -> int:
    """Return the number of groups when rows travel in files."""
    small_enough = -(-buckets // GROUP_BUCKETS)
    return min(buckets, max(GROUPS, small_enough))


def buckets_of_group(group: int, buckets: int) -> range:
    """Return the buckets of a group when rows travel in files."""
    groups = groups_for(buckets)
    first = -(-group * buckets // groups)
    end = -(-(group + 1) * buckets // groups)
    return range(first, end)


# How batches leave a worker.


def send(
    name: str, make_batches: Callable[[], Iterable[Addressed]], outputs: Outputs, way: Way
) -> Iterator[tuple[int, int, Block]]:
    """Yield (number of the output, group, block) for all rows of the batches.

    `name` identifies the element that they are made from within the job. In files, the runs of an earlier attempt are
    taken if it finished the element, and `make_batches` is not called.
    """
    if way.by_service:
        yield from _send_bytes(name, make_batches(), outputs)
        return

    for number, index in keep_runs(name, make_batches, outputs, way.staging):
        stream, buckets = outputs[number]
        for group, block in references(index, stream, buckets):
            yield number, group, block


def keep_runs(
    name: str, make_batches: Callable[[], Iterable[Addressed]], outputs: Outputs, staging: Staging
) -> list[tuple[int, RunIndex]]:
    """Write each batch as a run file, and return (number of the output, index) for each.

    The runs of an earlier attempt are taken if it finished the element that `name` identifies.
    """
    finished = staging.report(name)
    if finished is not None:
        return [(number, RunIndex.from_row(row)) for number, row in finished["runs"]]

    indexes = []
    for count, (number, (keys, rows)) in enumerate(make_batches()):
        if rows.num_rows == 0:
            continue
        _, buckets = outputs[number]
        data, index = encode_run(rows, keys, buckets, f"{name}-{count:04d}.run")
        staging.put(index.name, data)
        indexes.append((number, index))

    staging.keep_report(name, {"runs": [[number, index.to_row()] for number, index in indexes]})
    return indexes


def references(index: RunIndex, stream: Stream, buckets: int) -> Iterator[tuple[int, Block]]:
    """Yield (group, block) for a run, which must have as many buckets as the exchange or a multiple of that number."""
    group_of_listed = index.buckets_among(buckets) * groups_for(buckets) // buckets
    yield from _cut(index, group_of_listed, stream)


def _cut(index: RunIndex, number_of_listed: np.ndarray, stream: Stream) -> Iterator[tuple[int, Block]]:
    """Cut a run wherever `number_of_listed` changes: one number for each listed bucket, in ascending order."""
    numbers, starts = np.unique(number_of_listed, return_index=True)
    bounds = [*starts.tolist(), len(number_of_listed)]
    for number, (start, end) in zip(numbers.tolist(), itertools.pairwise(bounds), strict=True):
        yield number, (stream.number, index.part(start, end).to_row())


def _send_bytes(name: str, batches: Iterable[Addressed], outputs: Outputs) -> Iterator[tuple[int, int, Block]]:
    wholes = itertools.count()  # of blocks that are sent in parts
    for number, (keys, rows) in batches:
        stream, buckets = outputs[number]
        for bucket, bucket_rows in rows_by_bucket(rows, keys, buckets):
            for data in _small_blocks(bucket_rows):
                if len(data) <= BLOCK_BYTES:
                    yield number, bucket, (stream.number, data)
                    continue

                whole = f"{name}-{next(wholes)}"
                for part, start in enumerate(range(0, len(data), BLOCK_BYTES)):
                    yield number, bucket, (stream.number, (whole, part, data[start : start + BLOCK_BYTES]))


def _small_blocks(rows: pa.RecordBatch) -> Iterator[bytes]:
    """Halve the rows until each block is small enough or is a single row."""
    if rows.nbytes > BLOCK_BYTES and rows.num_rows > 1:
        half = rows.num_rows // 2
        yield from _small_blocks(rows.slice(0, half))
        yield from _small_blocks(rows.slice(half))
    else:
        yield bytes(encode_batches([rows], rows.schema)[0])


# How the rows of a bucket come together.

Content = tuple[int, RunIndex | bytes]
"""(number of the stream, a reference or bytes) of a block of one bucket."""

ReadRows = Callable[[], Iterable[pa.Table]]
"""Returns one table per stream with the rows of a bucket, or yields those of its only stream in pieces."""


def indexes_by_name(blocks: Iterable[Block | None]) -> list[tuple[int, RunIndex]]:
    """Return (number of the stream, index) for references that come in any order, sorted by the names of their runs.

    Here and in `whole_blocks`, None stands for a group that may have no block.
    """
    indexes = [(stream, RunIndex.from_row(row)) for stream, row in filter(None, blocks)]
    return sorted(indexes, key=lambda numbered: numbered[1].name)


def parts_of_runs(indexes: list[tuple[int, RunIndex]], bucket: int, buckets: int) -> Iterator[Content]:
    """Yield the parts of the indexes that belong to one bucket."""
    for stream, index in indexes:
        first, end = np.searchsorted(index.buckets_among(buckets), [bucket, bucket + 1]).tolist()
        if first < end:
            yield stream, index.part(first, end)


def whole_blocks(blocks: Iterable[Block | None]) -> Iterator[Content]:
    """Yield the bytes of blocks, those that were sent in parts last."""
    parts_of: dict[tuple[int, str], dict[int, bytes]] = defaultdict(dict)
    for stream, content in filter(None, blocks):
        if isinstance(content, tuple):
            whole, part, data = content
            parts_of[stream, whole][part] = data
        else:
            yield stream, content

    for (stream, _), parts in parts_of.items():
        yield stream, b"".join(parts[part] for part in sorted(parts))


def read_tables(contents: Callable[[], Iterator[Content]], streams: list[Stream], staging: Staging) -> list[pa.Table]:
    """Return one table per stream with the rows of a bucket. Raises as `read_buckets` does."""
    found = defaultdict(list)
    for stream, content in contents():
        found[stream].append(content)
    return [_table_of(found[stream.number], stream, staging) for stream in streams]


def read_pieces(contents: Callable[[], Iterator[Content]], stream: Stream, staging: Staging) -> Iterator[pa.Table]:
    """Yield the rows of a bucket's only stream as tables of about PIECE_BYTES. Raises as `read_buckets` does.

    Only a piece's rows are decoded at a time. Whether the bytes of all blocks are in memory is up to the engine.
    """
    together = []
    size = 0
    for _, content in contents():
        together.append(content)
        size += content.size() if isinstance(content, RunIndex) else len(content)
        if size >= PIECE_BYTES:
            yield _table_of(together, stream, staging)
            together = []
            size = 0
    yield _table_of(together, stream, staging)


def _table_of(contents: list[RunIndex | bytes], stream: Stream, staging: Staging) -> pa.Table:
    batches = read_buckets([content for content in contents if isinstance(content, RunIndex)], stream.schema, staging)
    for content in contents:
        if not isinstance(content, RunIndex):
            batches += decode_batches(content, stream.schema)
    return pa.Table.from_batches(batches, stream.schema)


# Runs that were written before the exchange.


def rows_of_runs(indexes: list[RunIndex], stream: Stream, staging: Staging) -> Iterator[Addressed]:
    """Yield the rows of some runs, combined, with their keys, for a single output. Raises as `read_buckets` does."""
    assert stream.keys_of is not None, "this stream's rows have no function for their keys"
    table = _table_of(list(indexes), stream, staging)
    if stream.combine is not None:
        table = stream.combine(table)
    for batch in table.combine_chunks().to_batches():
        yield 0, (stream.keys_of(batch), batch)


def references_to_merge(source: int, index: RunIndex, stream: Stream) -> Iterator[tuple[str, Block]]:
    """Yield (name of a merge, block) for each range of keys of a run.

    source: number of what the run was made from. Neighbors are merged together, because most have a single run.
    """
    for key_range, block in _cut(index, index.buckets_among(MERGE_RANGES), stream):
        yield f"{source // MERGED_SOURCES:06d}-{key_range:02d}", block


def merge_runs(
    name: str, blocks: Iterable[Block], stream: Stream, buckets: int, way: Way
) -> Iterator[tuple[int, Block]]:
    """Write a run with the rows of every MERGED_RUNS references, cut into the exchange's buckets.

    Memory does not grow with the number of references, which is high if a large compressed file is a single split.
    """
    indexes = [index for _, index in indexes_by_name(blocks)]

    def make_batches() -> Iterator[Addressed]:
        for together in _merged_together(indexes):
            yield from rows_of_runs(together, stream, way.staging)

    for _, group, block in send(f"{stream.name}-merged-{name}", make_batches, [(stream, buckets)], way):
        yield group, block


def _merged_together(indexes: list[RunIndex]) -> Iterator[list[RunIndex]]:
    """Yield groups of neighboring runs that become one: each at most MERGED_RUNS runs and MERGED_BYTES."""
    together: list[RunIndex] = []
    bytes_together = 0

    for index in indexes:
        if together and (len(together) == MERGED_RUNS or bytes_together + index.size() > MERGED_BYTES):
            yield together
            together = []
            bytes_together = 0
        together.append(index)
        bytes_together += index.size()

    if together:
        yield together
