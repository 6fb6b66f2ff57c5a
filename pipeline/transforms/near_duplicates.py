"""Near-duplicates as a Beam graph: from the signatures of all runs to the documents to drop."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import apache_beam as beam
import pyarrow as pa
from apache_beam.pvalue import AsList, PCollection

from pipeline.runtime.counters import Report
from pipeline.runtime.exchange import Lot, Maker, Stream
from pipeline.runtime.staging import Staging
from pipeline.shard import near_duplicates
from pipeline.shard.merge import DROPPED_SCHEMA
from pipeline.shard.partition import placements
from pipeline.transforms.calls import DistributeList, call, call_once
from pipeline.transforms.exchange import Sent


def near_duplicates_to_drop(runs: PCollection, seed: int, staging: Staging) -> Sent:
    """Return the stream of the documents to drop. `runs` are the reports of all runs."""
    pbegin = runs.pipeline
    names = AsList(runs | "Names" >> beam.Map(_name))
    joined = (
        pbegin
        | "Buckets" >> beam.Create([list(range(near_duplicates.JOINS))])
        | "Distribute buckets" >> DistributeList()
        | "Join" >> call(_join_bands, names, staging)
    )
    resolved = pbegin | "Resolve" >> call_once(_resolve, names, AsList(joined), staging)
    maker = Maker(_one_name, partial(_lots_of_dropped, seed=seed, staging=staging))
    return Sent(Stream(1, "dropped", DROPPED_SCHEMA), resolved, maker)


def _name(run: Report) -> str:
    return run["run"]


def _one_name(report: Report) -> str:
    return "all"


def _join_bands(bucket: int, names: list[str], staging: Staging) -> Report:
    return near_duplicates.join_bands(bucket, tuple(sorted(names)), staging)


def _resolve(names: list[str], joined: list[Report], staging: Staging) -> Report:
    return near_duplicates.resolve(tuple(sorted(names)), joined, staging)


def _lots_of_dropped(report: Report, plan: Any, seed: int, staging: Staging) -> Iterator[Lot]:
    ids = near_duplicates.dropped_ids(report, staging)
    yield placements(ids, seed), pa.record_batch([pa.array(ids)], schema=DROPPED_SCHEMA)
