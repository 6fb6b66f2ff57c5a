"""`shard` as a Beam graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import apache_beam as beam
import pyarrow as pa
from apache_beam.pvalue import AsList, AsSingleton, PCollection

from pipeline.jobs.near_duplicates import Corpus, near_duplicates_to_drop, rounds_for
from pipeline.options import ShardJob
from pipeline.readers.inputs import files_for, read_splits
from pipeline.runtime.counters import Report
from pipeline.runtime.exchange import Shuffle
from pipeline.runtime.staging import Staging
from pipeline.shard.documents import ReadOptions
from pipeline.shard.holdout import add_counts, counts_of, held_out_stream, numbered_runs, plan_held_out
from pipeline.shard.merge import MergeOptions, write_shard
from pipeline.shard.partition import documents_stream, write_runs
from pipeline.shard.plan import CorpusSurvey, InputLimits, Sharding, add_runs, plan_shards
from pipeline.steps.provenance import Provenance
from pipeline.steps.shard import TextFolders, add_text_reports, publish_text, publish_with_held_out
from pipeline.transforms.calls import Distribute, call, call_last, call_once, generate
from pipeline.transforms.exchange import Exchange, Written
from pipeline.transforms.exchange_steps import Plan
from pipeline.transforms.manifest_parts import SummarizeParts
from schemas.shards import shard_name


@dataclass
class ShardCorpora(beam.PTransform):
    """Splits of the input -> sorted runs in staging -> text shards -> a finished folder.

    This contains the pipeline's shuffle. Each split becomes runs, sorted by the documents' destinations; the survey of
    all runs decides the number of shards; an exchange brings the documents of each shard together.

    splits: their number. They and the list of inputs are in staging (pipeline/readers/inputs.py).
    input_bytes: of all inputs, as stored.
    held_out: the staging of the held-out folder; None without --holdout.
    """

    splits: int
    input_bytes: int
    job: ShardJob
    reading: ReadOptions
    provenance: Provenance
    shuffle: Shuffle
    staging: Staging
    held_out: Staging | None = None

    def expand(self, pbegin: Any) -> PCollection:
        runs = (
            pbegin
            | "Split files" >> beam.Create(range(files_for(self.splits)))
            | "Splits" >> generate(read_splits, self.staging)
            | "Distribute splits" >> Distribute()
            | "Spread" >> generate(write_runs, self.reading, self.job.num_shards, self.staging, counted="run")
        )
        survey = AsSingleton(self._survey(pbegin, runs))
        plan = pbegin | "Plan shards" >> call_once(_plan_of_shards, survey)

        shards = (
            pbegin
            | "Gather" >> self._exchange(self._streams(runs, survey), plan)
            | "Count" >> call(_same_report, counted="text")
        )
        summaries = AsList(shards | "Summarize parts" >> SummarizeParts(add_text_reports, self.staging))
        if self.held_out is None:
            finish = call_last(publish_text, survey, summaries, self.provenance, self.staging)
        else:
            folders = TextFolders(self.staging, self.held_out)
            held_out = AsList(pbegin | "Hold out" >> GatherHeldOut(shards, self, folders))
            finish = call_last(publish_with_held_out, survey, summaries, held_out, self.provenance, folders)
        return pbegin | "Finish" >> finish

    def _survey(self, pbegin: Any, runs: Any) -> PCollection:
        """Add up the reports of all runs, and decide the number of shards."""
        limits = InputLimits(self.job.max_bad_ratio, self.job.max_undecodable_ratio)

        added = runs | "Facts" >> beam.Map(_without_index) | "Add up" >> beam.CombineGlobally(add_runs)
        return pbegin | "Survey" >> call_once(plan_shards, AsSingleton(added), self.sharding(), limits)

    def sharding(self) -> Sharding:
        """Return the user's choices about shards."""
        return Sharding(
            self.job.num_shards,
            self.job.shard_megabytes << 20,
            merges_runs=self.shuffle == "merged",
        )

    def _streams(self, runs: Any, survey: AsSingleton) -> list[Any]:
        """Return the streams of the exchange: the documents, then the ids of the documents to drop."""
        documents = documents_stream(self.job.dedup, self.job.seed)
        indexes = runs | "Indexes" >> beam.Map(_numbered_index)
        streams: list[Any] = [Written(documents, indexes)]

        if self.job.dedup == "minhash":
            corpus = Corpus(
                survey,
                self.job.seed,
                rounds_for(self.input_bytes),
                self.shuffle,
                self.staging,
            )
            streams += near_duplicates_to_drop(runs, corpus)

        return streams

    def _exchange(self, streams: list[Any], plan: PCollection) -> Exchange:
        """Return the exchange that makes each shard from its documents."""
        merge = partial(
            _write_shard,
            options=MergeOptions(self.job.dedup, self.job.seed, self.job.holdout),
            staging=self.staging,
        )
        return Exchange(streams, merge, AsSingleton(plan), self.shuffle, self.staging)


@dataclass
class GatherHeldOut(beam.PTransform):
    """Reports of text shards -> PartSummaries of the held-out shards. A second exchange, of held-out documents only.

    Their runs are in the staging of the text folder, and the held-out shards go to the held-out folder's staging.
    """

    shards: Any
    corpora: ShardCorpora
    folders: TextFolders

    def expand(self, pbegin: Any) -> PCollection:
        job = self.corpora.job
        added = self.shards | "Counts" >> beam.Map(counts_of) | "Add up" >> beam.CombineGlobally(add_counts)
        plan = pbegin | "Plan" >> call_once(_plan_of_held_out, AsSingleton(added), job.holdout, self.corpora.sharding())

        runs = self.shards | "Runs" >> beam.FlatMap(numbered_runs)
        merge = partial(
            _write_shard,
            options=MergeOptions("none", job.seed),
            staging=self.folders.held_out,
        )
        streams = [Written(held_out_stream(job.seed), runs)]
        return (
            pbegin
            | "Gather" >> Exchange(streams, merge, AsSingleton(plan), self.corpora.shuffle, self.folders.text)
            | "Count" >> call(_same_report, counted="text")
            | "Summarize parts" >> SummarizeParts(add_text_reports, self.folders.held_out)
        )


def _plan_of_held_out(added: Report, share: float, sharding: Sharding) -> Plan:
    plan = plan_held_out(added, share, sharding)
    return Plan(
        buckets=plan.num_shards,
        merges=plan.merges_runs,
        details=plan.num_shards,
    )


def _same_report(report: Report) -> Report:
    """Return the report, which `call` has counted."""
    return report


def _plan_of_shards(survey: CorpusSurvey) -> Plan:
    return Plan(
        buckets=survey.num_shards,
        merges=survey.merges_runs,
        details=survey.num_shards,
    )


_INDEXES = ("index", "bands", "signatures")
"""Entries of a run's report that say where its rows are. They are long, and only exchanges read them."""


def _numbered_index(run: Report) -> tuple[int, list]:
    return run["split"], run["index"]


def _without_index(run: Report) -> Report:
    return {name: value for name, value in run.items() if name not in _INDEXES}


def _write_shard(
    index: int,
    read_tables: Callable[[], list[pa.Table]],
    num_shards: int,
    options: MergeOptions,
    staging: Staging,
) -> Report:
    return write_shard(shard_name("text", index, num_shards), read_tables, options, staging)
