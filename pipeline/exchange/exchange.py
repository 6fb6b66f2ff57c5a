"""The exchange as a Beam transform: rows meet by ranges of their keys. blocks.py defines bucket, group and block.

    files      run files in staging -> references by group -> GroupByKey -> exact reads -> each bucket
    service    run files in staging -> blocks by bucket    -> GroupByKey -> decode      -> each bucket

On their way to `merged`, run files are merged (blocks.py). What a step makes for the next exchange (`relay`) is written
as run files for that, except by `service`.

What a step makes of a bucket's rows is either the result of the exchange, or rows for the next exchanges (`relay`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import AsSingleton, TaggedOutput

from pipeline.beam.steps import generate
from pipeline.commit.reports import Report
from pipeline.exchange.blocks import (
    Block,
    Content,
    ReadRows,
    Stream,
    Way,
    buckets_of_group,
    indexes_by_name,
    merge_runs,
    parts_of_runs,
    read_pieces,
    read_tables,
    references,
    references_to_merge,
    rows_of_runs,
    send,
    whole_blocks,
)
from pipeline.exchange.runs import RunIndex

Elements = Any
"""A PCollection. Type checkers infer a wider type for Beam's `|`."""


@dataclass(frozen=True)
class Plan:
    """What is decided about an exchange while the job runs.

    buckets: the number of buckets. merges: whether runs are merged before they are read, because there are many.
    details: passed to the function that consumes buckets.
    """

    buckets: int
    merges: bool = False
    details: Any = None


Plans = dict[str, Plan]
"""The plans of exchanges by name. They share one side input, since each one delays a step's start."""


@dataclass(frozen=True)
class Written:
    """A stream whose rows are in run files already. Runs with fewer buckets than the exchange must be merged first.

    elements: (number of what a run was made from, such as a split; its index as `RunIndex.to_row` returns it).
    """

    stream: Stream
    elements: Elements


def numbered_index(report: Report, number: str, index: str) -> Iterator[tuple[int, list]]:
    """Yield an element of `Written` from a report: the values of two of its fields, unless the index is None."""
    if report[index] is not None:
        yield report[number], report[index]


@dataclass(frozen=True)
class Relayed:
    """A stream that another exchange's function made. `elements` are its blocks."""

    stream: Stream
    elements: Elements


Source = Written | Relayed


@dataclass(frozen=True)
class Output:
    """A stream that a relay sends, and the name of the plan of its target exchange."""

    stream: Stream
    plan: str


@dataclass(frozen=True)
class Step:
    """What is done with each bucket.

    name: unique within the job.
    make: called with the number of a bucket, a function that returns one table per stream, and the plan's details. The
    rows come in any order. Returns a result; with outputs, it yields batches, each with the number of its output.
    plan: the name of the exchange's plan.
    outputs: the streams of rows for other exchanges. Buckets without rows may be left out then.
    in_pieces: the function yields the rows of the only stream as several tables instead, of a few MB each. For rows
    that are small, but may be too many in one bucket to fit into memory.
    """

    name: str
    make: Callable[[int, Callable[[], Any], Any], Any]
    plan: str
    outputs: Sequence[Output] = ()
    in_pieces: bool = False


@dataclass
class Exchange(beam.PTransform):
    """Streams of rows -> what a step makes of each bucket: its results, or the blocks of each output by its number.

    Without outputs, buckets without rows have a result, too. If a bucket is already finished, the step need not call
    the function for its rows. plans: a single `Plans`.
    """

    sources: Sequence[Source]
    step: Step
    plans: AsSingleton
    way: Way

    def expand(self, pbegin: Any) -> Any:
        worker = _Worker(self.step, [source.stream for source in self.sources], self.way)
        blocks = [blocks for source in self.sources for blocks in self._blocks_of(source, worker)]
        if not self.step.outputs:
            start = pbegin | "Start" >> beam.Create([None])
            blocks.append(start | "Every group" >> _typed(generate(worker.every_group, self.plans)))

        grouped = blocks | "All blocks" >> beam.Flatten() | "By group" >> beam.GroupByKey()
        if not self.step.outputs:
            return grouped | "Consume" >> generate(worker.consume, self.plans)

        tags = [str(number) for number in range(len(self.step.outputs))]
        made = grouped | "Make rows" >> _typed(generate(worker.make_rows, self.plans)).with_outputs(*tags)
        return {tag: made[tag] for tag in tags}

    def _blocks_of(self, source: Source, worker: _Worker) -> list[Elements]:
        """Return the blocks of a source. Runs are referred to as they are or merged: the plan decides which."""
        if isinstance(source, Relayed):
            return [source.elements]

        stream = source.stream
        label = stream.name.capitalize()
        as_they_are = source.elements | f"{label} blocks" >> _typed(generate(worker.send_written, self.plans, stream))
        if self.way.by_service:
            return [as_they_are]
        merged = (
            source.elements
            | f"{label} ranges" >> _typed(generate(worker.send_to_merge, self.plans, stream), key=str)
            | f"{label} by range" >> beam.GroupByKey()
            | f"Merge {label.lower()}" >> _typed(generate(worker.merge, self.plans, stream))
        )
        return [as_they_are, merged]


def relay(sources: Sequence[Source], step: Step, plans: AsSingleton, way: Way) -> list[Relayed]:
    """Return the streams that a step makes from the rows of each bucket, one per output."""
    pbegin = sources[0].elements.pipeline
    made = pbegin | step.name.capitalize() >> Exchange(sources, step, plans, way)
    return [Relayed(output.stream, made[str(number)]) for number, output in enumerate(step.outputs)]


def _typed(made: beam.PTransform, key: type = int) -> Any:
    """Declare a step's elements to be pairs with this type of key.

    Beam would otherwise infer it from the functions' bytecode, which takes longer than everything else in building a
    graph.
    """
    return made.with_output_types(tuple[key, Any])


@dataclass(frozen=True)
class _Worker:
    """What the steps of an exchange do on workers. streams: those that meet in a bucket."""

    step: Step
    streams: list[Stream]
    way: Way

    def every_group(self, _: None, plans: Plans) -> Iterator[tuple[int, None]]:
        """Yield each group without a block, so that groups without rows are consumed too."""
        for group in range(self.way.groups(plans[self.step.plan].buckets)):
            yield group, None

    def send_written(self, numbered: tuple[int, list], plans: Plans, stream: Stream) -> Iterator[tuple[int, Block]]:
        """Send the rows of a run that was written before the exchange, unless runs are merged."""
        plan = plans[self.step.plan]
        index = RunIndex.from_row(numbered[1])
        if self.way.by_service:
            read = partial(rows_of_runs, [index], stream, self.way.staging)
            for _, bucket, block in send(index.name, read, [(stream, plan.buckets)], self.way):
                yield bucket, block
        elif not self._merges(plan):
            yield from references(index, stream, plan.buckets)

    def send_to_merge(self, numbered: tuple[int, list], plans: Plans, stream: Stream) -> Iterator[tuple[str, Block]]:
        """Refer to a run by ranges of keys, if runs are merged."""
        if self._merges(plans[self.step.plan]):
            source, row = numbered
            yield from references_to_merge(source, RunIndex.from_row(row), stream)

    def merge(self, grouped: tuple[str, Iterable[Block]], plans: Plans, stream: Stream) -> Iterator[tuple[int, Block]]:
        """Merge one range of keys of neighboring runs, and refer to what comes of it."""
        name, blocks = grouped
        yield from merge_runs(name, blocks, stream, plans[self.step.plan].buckets, self.way)

    def consume(self, grouped: tuple[int, Iterable[Block | None]], plans: Plans) -> Iterator[Any]:
        """Yield what the step makes of each bucket of a group."""
        plan = plans[self.step.plan]
        for bucket, read_rows in self._rows_of_buckets(grouped, plan.buckets):
            yield self.step.make(bucket, read_rows, plan.details)

    def make_rows(self, grouped: tuple[int, Iterable[Block | None]], plans: Plans) -> Iterator[TaggedOutput]:
        """Send the rows that the step makes of each bucket of a group.

        They are made and cut in one function, so that a table is never an element: an engine may break the graph
        between any two functions with side inputs, and would then have to store the table.
        """
        plan = plans[self.step.plan]
        outputs = [(output.stream, plans[output.plan].buckets) for output in self.step.outputs]
        for bucket, read_rows in self._rows_of_buckets(grouped, plan.buckets):
            make_batches = partial(self.step.make, bucket, read_rows, plan.details)
            for number, group, block in send(f"{self.step.name}-{bucket:06d}", make_batches, outputs, self.way):
                yield TaggedOutput(str(number), (group, block))

    def _merges(self, plan: Plan) -> bool:
        return plan.merges or self.way.shuffle == "merged"

    def _rows_of_buckets(
        self, grouped: tuple[int, Iterable[Block | None]], buckets: int
    ) -> Iterator[tuple[int, ReadRows]]:
        """Yield the buckets of a group one after another, so that only one bucket's rows are in memory at a time."""
        group, blocks = grouped
        if self.way.by_service:
            yield group, self._read_rows(partial(whole_blocks, blocks))
            return

        indexes = indexes_by_name(blocks)
        for bucket in buckets_of_group(group, buckets):
            yield bucket, self._read_rows(partial(parts_of_runs, indexes, bucket, buckets))

    def _read_rows(self, contents: Callable[[], Iterator[Content]]) -> ReadRows:
        if self.step.in_pieces:
            (stream,) = self.streams
            return partial(read_pieces, contents, stream, self.way.staging)
        return partial(read_tables, contents, self.streams, self.way.staging)
