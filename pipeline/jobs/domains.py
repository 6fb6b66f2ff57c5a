"""The counts of domains in `shard`, of input with URLs: an exchange in which equal hosts of all runs meet.

    hosts of each run -> an exchange by host -> the number and the largest hosts of each bucket -> the survey

pipeline/shard/hosts.py has what is done with the counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import apache_beam as beam
import pyarrow as pa
from apache_beam.pvalue import AsSingleton, PCollection

from pipeline.beam.steps import call_once
from pipeline.commit.reports import Report
from pipeline.exchange.blocks import Stream, Way
from pipeline.exchange.exchange import Exchange, Plan, Plans, Step, Written, numbered_index
from pipeline.shard.hosts import HOST_BUCKETS, HOST_SCHEMA, add_domains, add_hosts, host_keys, sum_hosts
from pipeline.shard.survey import CorpusSurvey

DOCUMENTS_PER_BUCKET = 1_000_000
"""Maximum mean number of documents per bucket, until there are HOST_BUCKETS. A bucket has as many hosts or fewer."""

HOSTS = "hosts"
"""Name of the exchange's plan."""


@dataclass
class CountDomains(beam.PTransform):
    """Reports of runs -> a report for each bucket of hosts, as `add_hosts` returns it.

    survey: a single CorpusSurvey.
    """

    survey: AsSingleton
    way: Way

    def expand(self, runs: Any) -> PCollection:
        plans = AsSingleton(runs.pipeline | "Plan hosts" >> call_once(_plans, self.survey))
        stream = Stream(0, HOSTS, HOST_SCHEMA, host_keys, sum_hosts)
        written = Written(stream, runs | "Host indexes" >> beam.FlatMap(numbered_index, "split", "hosts"))

        step = Step(HOSTS, _add_bucket, HOSTS, in_pieces=True)
        return runs.pipeline | "Add hosts" >> Exchange([written], step, plans, self.way)


def _plans(survey: CorpusSurvey) -> Plans:
    needed = -(-survey.documents // DOCUMENTS_PER_BUCKET)
    buckets = min(HOST_BUCKETS, 1 << max(0, needed - 1).bit_length())
    return {HOSTS: Plan(buckets, survey.merges_runs)}


def _add_bucket(bucket: int, read_pieces: Callable[[], Iterable[pa.Table]], details: Any) -> Report:
    return add_hosts(read_pieces())


def with_domains(survey: CorpusSurvey, buckets: list[Report]) -> CorpusSurvey:
    return replace(survey, domains=add_domains(buckets))
