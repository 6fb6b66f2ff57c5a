"""A step between exchanges as a Beam transform: the rows of each bucket become rows for other exchanges.

One function makes the rows and cuts them into run files or blocks, so that a table is never an element: an engine may
break the graph between any two functions with side inputs, and would then have to store the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from apache_beam.pvalue import AsSingleton, PCollection, TaggedOutput

from pipeline.beam.steps import generate
from pipeline.runtime.blocks import WireBlock
from pipeline.runtime.exchange import (
    Entry,
    GroupReader,
    Shuffle,
    Stream,
    buckets_of_group,
    entries_by_group,
    indexes_by_name,
)
from pipeline.runtime.relay import Addressed, relay_blocks, relay_runs
from pipeline.runtime.staging import Staging
from pipeline.transforms.exchange import Relayed
from pipeline.transforms.exchange_steps import Plan, rows_of_blocks, rows_of_runs

Plans = dict[str, Plan]
"""The plans of several exchanges by name."""

MakeBatches = Callable[[int, Callable[[], Any], Any], Iterator[Addressed]]


@dataclass(frozen=True)
class Output:
    """A stream that a relay sends, and the name of the plan of its target exchange."""

    stream: Stream
    plan: str


@dataclass(frozen=True)
class Step:
    """What a relay does with each bucket.

    name: unique within the job.
    make: called with the number of a bucket, a function that returns one table per stream, and the plan's details. It
    yields batches, each with the number of its output. It may not be called for buckets without rows.
    plan: the name of the plan of the exchange that brings the buckets together.
    streams: those that meet in a bucket.
    in_pieces: `make` gets a function that yields the rows of its only stream as several tables, of a few MB each. For
    rows that are small, but may be too many in one bucket to fit into memory.
    """

    name: str
    make: MakeBatches
    plan: str
    streams: list[Stream]
    outputs: list[Output]
    in_pieces: bool = False


def relay(gathered: PCollection, step: Step, plans: AsSingleton, shuffle: Shuffle, staging: Staging) -> list[Relayed]:
    """Return the streams that a step makes from the rows of each bucket, one per output.

    gathered: the result of `Gather` for the step's streams.
    plans: a single `Plans`. One side input for all exchanges, because each side input costs a step time.
    """
    if shuffle == "service":
        made = generate(_relay_blocks, step, plans)
    else:
        made = generate(_relay_runs, step, staging, plans)

    tags = [_tag(number) for number in range(len(step.outputs))]
    typed: Any = made.with_output_types(tuple[int, Any])  # see `_typed` in exchange.py
    elements_of_tag = gathered | step.name.capitalize() >> typed.with_outputs(*tags)
    return [Relayed(output.stream, elements_of_tag[tag]) for output, tag in zip(step.outputs, tags, strict=True)]


def _tag(number: int) -> str:
    return f"output-{number}"


def _relay_blocks(grouped: tuple[int, Iterable[WireBlock]], step: Step, plans: Plans) -> Iterator[TaggedOutput]:
    bucket, blocks = grouped
    read_rows = rows_of_blocks(blocks, step.streams, step.in_pieces)
    batches = step.make(bucket, read_rows, plans[step.plan].details)
    for number, target_bucket, block in relay_blocks(batches, _outputs(step, plans)):
        yield TaggedOutput(_tag(number), (target_bucket, block))


def _relay_runs(
    grouped: tuple[int, Iterable[Entry]], step: Step, staging: Staging, plans: Plans
) -> Iterator[TaggedOutput]:
    """Relay the buckets of a group one after another, so that only one bucket's rows are in memory at a time."""
    group, entries = grouped
    plan = plans[step.plan]
    reader = GroupReader(indexes_by_name(entries), plan.buckets, staging)
    outputs = _outputs(step, plans)

    for bucket in buckets_of_group(group, plan.buckets):
        read_rows = rows_of_runs(reader, bucket, step.streams, step.in_pieces)
        batches = partial(step.make, bucket, read_rows, plan.details)
        for number, index in relay_runs(f"{step.name}-{bucket:06d}", batches, outputs, staging):
            stream, buckets = outputs[number]
            for target_group, entry in entries_by_group(index, stream.number, buckets):
                yield TaggedOutput(_tag(number), (target_group, entry))


def _outputs(step: Step, plans: Plans) -> list[tuple[Stream, int]]:
    return [(output.stream, plans[output.plan].buckets) for output in step.outputs]
