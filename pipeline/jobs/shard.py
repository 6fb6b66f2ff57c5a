"""`python -m pipeline shard`: corpora to text shards.

    splits of the input -> sorted runs in staging -> survey of all runs -> text shards -> a finished folder

This contains the pipeline's shuffle. Each split becomes runs, sorted by the documents' placements (write_runs.py); the
survey of all runs decides the number of shards; an exchange brings the documents of each shard together.
publish_text.py has the last step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pvalue import AsList, AsSingleton, PCollection

from pipeline.beam import estimate
from pipeline.beam.display import Work
from pipeline.beam.engine_checks import check_launch
from pipeline.beam.engines import beam_options, chosen_shuffle, is_dry_run, path_for_workers
from pipeline.beam.runner import Execution, run_job
from pipeline.beam.steps import Distribute, SummarizeParts, call_last, call_once, generate
from pipeline.commit.finished import Provenance, Wanted, check_other_files, is_finished
from pipeline.commit.reports import Report, add_counts
from pipeline.commit.staging import Staging, plan_staging
from pipeline.exchange.blocks import Way
from pipeline.exchange.exchange import Exchange, Plan, Plans, Step, Written, numbered_index
from pipeline.jobs.domains import CountDomains, with_domains
from pipeline.jobs.near_duplicates import SHARDS, NearDuplicates, rounds_for
from pipeline.jobs.publish_text import add_text_reports, publish_text
from pipeline.jobs.repeats import DropRepeats, make_shard
from pipeline.jobs.shard_options import (
    check_inputs_are_outside,
    one_listing,
    resolved,
    warn_of_another_language,
    warn_of_empty_files,
    warn_of_flags_without_effect,
    warn_of_unknown_keys,
)
from pipeline.options import ShardJob
from pipeline.readers import encodings
from pipeline.readers.corpora import Corpus, list_corpora
from pipeline.readers.inputs import (
    COMPRESSED_WEIGHT,
    Split,
    files_for,
    plan_splits,
    read_splits,
    write_inputs,
    write_splits,
)
from pipeline.readers.listing import InputFile, Listing
from pipeline.readers.open import compression_of
from pipeline.readers.web_addresses import pinned
from pipeline.shard.contamination import EVALUATION_SETS, EvaluationSets
from pipeline.shard.detection import AUTO
from pipeline.shard.documents import ReadOptions
from pipeline.shard.holdout import (
    SIDE,
    held_out_counts,
    held_out_folder,
    held_out_stream,
    numbered_runs,
    plan_held_out,
)
from pipeline.shard.repeats import write_draft
from pipeline.shard.survey import CorpusSurvey, add_runs, shards_for, survey_corpus
from pipeline.shard.write_runs import documents_stream, write_runs
from pipeline.shard.write_shard import ShardOptions, write_shard
from schemas import manifest as manifests
from schemas import storage
from schemas.errors import ClozelineError, UsageError
from schemas.manifest import Input, Manifest

Corpora = tuple[tuple[Corpus, ShardJob], ...]
"""The corpora of a job, each with the job as its options have it."""


# Options and plan, in the launcher


def run(job: ShardJob, beam_arguments: list[str], known_flags: list[str]) -> Manifest | None:
    """Run the job to its end and return the published manifest; None after a dry run, and with --no_wait.

    Raises UsageError before anything starts (nothing matches, a flag is unknown, the output is finished), DataError if
    the input is too bad to publish, and StorageError if a disk or a store fails.
    """
    checked = check_launch(beam_arguments, known_flags)
    decided = resolved(job)
    job = decided.job
    listings = list_corpora([corpus for corpus, _ in decided.corpora], job.exclude or ())
    listing = one_listing(listings)
    files = listing.files
    check_inputs_are_outside(job.output, listing)
    warn_of_empty_files(files)
    weights = [COMPRESSED_WEIGHT * file.size if compression_of(file.path) else file.size for file in files]
    options = beam_options(checked, beam_arguments, sum(weights))

    output = path_for_workers("--output", job.output, options)
    identity = decided.identity(listings)
    staging = plan_staging(output, "text", identity)
    inputs = [Input(path=storage.printable(file.path), bytes=file.size) for file in files]
    provenance = Provenance(decided.recorded(), inputs, job.seed)
    wanted = Wanted("text", provenance, job.overwrite)
    held_out = None
    if job.holdout is not None:
        held_out = plan_staging(held_out_folder(output), "text", identity | SIDE)
    _check_held_out(wanted, staging, held_out, is_dry_run(options))

    graph = ShardCorpora(
        splits=0,  # until they are planned
        input_bytes=sum(file.size for file in files),
        job=job,
        corpora=decided.corpora,
        provenance=replace(provenance, inputs=[]),  # they are in staging, because there may be many
        way=Way(chosen_shuffle(job.shuffle, options), staging),
        held_out=held_out,
    )
    return run_job(
        "shard", wanted, staging, options, partial(_execution, graph, listings, inputs, decided.sets, options)
    )


def _execution(
    graph: ShardCorpora,
    listings: list[Listing],
    inputs: list[Input],
    sets: EvaluationSets | None,
    options: PipelineOptions,
) -> Execution:
    """Plan the splits. They, the list of inputs and the evaluation sets are written just before the graph runs."""
    job = graph.job
    staging = graph.way.staging
    splits = [_for_workers(split, options) for split in _splits(graph.corpora, listings)]
    warn_of_flags_without_effect(job, splits)
    jobs = {corpus.name: one for corpus, one in graph.corpora}
    warn_of_unknown_keys(jobs, splits)
    warn_of_another_language(jobs, splits)

    def prepare() -> None:
        write_splits(splits, staging)
        write_inputs(inputs, staging)
        if sets is not None:
            staging.put(EVALUATION_SETS, sets.to_bytes())

    has_urls = any(file_range.may_have_urls for split in splits for file_range in split.ranges)
    return Execution(
        label="Shard corpora",
        graph=replace(graph, splits=len(splits), has_urls=has_urls),
        options=options,
        staging=staging,
        work=Work("split-", len(splits), graph.input_bytes),
        estimate=_estimate(job, one_listing(listings).files),
        prepare=prepare,
        published_first=() if graph.held_out is None else (graph.held_out,),
    )


def _splits(corpora: Corpora, listings: list[Listing]) -> Iterator[Split]:
    numbers = count()
    for (corpus, job), listing in zip(corpora, listings, strict=True):
        for split in plan_splits(listing.files, job.format, job.encoding, listing.in_folders):
            yield Split(next(numbers), tuple(replace(one, corpus=corpus.name) for one in split.ranges))


def _check_held_out(wanted: Wanted, staging: Staging, held_out: Staging | None, dry_run: bool) -> None:
    """Raise UsageError if the held-out folder is not as this command needs it or makes it.

    held_out: its staging; None without --holdout.
    """
    if held_out is None:
        if not is_finished(wanted, staging, dry_run):
            _check_no_held_out(staging.output)
        return

    # The number of held-out shards always follows from their text.
    options = wanted.provenance.options | SIDE | {"num_shards": None}
    wanted_there = replace(wanted, provenance=replace(wanted.provenance, options=options))
    text_is_finished = is_finished(wanted, staging, dry_run)
    if is_finished(wanted_there, held_out, dry_run):
        return
    if text_is_finished:
        raise UsageError(
            f"The output is finished, but the documents held out of it are not at {held_out.output}, where they were "
            "published. Move them back, or give --overwrite to make both folders again."
        )
    check_other_files(wanted_there, held_out.output)


def _check_no_held_out(output: str) -> None:
    """Raise UsageError if documents that an earlier command held out would now be in the text as well."""
    manifest = None
    with contextlib.suppress(ClozelineError):  # an unreadable folder was not held out of this output
        url = storage.join(held_out_folder(output), manifests.NAME)
        if storage.exists(url):
            manifest = manifests.parse_manifest(storage.read(url), url)

    if manifest is not None and SIDE.items() <= manifest.options.items():
        raise UsageError(
            f"{held_out_folder(output)} holds documents that were held out of {output}, and without --holdout this "
            "command would put them into the text as well. Give the same --holdout, or remove that folder."
        )


def _estimate(job: ShardJob, files: list[InputFile]) -> estimate.Estimate:
    text_bytes = int(sum(estimate.text_bytes_of(file.path, file.size) for file in files))
    seconds = text_bytes / estimate.WRITE_RUNS_BYTES_PER_SECOND + text_bytes / estimate.WRITE_SHARDS_BYTES_PER_SECOND
    if job.dedup == "minhash":
        seconds += text_bytes / estimate.MINHASH_BYTES_PER_SECOND
    if job.drop_repeats is not None:
        seconds += text_bytes / estimate.REPEATS_BYTES_PER_SECOND

    return estimate.Estimate(
        shards=job.num_shards or shards_for(text_bytes, job.shard_megabytes << 20),
        output_bytes=int(text_bytes * estimate.TEXT_SHARE),
        seconds=seconds,
    )


def _for_workers(split: Split, options: PipelineOptions) -> Split:
    """Return the split with paths that workers can open. The path as the user wrote it is kept for the result."""
    ranges = (
        replace(one, path=path_for_workers("--input", pinned(one.path), options), path_as_written=one.path)
        for one in split.ranges
    )
    return replace(split, ranges=tuple(ranges))


def reading_options(job: ShardJob, evaluation_sets: str, has_languages: bool, share: float = 1.0) -> ReadOptions:
    """Return what workers need of a job whose options have been resolved.

    evaluation_sets: the URL of the file of --decontaminate. has_languages, share: as in `ReadOptions`.
    """
    return ReadOptions(
        text_key=job.text_key,
        text_layout=job.text_layout,
        language=job.language,
        sentence_splitter=job.sentence_splitter,
        dedup=job.dedup,
        seed=job.seed,
        max_undecodable_ratio=job.max_undecodable_ratio,
        max_document_bytes=job.max_document_bytes,
        max_decompression_ratio=job.max_decompression_ratio,
        filters=dict(job.filters or {}),  # type: ignore[arg-type]  # chosen, not a string any more
        languages=tuple(job.languages.split(",")) if job.languages else (),
        min_language_confidence=job.min_language_confidence or 0.0,
        mask_private=job.mask_private,
        finds_encodings=job.encoding == encodings.AUTO,
        evaluation_sets=evaluation_sets,
        has_languages=has_languages,
        share=share,
    )


@dataclass
class ShardCorpora(beam.PTransform):
    """The job as a Beam graph.

    splits: their number. They and the list of inputs are in staging (pipeline/readers/inputs.py).
    input_bytes: of all inputs, as stored.
    held_out: the staging of the held-out folder; None without --holdout.
    has_urls: whether some records may have URLs, whose hosts are counted then.
    """

    splits: int
    input_bytes: int
    job: ShardJob
    corpora: Corpora
    provenance: Provenance
    way: Way
    held_out: Staging | None = None
    has_urls: bool = False

    def expand(self, pbegin: Any) -> PCollection:
        reading = self._reading()
        runs = (
            pbegin
            | "Split files" >> beam.Create(range(files_for(self.splits)))
            | "Splits" >> generate(read_splits, self.way.staging)
            | "Distribute splits" >> Distribute()
            | "Write runs" >> generate(write_runs, reading, self.job.num_shards, self.way.staging, counted="run")
        )
        survey = AsSingleton(self._survey(pbegin, runs))
        plans = AsSingleton(pbegin | "Plan shards" >> call_once(_plans, survey))

        repeats = self.job.drop_repeats
        options = ShardOptions(self.job.dedup, self.job.seed, self.job.holdout, repeats)
        writes = write_shard if repeats is None else write_draft
        make = partial(make_shard, writes, is_finished=repeats is None, options=options, staging=self.way.staging)
        write = Step("write", make, SHARDS)
        streams = self._streams(runs, survey)
        shards = pbegin | "Write shards" >> Exchange(streams, write, plans, self.way)
        if repeats is not None:
            shards = pbegin | "Drop repeats" >> DropRepeats(shards, repeats, self.way)
        stagings = [self.way.staging]
        summaries = [AsList(shards | "Summarize parts" >> SummarizeParts(add_text_reports, self.way.staging))]
        if self.held_out is not None:
            stagings.append(self.held_out)
            summaries.append(AsList(pbegin | "Hold out" >> WriteHeldOut(shards, self, self.held_out)))
        facts = self._facts(pbegin, runs, survey)
        return pbegin | "Finish" >> call_last(publish_text, facts, self.provenance, stagings, *summaries)

    def _reading(self) -> ReadOptions:
        sets = self.way.staging.url(EVALUATION_SETS) if self.job.decontaminate else ""
        has_languages = self.job.language == AUTO
        of_corpora = {
            corpus.name: reading_options(job, sets, has_languages, corpus.share)
            for corpus, job in self.corpora
            if corpus.name
        }
        reading = reading_options(self.job, sets, has_languages)
        return replace(reading, has_urls=self.has_urls, of_corpora=of_corpora)

    def _survey(self, pbegin: Any, runs: Any) -> PCollection:
        job = self.job
        limits = job.num_shards, job.shard_megabytes << 20, job.max_bad_ratio, job.max_undecodable_ratio
        added = runs | "Facts" >> beam.Map(_without_index) | "Add up" >> beam.CombineGlobally(add_runs)
        return pbegin | "Survey" >> call_once(survey_corpus, AsSingleton(added), *limits)

    def _facts(self, pbegin: Any, runs: Any, survey: AsSingleton) -> AsSingleton:
        if not self.has_urls:
            return survey
        domains = AsList(runs | "Count domains" >> CountDomains(survey, self.way))
        return AsSingleton(pbegin | "Add domains" >> call_once(with_domains, survey, domains))

    def _streams(self, runs: Any, survey: AsSingleton) -> list[Any]:
        """Return the streams of the exchange: the documents, then the ids of the documents to drop."""
        documents = documents_stream(self.job.dedup, self.job.seed, self.job.language == AUTO)
        indexes = runs | "Indexes" >> beam.FlatMap(numbered_index, "split", "index")
        streams: list[Any] = [Written(documents, indexes)]

        if self.job.dedup == "minhash":
            rounds = rounds_for(self.input_bytes)
            search = NearDuplicates(runs, survey, self.job.seed, rounds, self.way)
            streams += search.to_drop()

        return streams


@dataclass
class WriteHeldOut(beam.PTransform):
    """Reports of text shards -> a Summary for each part of the held-out shards. A second exchange, of their documents.

    Their runs are in the staging of the text folder, and the held-out shards go to the held-out folder's staging.
    """

    shards: Any
    corpora: ShardCorpora
    staging: Staging

    def expand(self, pbegin: Any) -> PCollection:
        job = self.corpora.job
        counts = self.shards | "Counts" >> beam.Map(held_out_counts)
        added = counts | "Add up" >> beam.CombineGlobally(add_counts)
        plan = call_once(_plans_of_held_out, AsSingleton(added), job.holdout, job.shard_megabytes << 20)
        plans = AsSingleton(pbegin | "Plan" >> plan)

        runs = self.shards | "Runs" >> beam.FlatMap(numbered_runs)
        options = ShardOptions("none", job.seed)
        write = partial(make_shard, write_shard, options=options, staging=self.staging)
        step = Step("write", write, SHARDS)
        streams = [Written(held_out_stream(job.seed, job.language == AUTO), runs)]
        return (
            pbegin
            | "Write shards" >> Exchange(streams, step, plans, self.corpora.way)
            | "Summarize parts" >> SummarizeParts(add_text_reports, self.staging)
        )


# What workers do, with the functions that `ShardCorpora.expand` hands to its steps


def _plans(survey: CorpusSurvey) -> Plans:
    return {SHARDS: Plan(survey.num_shards, survey.merges_runs, details=survey.num_shards)}


def _plans_of_held_out(added: Report, share: float, shard_bytes: int) -> Plans:
    num_shards, merges_runs = plan_held_out(added, share, shard_bytes)
    return {SHARDS: Plan(num_shards, merges_runs, details=num_shards)}


_INDEXES = ("index", "bands", "signatures", "hosts")
"""Entries of a run's report that say where its rows are. They are long, and only exchanges read them."""


def _without_index(run: Report) -> Report:
    return {name: value for name, value in run.items() if name not in _INDEXES}
