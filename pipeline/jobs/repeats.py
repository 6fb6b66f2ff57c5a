"""The second pass of `shard --drop_repeats`: from the drafts of all shards to shards without repeated sentences.

    drafts -> spans -> (exchange by hash) -> later places -> (exchange by shard) -> text shards

The first exchange brings the occurrences of a span together: at most one from each draft. The places of all but the
earliest go to their shards, which pipeline/shard/repeats.py, which has the rule, then finishes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.pvalue import AsSingleton, PCollection

from pipeline.beam import steps
from pipeline.beam.steps import call_once
from pipeline.commit.reports import Report, add_counts
from pipeline.exchange.blocks import Addressed, Stream, Way
from pipeline.exchange.exchange import Exchange, Output, Plan, Plans, Step, Written, numbered_index, relay
from pipeline.exchange.runs import Keys
from pipeline.shard.repeats import (
    PLACE_SCHEMA,
    SPAN_BUCKETS,
    SPAN_SCHEMA,
    finish_shard,
    later_places,
    shards_of,
)
from pipeline.shard.survey import MAX_READS
from schemas.shards import shard_name

BUCKET_SPANS = 2_000_000
"""Maximum mean number of spans per bucket. They take 32 MB, and 100 MB while they are sorted."""

SPANS = "spans"
SHARDS = "shards"
"""Names of the exchanges' plans."""


def make_shard(
    make: Callable[..., Report],
    index: int,
    read_tables: Callable[[], list[pa.Table]],
    num_shards: int,
    is_finished: bool = True,
    **arguments: Any,
) -> Report:
    """Make the text shard of a bucket by a function that takes its name and tables, and count it if it is finished."""
    report = make(shard_name("text", index, num_shards), read_tables, **arguments)
    if is_finished:
        steps.count_report("text", report)
        steps.count(f"{steps.PIECES}/text")
    return report


@dataclass
class DropRepeats(beam.PTransform):
    """What `write_draft` returns for each shard -> reports of text shards, as `finish_shard` returns them.

    sentences: of a span.
    """

    drafts: Any
    sentences: int
    way: Way

    def expand(self, pbegin: Any) -> PCollection:
        counts = self.drafts | "Counts" >> beam.Map(_counts) | "Add up" >> beam.CombineGlobally(add_counts)
        plans = AsSingleton(pbegin | "Plan" >> call_once(_plans, AsSingleton(counts)))

        indexes = self.drafts | "Indexes" >> beam.FlatMap(numbered_index, "shard", "index")
        spans = Written(Stream(0, "spans", SPAN_SCHEMA, _hashes), indexes)
        repeats = Output(Stream(0, "repeats", PLACE_SCHEMA), SHARDS)
        (found,) = relay([spans], Step("repeats", find_repeats, SPANS, [repeats]), plans, self.way)

        make = partial(make_shard, finish_shard, drop_repeats=self.sentences, staging=self.way.staging)
        finish = Step("finish", make, SHARDS)
        return pbegin | "Finish shards" >> Exchange([found], finish, plans, self.way)


# The plan


def _counts(draft: Report) -> Report:
    return {"shards": 1, "spans": draft["spans"]}


def _plans(added: Report) -> Plans:
    num_shards = added["shards"]
    needed = -(-added["spans"] // BUCKET_SPANS)
    buckets = 1 << max(0, needed - 1).bit_length()
    merges = buckets > SPAN_BUCKETS or num_shards * buckets > MAX_READS
    return {SPANS: Plan(buckets, merges, details=num_shards), SHARDS: Plan(num_shards, details=num_shards)}


def _hashes(rows: pa.RecordBatch) -> Keys:
    return rows["span"].to_numpy()


# The steps, on workers


def find_repeats(bucket: int, read_tables: Callable[[], list[pa.Table]], num_shards: int) -> Iterator[Addressed]:
    """Send the places of all occurrences of a span except the first to their shards. Output 0: places."""
    (spans,) = read_tables()
    places = later_places(spans["span"].to_numpy(), spans["place"].to_numpy())
    yield 0, (keys_of_shards(num_shards)[shards_of(places)], pa.record_batch([pa.array(places)], schema=PLACE_SCHEMA))


def keys_of_shards(num_shards: int) -> Keys:
    """Return (num_shards,) uint64: for each shard, the smallest key that an exchange of the shards brings there."""
    return np.array([-(-(shard << 64) // num_shards) for shard in range(num_shards)], np.uint64)
