"""What an exchange does on workers: rows go from the workers that make them to those that need them.

A worker makes *lots*: record batches with a 64-bit key for each row. A *bucket* is one of N equal ranges of keys, and
one worker gets all rows of a bucket, from all workers. There are two ways to get there:

    files     Each worker writes its lots as run files into staging, and only their indexes go through Beam, to the
              readers of *groups* of neighboring buckets. A reader fetches exact ranges of bytes. For local runners,
              which keep every element in memory.
    service   Each worker cuts its lots into blocks of at most BLOCK_BYTES, and the engine's own shuffle brings all
              blocks of a bucket together. For engines whose shuffle spills to disk.

A bucket's rows arrive in any order in both, so what is done with them must not depend on it. Rows of different kinds
(documents, and ids of documents to drop) can meet in one exchange, each as a *stream*.

When there are many runs, each reader would fetch many small ranges. Then runs are *merged* once: MERGED_RUNS neighbors
become one, for each of MERGE_RANGES ranges of keys.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from pipeline.runtime.run_files import Keys, RunIndex, bucket_of, decode_blocks, encode_blocks, encode_run, read_buckets
from pipeline.runtime.staging import Staging

Shuffle = Literal["files", "merged", "service"]

BLOCK_BYTES = 1 << 20
"""Most bytes of a block in the service's shuffle. Flink refuses records of 10 MB."""

PIECE_BYTES = 16 << 20
"""Bytes, compressed, of the rows of a bucket that are read at a time by steps that take them in pieces."""

MAX_GROUPS = 256
"""Groups of buckets: as many tasks can read at once, and each run's index is cut into as many elements."""

MERGED_RUNS = 64
MERGE_RANGES = 64

Lot = tuple[Keys, pa.RecordBatch]
"""(rows,) uint64 keys, and the rows."""

Lots = Iterable[Lot]

Block = tuple[int, int, int, bytes, bytes]
"""(stream, part, parts, name, data): a block of rows, or one of several parts of a block that is too large.

`name` is the same in all parts of one block, and empty for a whole block. A block without data holds no rows.
"""


def no_keys(rows: pa.RecordBatch) -> Keys:
    """The keys of a stream whose lots come with theirs."""
    raise NotImplementedError("this stream's rows have no function for their keys")


def _nothing(_: Any) -> None:
    """What most streams do once the lots of an element are made."""


@dataclass(frozen=True)
class Maker:
    """How the lots of a stream are made.

    name_of: the name of an element, distinct within the stream.
    lots_of: called with an element and the plan's details.
    made: called with an element once its lots are made, or were found in staging.
    """

    name_of: Callable[[Any], str]
    lots_of: Callable[[Any, Any], Lots]
    made: Callable[[Any], None] = _nothing


@dataclass(frozen=True)
class Stream:
    """One kind of rows in an exchange.

    number: the place of its table among those that a reader gets.
    name: how the names of its files in staging begin.
    keys_of: returns the keys of rows; needed for runs that were written before the exchange, as those of `shard` are.
    """

    number: int
    name: str
    schema: pa.Schema
    keys_of: Callable[[pa.RecordBatch], Keys] = no_keys


# How lots leave a worker.


def write_lots(name: str, lots: Callable[[], Lots], stream: Stream, buckets: int, staging: Staging) -> list[RunIndex]:
    """Write each lot as a run file, and return the indexes. What an earlier attempt finished is not made again.

    `name` tells this worker's element from all others of the stream. Staging without the report means that `lots`, a
    function, is called.
    """
    report_name = f"{stream.name}-{name}"
    finished = staging.report(report_name)
    if finished is not None:
        return [RunIndex.from_row(row) for row in finished["runs"]]

    indexes = []
    for number, (keys, rows) in enumerate(lots()):
        file_name = f"{report_name}-{number:04d}.run"
        data, index = encode_run(rows, keys, buckets, file_name)
        staging.put(file_name, data)
        indexes.append(index)

    staging.keep_report(report_name, {"runs": [index.to_row() for index in indexes]})
    return indexes


def blocks_of(lots: Lots, stream: Stream, buckets: int) -> Iterator[tuple[int, Block]]:
    """Yield (bucket, block) for all rows of the lots, in blocks of at most BLOCK_BYTES."""
    for keys, rows in lots:
        order = np.argsort(keys, kind="stable")
        in_order = rows.take(pa.array(order))
        numbers, starts = np.unique(bucket_of(keys[order], buckets), return_index=True)
        ends = np.append(starts, len(order))[1:]

        for number, start, end in zip(numbers.tolist(), starts.tolist(), ends.tolist(), strict=True):
            for data in _small_blocks(in_order.slice(start, end - start)):
                for block in _parts_of(data, stream.number):
                    yield number, block


def _small_blocks(rows: pa.RecordBatch) -> Iterator[bytes]:
    """Cut rows in halves until each block is small enough, or is a single row."""
    if rows.nbytes > BLOCK_BYTES and rows.num_rows > 1:
        half = rows.num_rows // 2
        yield from _small_blocks(rows.slice(0, half))
        yield from _small_blocks(rows.slice(half))
    else:
        yield bytes(encode_blocks([rows], rows.schema)[0])


def _parts_of(data: bytes, stream: int) -> Iterator[Block]:
    """Cut a block of one very long document; nearly every block is whole."""
    if len(data) <= BLOCK_BYTES:
        yield (stream, 0, 1, b"", data)
        return

    name = hashlib.blake2b(data, digest_size=16).digest()
    parts = -(-len(data) // BLOCK_BYTES)
    for part in range(parts):
        yield (stream, part, parts, name, data[part * BLOCK_BYTES : (part + 1) * BLOCK_BYTES])


# How the rows of a bucket come together: service.


def tables_of_blocks(blocks: Iterable[Block], streams: list[Stream]) -> list[pa.Table]:
    """Return the table of each stream from the blocks of one bucket, which come in any order."""
    whole: dict[int, list[bytes]] = defaultdict(list)
    cut: dict[tuple[int, bytes], dict[int, bytes]] = defaultdict(dict)
    copies: dict[tuple[int, bytes], int] = defaultdict(int)

    for stream, part, parts, name, data in blocks:
        if parts == 1:
            whole[stream].append(data)
            continue

        # Two equal documents make equal parts, so part 0 also counts how often the block occurs.
        cut[stream, name][part] = data
        if part == 0:
            copies[stream, name] += 1

    for (stream, name), part_of_number in cut.items():
        joined = b"".join(part_of_number[part] for part in sorted(part_of_number))
        whole[stream] += [joined] * copies[stream, name]

    tables = []
    for stream in streams:
        batches = [batch for data in whole[stream.number] for batch in decode_blocks(data, stream.schema)]
        tables.append(pa.Table.from_batches(batches, stream.schema))
    return tables


def pieces_of_blocks(blocks: Iterable[Block], stream: Stream) -> Iterator[pa.Table]:
    """Yield the rows of a bucket's only stream as tables of about PIECE_BYTES. Rows are small, so no block is cut."""
    together: list[Block] = []
    size = 0
    for block in blocks:
        together.append(block)
        size += len(block[-1])
        if size >= PIECE_BYTES:
            yield tables_of_blocks(together, [stream])[0]
            together = []
            size = 0
    yield tables_of_blocks(together, [stream])[0]


# How the rows of a bucket come together: files.

Entry = tuple[int, list]
"""(stream, a row of RunIndex): where the rows of one run are that belong to one group of buckets."""


def groups_for(buckets: int) -> int:
    """Return the number of groups: neighboring buckets that one worker reads one after another."""
    return min(buckets, MAX_GROUPS)


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
    yield from _cut_entries(index, group_of_listed, stream)


def entries_by_range(index: RunIndex, stream: int) -> Iterator[tuple[int, Entry]]:
    """Cut the index of a run into parts for each range of keys that is merged, and yield (range, entry)."""
    range_of_listed = index.numbers.astype(np.int64) * MERGE_RANGES // index.buckets
    yield from _cut_entries(index, range_of_listed, stream)


def _cut_entries(index: RunIndex, key_of_listed: np.ndarray, stream: int) -> Iterator[tuple[int, Entry]]:
    keys, starts = np.unique(key_of_listed, return_index=True)
    ends = np.append(starts, len(key_of_listed))[1:]
    for key, start, end in zip(keys.tolist(), starts.tolist(), ends.tolist(), strict=True):
        yield key, (stream, index.part(start, end).to_row())


@dataclass(frozen=True)
class GroupReader:
    """Reads the buckets of one group, out of all runs.

    entries: (stream, index) of each run that has rows in the group. buckets: of the exchange.
    """

    entries: list[tuple[int, RunIndex]]
    buckets: int
    staging: Staging

    def tables(self, bucket: int, streams: list[Stream]) -> list[pa.Table]:
        """Return the table of each stream with the rows of one bucket. Raises as `read_buckets` does."""
        tables = []
        for stream in streams:
            parts = [self._part(bucket, index) for number, index in self.entries if number == stream.number]
            batches = read_buckets(parts, stream.schema, self.staging)
            tables.append(pa.Table.from_batches(batches, stream.schema))
        return tables

    def pieces(self, bucket: int, stream: Stream) -> Iterator[pa.Table]:
        """Yield the rows of one bucket as tables of about PIECE_BYTES. Raises as `read_buckets` does."""
        together: list[RunIndex] = []
        size = 0
        for number, index in self.entries:
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


def lots_of_runs(indexes: list[RunIndex], stream: Stream, staging: Staging) -> Lots:
    """Yield the rows of some runs with their keys. Raises as `read_buckets` does."""
    table = pa.Table.from_batches(read_buckets(indexes, stream.schema, staging), stream.schema)
    for batch in table.combine_chunks().to_batches():
        yield stream.keys_of(batch), batch


def merge_runs(name: str, entries: list[Entry], stream: Stream, buckets: int, staging: Staging) -> list[RunIndex]:
    """Write one run with the rows of all entries, cut into the buckets of the exchange, and return its index."""
    indexes = [RunIndex.from_row(row) for _, row in entries]
    return write_lots(f"merged-{name}", lambda: lots_of_runs(indexes, stream, staging), stream, buckets, staging)
