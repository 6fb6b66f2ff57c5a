"""`shard` as a Beam graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import AsList, AsSingleton, PCollection

from pipeline.options import ShardJob
from pipeline.runtime.staging import Staging
from pipeline.shard import near_duplicates
from pipeline.shard.documents import ReadOptions
from pipeline.shard.inputs import Split
from pipeline.shard.merge import MergeOptions, merge_shard
from pipeline.shard.partition import write_runs
from pipeline.shard.plan import CorpusSurvey, plan_shards
from pipeline.steps.provenance import Provenance
from pipeline.steps.shard import join_bucket, publish_text, resolve_near_duplicates
from pipeline.transforms.calls import Distribute, call, call_once


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
            | "Spread" >> call(write_runs, self.reading, job.num_shards, self.staging, counted="run")
        )
        surveyed = pbegin | "Survey" >> call_once(
            plan_shards, AsList(runs), job.num_shards, job.max_bad_ratio, job.max_undecodable_ratio
        )
        survey = AsSingleton(surveyed)

        near_duplicates_found = self._find_near_duplicates(pbegin, survey)
        reports = (
            surveyed
            | "Shards" >> call(_shard_indices)
            | "Distribute shards" >> Distribute()
            | "Gather"
            >> call(
                merge_shard,
                survey,
                near_duplicates_found,
                MergeOptions(job.dedup, job.seed),
                self.staging,
                counted="text",
            )
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
