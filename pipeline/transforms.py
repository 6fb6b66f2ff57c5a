"""The three jobs as Beam graphs. This is the only module that wires Beam transforms together.

Bulk bytes go through files in staging, and only small reports go through Beam, because local runners keep every
element in memory. All outputs follow from what the functions are given: which worker ran them, in what order and how
often leaves no trace.

The job's last step publishes the result, on a worker: so a job on an engine finishes even when its launcher is gone.
(`vocab` trains in the launcher, after its graph has counted the words.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import AsList, AsSingleton, PCollection

from pipeline.options import ShardJob, VocabJob
from pipeline.runtime.carried_errors import carrying_errors
from pipeline.runtime.staging import Staging
from pipeline.shard import near_duplicates
from pipeline.shard.inputs import Split
from pipeline.shard.merge import MergeOptions, merge_shard
from pipeline.shard.partition import ReadOptions, write_runs
from pipeline.shard.plan import CorpusSurvey, plan_shards
from pipeline.steps.pairs import PairsPlan, build_pair_shard, publish_pairs
from pipeline.steps.provenance import Provenance
from pipeline.steps.shard import join_bucket, publish_text, resolve_near_duplicates
from pipeline.steps.vocab import add_counts, count_words
from pipeline.vocab.counting import PARTITIONS
from schemas.manifest import Shard


def call(function: Callable[..., Any], *arguments: Any) -> beam.PTransform:
    """Call a function for each element, with the element first and then `arguments`, side inputs among them.

    A ClozelineError that it raises reaches the launcher as it was.
    """
    return beam.Map(carrying_errors(function), *arguments)


def call_once(function: Callable[..., Any], *arguments: Any) -> beam.PTransform:
    """Call a function once, with `arguments` alone, when all its side inputs are complete. Makes one element."""
    return CallOnce(function, arguments)


@dataclass
class CallOnce(beam.PTransform):
    """The transform that `call_once` describes."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]

    def expand(self, pbegin: Any) -> PCollection:
        return (
            pbegin | "Once" >> beam.Create([None]) | "Call" >> call(_ignoring_element(self.function), *self.arguments)
        )


def _ignoring_element(function: Callable[..., Any]) -> Callable[..., Any]:
    def called(_, *arguments):
        return function(*arguments)

    return called


@dataclass
class Distribute(beam.PTransform):
    """A list -> its items, distributed evenly over the workers.

    Items are grouped by their place in the list. Unlike Reshuffle's random keys, this gives each local worker the same
    number of items.
    """

    def expand(self, lists: Any) -> PCollection:
        return (
            lists | "Number" >> beam.FlatMap(_numbered) | "Group" >> beam.GroupByKey() | "Item" >> beam.FlatMap(_values)
        )


def _numbered(items: list[Any]) -> Iterator[tuple[int, Any]]:
    yield from enumerate(items)


def _values(numbered: tuple[int, Any]) -> Any:
    yield from numbered[1]


@dataclass
class ShardCorpora(beam.PTransform):
    """Splits of the input -> sorted runs in staging -> text shards -> a finished folder.

    The one shuffle of the pipeline. Each split becomes runs, sorted by where documents go; the survey of all runs
    decides the number of shards; each shard then reads its part out of every run.
    """

    splits: list[Split]
    job: ShardJob
    reading: ReadOptions
    provenance: Provenance
    staging: Staging

    def expand(self, pbegin: Any) -> PCollection:
        job = self.job
        runs = (
            pbegin
            | "Splits" >> beam.Create([self.splits])
            | "Distribute splits" >> Distribute()
            | "Spread" >> call(write_runs, self.reading, job.num_shards, self.staging)
        )
        surveyed = pbegin | "Survey" >> call_once(
            plan_shards, AsList(runs), job.num_shards, job.max_bad_ratio, job.max_undecodable_ratio
        )
        survey = AsSingleton(surveyed)

        near_duplicates_found = self._find_near_duplicates(pbegin, survey)
        reports = (
            surveyed
            | "Shards" >> beam.Map(_shard_indices)
            | "Distribute shards" >> Distribute()
            | "Gather"
            >> call(merge_shard, survey, near_duplicates_found, MergeOptions(job.dedup, job.seed), self.staging)
        )
        return pbegin | "Finish" >> call_once(publish_text, survey, AsList(reports), self.provenance, self.staging)

    def _find_near_duplicates(self, pbegin: Any, survey: AsSingleton) -> AsSingleton | None:
        """The report of the near-duplicates to drop, or None when they are to be kept."""
        if not self.reading.near_duplicates:
            return None

        joined = (
            pbegin
            | "Buckets" >> beam.Create([list(range(near_duplicates.JOINS))])
            | "Distribute buckets" >> Distribute()
            | "Join" >> call(join_bucket, survey, self.staging)
        )
        resolved = pbegin | "Resolve" >> call_once(resolve_near_duplicates, survey, AsList(joined), self.staging)
        return AsSingleton(resolved)


def _shard_indices(survey: CorpusSurvey) -> list[int]:
    return list(range(survey.num_shards))


@dataclass
class CountWords(beam.PTransform):
    """Text shards -> word counts of each shard -> sums over all shards, a partition of the words at a time.

    sources: what the counts distinguish, besides words.
    """

    shards: list[Shard]
    job: VocabJob
    sources: list[str]
    staging: Staging

    def expand(self, pbegin: Any) -> PCollection:
        counted = (
            pbegin
            | "Text shards" >> beam.Create([self.shards])
            | "Distribute shards" >> Distribute()
            | "Count" >> call(count_words, self.job, self.sources, self.staging)
        )
        return (
            pbegin
            | "Partitions" >> beam.Create([list(range(PARTITIONS))])
            | "Distribute partitions" >> Distribute()
            | "Add counts" >> call(add_counts, AsList(counted), self.staging)
        )


@dataclass
class WritePairs(beam.PTransform):
    """Text shards -> pair shards -> a finished folder. A map: each pair shard is made from one text shard alone."""

    plan: PairsPlan
    provenance: Provenance

    def expand(self, pbegin: Any) -> PCollection:
        reports = (
            pbegin
            | "Shards" >> beam.Create([list(range(self.plan.num_shards))])
            | "Distribute" >> Distribute()
            | "Build" >> call(build_pair_shard, self.plan)
        )
        return pbegin | "Finish" >> call_once(publish_pairs, AsList(reports), self.plan, self.provenance)
