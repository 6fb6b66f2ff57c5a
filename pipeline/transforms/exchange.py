"""The exchange as a Beam transform: rows meet by ranges of their keys. See pipeline/runtime/exchange.py.

Both expansions give the same rows of each bucket to the same function, so the outputs are equal, byte for byte:

    files      batches -> run files in staging | index entries by group -> GroupByKey -> exact reads -> consume
    service    batches -> blocks by bucket                               -> GroupByKey -> decode      -> consume
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import AsSingleton, PCollection

from pipeline.beam.steps import call, generate
from pipeline.runtime.exchange import BatchSource, Shuffle, Stream
from pipeline.runtime.staging import Staging
from pipeline.transforms.exchange_steps import (
    Consume,
    Consumer,
    consume_blocks,
    consume_runs,
    empty_blocks,
    empty_groups,
    entries_as_they_are,
    entries_to_merge,
    merge_range,
    read_blocks,
    send_blocks,
    send_runs,
)

Elements = Any
"""A PCollection. Type checkers infer a wider type for Beam's `|`."""


@dataclass(frozen=True)
class Sent:
    """A stream whose batches are made for this exchange, from `elements`."""

    stream: Stream
    elements: Elements
    made_by: BatchSource


@dataclass(frozen=True)
class Written:
    """A stream whose rows are in run files already. Runs with fewer buckets than the exchange must be merged first.

    elements: rows of their RunIndex, each with the number of the input split that it comes from.
    """

    stream: Stream
    elements: Elements


@dataclass(frozen=True)
class Relayed:
    """A stream from pipeline/transforms/relay.py. `elements` are its blocks, or the entries of its runs."""

    stream: Stream
    elements: Elements


@dataclass
class Exchange(beam.PTransform):
    """Streams of rows -> the results of `consume` for each bucket.

    consume: called with the number of a bucket, a function that returns one table per stream, and the plan's details.
    The rows come in any order. If the bucket is already finished, it need not call the function.
    plan: a single `Plan`.
    in_pieces: the function yields the rows of the only stream as several tables instead, of a few MB each. For rows
    that are small, but may be too many in one bucket to fit into memory.
    """

    streams: Sequence[Sent | Written | Relayed]
    consume: Consume
    plan: AsSingleton
    shuffle: Shuffle
    staging: Staging
    in_pieces: bool = False

    def expand(self, pbegin: Any) -> PCollection:
        consumer = Consumer([source.stream for source in self.streams], self.consume, self.in_pieces)
        start = pbegin | "Start" >> beam.Create([None])
        if self.shuffle == "service":
            every_bucket = start | "Every bucket" >> _typed(generate(empty_blocks, self.plan))
            blocks = Gather(self.streams, self.plan, self.shuffle, self.staging, [every_bucket])
            return pbegin | blocks | "Consume" >> call(consume_blocks, consumer, self.plan)

        every_group = start | "Every group" >> _typed(generate(empty_groups, self.plan))
        entries = Gather(self.streams, self.plan, self.shuffle, self.staging, [every_group])
        return pbegin | entries | "Consume" >> generate(consume_runs, consumer, self.plan, self.staging)


@dataclass
class Gather(beam.PTransform):
    """Streams of rows -> (bucket, its blocks), or (group of buckets, entries of the runs that have rows in it).

    more: additional blocks or entries.
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
                made = generate(send_blocks, source.made_by, source.stream, self.plan)
            else:
                made = generate(read_blocks, source.stream, self.plan, self.staging)
            blocks.append(source.elements | f"{label} blocks" >> _typed(made))

        return blocks | "All blocks" >> beam.Flatten() | "By bucket" >> beam.GroupByKey()

    def _by_files(self) -> PCollection:
        entries = list(self.more)
        for source in self.streams:
            label = source.stream.name.capitalize()
            if isinstance(source, Relayed):
                entries.append(source.elements)
            elif isinstance(source, Sent):
                made = generate(send_runs, source.made_by, source.stream, self.plan, self.staging)
                entries.append(source.elements | f"{label} runs" >> _typed(made))
            else:
                entries += self._entries_of_written(source, label)

        return entries | "All entries" >> beam.Flatten() | "By group" >> beam.GroupByKey()

    def _entries_of_written(self, source: Written, label: str) -> list[Elements]:
        """Return the entries of runs as they are, and those of merged runs. By the plan, one of the two is empty."""
        taken = generate(entries_as_they_are, source.stream, self.plan)
        as_they_are = source.elements | f"{label} entries" >> _typed(taken)
        merged = (
            source.elements
            | f"{label} ranges" >> _typed(generate(entries_to_merge, source.stream, self.plan), key=str)
            | f"{label} by range" >> beam.GroupByKey()
            | f"Merge {label.lower()}" >> _typed(generate(merge_range, source.stream, self.plan, self.staging))
        )
        return [as_they_are, merged]


def _typed(made: beam.PTransform, key: type = int) -> beam.PTransform:
    """Declare a step's elements to be pairs with this type of key.

    Beam would otherwise infer it from the functions' bytecode, which takes longer than everything else in building a
    graph.
    """
    return made.with_output_types(tuple[key, Any])
