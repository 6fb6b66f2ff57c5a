"""The exchange as a Beam transform: rows meet by ranges of their keys. See pipeline/runtime/exchange.py.

Both expansions hand the same tables to the same function, so the outputs are equal, byte for byte:

    files      batches -> run files in staging | index entries by group -> GroupByKey -> exact reads -> consume
    service    batches -> blocks by bucket                               -> GroupByKey -> decode      -> consume
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import apache_beam as beam
import pyarrow as pa
from apache_beam.pvalue import AsSingleton, PCollection

from pipeline.runtime.blocks import NO_ROWS, WireBlock, blocks_of, tables_of_blocks
from pipeline.runtime.exchange import (
    MERGED_RUNS,
    BatchSource,
    Entry,
    GroupReader,
    KeyedBatches,
    Shuffle,
    Stream,
    batches_of_runs,
    buckets_of_group,
    entries_by_group,
    entries_by_range,
    groups_for,
    indexes_by_name,
    merge_runs,
    write_batches,
)
from pipeline.runtime.run_files import RunIndex
from pipeline.runtime.staging import Staging
from pipeline.transforms.calls import call, generate

Consume = Callable[[int, Callable[[], list[pa.Table]], Any], Any]

Elements = Any
"""A PCollection. To type checkers, Beam's `|` returns something wider."""


@dataclass(frozen=True)
class Sent:
    """A stream whose batches are made for this exchange, from `elements`."""

    stream: Stream
    elements: Elements
    made_by: BatchSource


@dataclass(frozen=True)
class Written:
    """A stream whose rows lie in run files already; `elements` are rows of their RunIndex, with the number of the
    split of the input that they come from.

    The runs are cut into at least as many buckets as the exchange has, or they are merged first.
    """

    stream: Stream
    elements: Elements


@dataclass(frozen=True)
class Relayed:
    """A stream that comes from pipeline/transforms/relay.py; `elements` are its blocks, or the entries of its runs."""

    stream: Stream
    elements: Elements


@dataclass(frozen=True)
class Plan:
    """What is decided while the job runs. A side input of every step of the exchange.

    buckets: the number of buckets. merges: whether runs are merged before they are read.
    details: for `BatchSource` and for `consume`.
    """

    buckets: int
    merges: bool = False
    details: Any = None


@dataclass
class Exchange(beam.PTransform):
    """Streams of rows -> what `consume` returns for each bucket.

    consume: called with the number of a bucket, a function that returns the table of each stream, and the plan's
        details. The rows come in any order. What is finished already need not call the function.
    plan: a single `Plan`.
    """

    streams: Sequence[Sent | Written | Relayed]
    consume: Consume
    plan: AsSingleton
    shuffle: Shuffle
    staging: Staging

    def expand(self, pbegin: Any) -> PCollection:
        consumer = _Consumer([source.stream for source in self.streams], self.consume)
        start = pbegin | "Start" >> beam.Create([None])
        if self.shuffle == "service":
            every_bucket = start | "Every bucket" >> _typed(generate(_empty_blocks, self.plan))
            blocks = Gather(self.streams, self.plan, self.shuffle, self.staging, [every_bucket])
            return pbegin | blocks | "Consume" >> call(_consume_blocks, consumer, self.plan)

        every_group = start | "Every group" >> _typed(generate(_empty_groups, self.plan))
        entries = Gather(self.streams, self.plan, self.shuffle, self.staging, [every_group])
        return pbegin | entries | "Consume" >> generate(_consume_runs, consumer, self.plan, self.staging)


@dataclass
class Gather(beam.PTransform):
    """Streams of rows -> (bucket, its blocks), or (group of buckets, entries of the runs that have rows in it).

    more: blocks or entries besides those of the streams.
    """

    streams: Sequence[Sent | Written | Relayed]
    plan: AsSingleton
    shuffle: Shuffle
    staging: Staging
    more: list[Elements]

    def expand(self, pbegin: Any) -> PCollection:
        if self.shuffle == "service":
            return self._by_service()
        return self._by_files()

    def _by_service(self) -> PCollection:
        blocks = list(self.more)
        for source in self.streams:
            label = source.stream.name.capitalize()
            if isinstance(source, Relayed):
                blocks.append(source.elements)
                continue

            if isinstance(source, Sent):
                made = generate(_send_blocks, source.made_by, source.stream, self.plan)
            else:
                made = generate(_read_blocks, source.stream, self.plan, self.staging)
            blocks.append(source.elements | f"{label} blocks" >> _typed(made))

        return blocks | "All blocks" >> beam.Flatten() | "By bucket" >> beam.GroupByKey()

    def _by_files(self) -> PCollection:
        entries = list(self.more)
        for source in self.streams:
            label = source.stream.name.capitalize()
            if isinstance(source, Relayed):
                entries.append(source.elements)
            elif isinstance(source, Sent):
                made = generate(_send_runs, source.made_by, source.stream, self.plan, self.staging)
                entries.append(source.elements | f"{label} runs" >> _typed(made))
            else:
                entries += self._entries_of_written(source, label)

        return entries | "All entries" >> beam.Flatten() | "By group" >> beam.GroupByKey()

    def _entries_of_written(self, source: Written, label: str) -> list[Elements]:
        """The entries of runs as they are, and those of merged runs. One of the two is empty, as the plan says."""
        taken = generate(_entries_as_they_are, source.stream, self.plan)
        as_they_are = source.elements | f"{label} entries" >> _typed(taken)
        merged = (
            source.elements
            | f"{label} ranges" >> _typed(generate(_entries_to_merge, source.stream, self.plan), key=str)
            | f"{label} by range" >> beam.GroupByKey()
            | f"Merge {label.lower()}" >> _typed(generate(_merge_range, source.stream, self.plan, self.staging))
        )
        return [as_they_are, merged]


def _typed(made: beam.PTransform, key: type = int) -> beam.PTransform:
    """Declare a step's elements to be pairs with that kind of key.

    Beam would otherwise infer it from the functions' bytecode, which takes longer than all else in building a graph.
    """
    return made.with_output_types(tuple[key, Any])


@dataclass(frozen=True)
class _Consumer:
    """What is done with each bucket."""

    streams: list[Stream]
    function: Consume


def _empty_blocks(_: None, plan: Plan) -> Iterator[tuple[int, WireBlock]]:
    """Yield a block for each bucket, so that one without rows is consumed as well."""
    for bucket in range(plan.buckets):
        yield bucket, NO_ROWS


def _send_blocks(element: Any, source: BatchSource, stream: Stream, plan: Plan) -> Iterator[tuple[int, WireBlock]]:
    yield from blocks_of(source.batches_of(element, plan.details), stream, plan.buckets)
    source.made(element)


def _read_blocks(
    numbered: tuple[int, list], stream: Stream, plan: Plan, staging: Staging
) -> Iterator[tuple[int, WireBlock]]:
    """Read one run, with a single request, and yield its rows as blocks."""
    index = RunIndex.from_row(numbered[1])
    yield from blocks_of(batches_of_runs([index], stream, staging), stream, plan.buckets)


def _consume_blocks(grouped: tuple[int, Iterable[WireBlock]], consumer: _Consumer, plan: Plan) -> Any:
    bucket, blocks = grouped
    read_tables = partial(tables_of_blocks, blocks, consumer.streams)
    return consumer.function(bucket, read_tables, plan.details)


def _empty_groups(_: None, plan: Plan) -> Iterator[tuple[int, Entry | None]]:
    for group in range(groups_for(plan.buckets)):
        yield group, None


def _send_runs(
    element: Any, source: BatchSource, stream: Stream, plan: Plan, staging: Staging
) -> Iterator[tuple[int, Entry]]:
    def make_batches() -> KeyedBatches:
        return source.batches_of(element, plan.details)

    for index in write_batches(source.name_of(element), make_batches, stream, plan.buckets, staging):
        yield from entries_by_group(index, stream.number, plan.buckets)
    source.made(element)


def _entries_as_they_are(numbered: tuple[int, list], stream: Stream, plan: Plan) -> Iterator[tuple[int, Entry]]:
    if not plan.merges:
        yield from entries_by_group(RunIndex.from_row(numbered[1]), stream.number, plan.buckets)


def _entries_to_merge(numbered: tuple[int, list], stream: Stream, plan: Plan) -> Iterator[tuple[str, Entry]]:
    if not plan.merges:
        return

    # Neighboring splits together, because most are a single run; `merge_runs` cuts what is more than MERGED_RUNS runs.
    split, row = numbered
    for key_range, entry in entries_by_range(RunIndex.from_row(row), stream.number):
        yield f"{split // MERGED_RUNS:06d}-{key_range:02d}", entry


def _merge_range(
    grouped: tuple[str, Iterable[Entry]], stream: Stream, plan: Plan, staging: Staging
) -> Iterator[tuple[int, Entry]]:
    name, entries = grouped
    for index in merge_runs(name, entries, stream, plan.buckets, staging):
        yield from entries_by_group(index, stream.number, plan.buckets)


def _consume_runs(
    grouped: tuple[int, Iterable[Entry | None]], consumer: _Consumer, plan: Plan, staging: Staging
) -> Iterator[Any]:
    """Consume the buckets of a group one after another, so that one bucket's rows are in memory at a time."""
    group, entries = grouped
    reader = GroupReader(indexes_by_name(filter(None, entries)), plan.buckets, staging)
    for bucket in buckets_of_group(group, plan.buckets):
        read_tables = partial(reader.tables, bucket, consumer.streams)
        yield consumer.function(bucket, read_tables, plan.details)
