"""`statistics` as a Beam graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import apache_beam as beam
import pyarrow as pa
from apache_beam.pvalue import AsList, AsSingleton, PCollection

from pipeline.beam import steps
from pipeline.beam.steps import Distribute, DistributeList, call_last, generate
from pipeline.runtime.counters import Report
from pipeline.runtime.exchange import BatchSource, KeyedBatch, Shuffle, Stream
from pipeline.runtime.staging import Staging
from pipeline.steps.provenance import Provenance
from pipeline.steps.statistics import (
    PairLot,
    add_counts,
    count_lot,
    name_of_lot,
    publish_statistics,
    read_lots,
)
from pipeline.steps.statistics_plan import StatisticsPlan
from pipeline.transforms.exchange import Exchange, Sent
from pipeline.transforms.exchange_steps import Plan
from schemas.statistics import COOCCURRENCES_SCHEMA

STATISTICS_STREAM = Stream(0, "statistics", COOCCURRENCES_SCHEMA)


@dataclass
class WriteStatistics(beam.PTransform):
    """Lots of pair shards -> counts of each lot -> an exchange by pair of tokens -> a finished folder."""

    plan: StatisticsPlan
    provenance: Provenance
    shuffle: Shuffle
    staging: Staging

    def expand(self, pbegin: Any) -> PCollection:
        lots = (
            pbegin
            | "Pairs parts" >> beam.Create([list(range(self.plan.num_parts))])
            | "Distribute parts" >> DistributeList()
            | "Lots" >> generate(read_lots, self.plan)
            | "Distribute lots" >> Distribute()
        )
        source = BatchSource(name_of_lot, partial(_count_lot, plan=self.plan), _lot_made)
        counted = Sent(STATISTICS_STREAM, lots, source)
        exchange_plan = pbegin | "Plan partitions" >> beam.Create([Plan(self.plan.partitions)])

        add = partial(_add_counts, plan=self.plan, staging=self.staging)
        exchange = Exchange([counted], add, AsSingleton(exchange_plan), self.shuffle, self.staging, in_pieces=True)
        reports = AsList(pbegin | "Add counts" >> exchange)
        return pbegin | "Finish" >> call_last(publish_statistics, reports, self.plan, self.provenance, self.staging)


def _count_lot(lot: PairLot, _: Any, plan: StatisticsPlan) -> Iterator[KeyedBatch]:
    yield from count_lot(lot, plan)


def _lot_made(lot: PairLot) -> None:
    steps.count_lot("pairs", [shard for _, shard in lot.shards])


def _add_counts(
    partition: int, read_pieces: Callable[[], Iterable[pa.Table]], _: Any, plan: StatisticsPlan, staging: Staging
) -> list[Report]:
    return add_counts(partition, read_pieces, plan, staging)
