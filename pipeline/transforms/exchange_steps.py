"""What the steps of an exchange do on workers: the functions that pipeline/transforms/exchange.py wires."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from pipeline.runtime.blocks import NO_ROWS, WireBlock, blocks_of, pieces_of_blocks, tables_of_blocks
from pipeline.runtime.exchange import (
    BatchSource,
    Entry,
    GroupReader,
    KeyedBatches,
    Stream,
    batches_of_runs,
    buckets_of_group,
    entries_by_group,
    groups_for,
    indexes_by_name,
    write_batches,
)
from pipeline.runtime.merging import MERGED_RUNS, entries_by_range, merge_runs
from pipeline.runtime.run_files import RunIndex
from pipeline.runtime.staging import Staging

ReadRows = Callable[[], Iterable[pa.Table]]
"""Returns one table per stream with the rows of a bucket, or yields those of its only stream in pieces."""

Consume = Callable[[int, Callable[[], Any], Any], Any]


@dataclass(frozen=True)
class Plan:
    """What is decided while the job runs. A side input of every step of the exchange.

    buckets: the number of buckets. merges: whether runs are merged before they are read.
    details: passed to `BatchSource` and `consume`.
    """

    buckets: int
    merges: bool = False
    details: Any = None


@dataclass(frozen=True)
class Consumer:
    """How each bucket is consumed. in_pieces: the function gets the rows of its only stream piece by piece."""

    streams: list[Stream]
    function: Consume
    in_pieces: bool = False


def empty_blocks(_: None, plan: Plan) -> Iterator[tuple[int, WireBlock]]:
    """Yield a block without rows for each bucket, so that empty buckets are consumed too."""
    for bucket in range(plan.buckets):
        yield bucket, NO_ROWS


def send_blocks(element: Any, source: BatchSource, stream: Stream, plan: Plan) -> Iterator[tuple[int, WireBlock]]:
    """Make the batches of an element and yield their rows as blocks."""
    yield from blocks_of(source.batches_of(element, plan.details), stream, plan.buckets)
    source.made(element)


def read_blocks(
    numbered: tuple[int, list], stream: Stream, plan: Plan, staging: Staging
) -> Iterator[tuple[int, WireBlock]]:
    """Read one run, with a single request, and yield its rows as blocks."""
    index = RunIndex.from_row(numbered[1])
    yield from blocks_of(batches_of_runs([index], stream, staging), stream, plan.buckets)


def consume_blocks(grouped: tuple[int, Iterable[WireBlock]], consumer: Consumer, plan: Plan) -> Any:
    """Consume one bucket. The tables are made from its blocks only if the function asks for them."""
    bucket, blocks = grouped
    read_rows = rows_of_blocks(blocks, consumer.streams, consumer.in_pieces)
    return consumer.function(bucket, read_rows, plan.details)


def rows_of_blocks(blocks: Iterable[WireBlock], streams: list[Stream], in_pieces: bool) -> ReadRows:
    """Return a function that decodes the blocks of one bucket.

    In pieces, only a piece's rows are decoded at a time. Whether its blocks, which are compressed, are all in memory is
    up to the engine.
    """
    if not in_pieces:
        return partial(tables_of_blocks, blocks, streams)
    (stream,) = streams
    return partial(pieces_of_blocks, blocks, stream)


def empty_groups(_: None, plan: Plan) -> Iterator[tuple[int, Entry | None]]:
    """Yield (group, None) for each group, so that groups without rows are consumed too."""
    for group in range(groups_for(plan.buckets)):
        yield group, None


def send_runs(
    element: Any, source: BatchSource, stream: Stream, plan: Plan, staging: Staging
) -> Iterator[tuple[int, Entry]]:
    """Make the batches of an element, write them as run files, and yield the entries of the runs."""

    def make_batches() -> KeyedBatches:
        return source.batches_of(element, plan.details)

    for index in write_batches(source.name_of(element), make_batches, stream, plan.buckets, staging):
        yield from entries_by_group(index, stream.number, plan.buckets)
    source.made(element)


def entries_as_they_are(numbered: tuple[int, list], stream: Stream, plan: Plan) -> Iterator[tuple[int, Entry]]:
    """Yield the entries of a run that was written before the exchange, unless runs are merged."""
    if not plan.merges:
        yield from entries_by_group(RunIndex.from_row(numbered[1]), stream.number, plan.buckets)


def entries_to_merge(numbered: tuple[int, list], stream: Stream, plan: Plan) -> Iterator[tuple[str, Entry]]:
    """Yield the entries of such a run by merge group, if runs are merged."""
    if not plan.merges:
        return

    # Group neighboring splits, because most are a single run; `merge_runs` divides groups of more than MERGED_RUNS
    # runs.
    split, row = numbered
    for key_range, entry in entries_by_range(RunIndex.from_row(row), stream.number):
        yield f"{split // MERGED_RUNS:06d}-{key_range:02d}", entry


def merge_range(
    grouped: tuple[str, Iterable[Entry]], stream: Stream, plan: Plan, staging: Staging
) -> Iterator[tuple[int, Entry]]:
    """Merge the runs of one range of keys, and yield the entries of the merged runs."""
    name, entries = grouped
    for index in merge_runs(name, entries, stream, plan.buckets, staging):
        yield from entries_by_group(index, stream.number, plan.buckets)


def consume_runs(
    grouped: tuple[int, Iterable[Entry | None]], consumer: Consumer, plan: Plan, staging: Staging
) -> Iterator[Any]:
    """Consume the buckets of a group one after another, so that only one bucket's rows are in memory at a time."""
    group, entries = grouped
    reader = GroupReader(indexes_by_name(filter(None, entries)), plan.buckets, staging)
    for bucket in buckets_of_group(group, plan.buckets):
        read_rows = rows_of_runs(reader, bucket, consumer.streams, consumer.in_pieces)
        yield consumer.function(bucket, read_rows, plan.details)


def rows_of_runs(reader: GroupReader, bucket: int, streams: list[Stream], in_pieces: bool) -> ReadRows:
    """Return a function that reads one bucket from all runs."""
    if not in_pieces:
        return partial(reader.tables, bucket, streams)
    (stream,) = streams
    return partial(reader.pieces, bucket, stream)
