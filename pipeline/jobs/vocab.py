"""`python -m pipeline vocab`: text shards, or word counts, to a vocabulary.

    counts by word (counts.py) -> learn, in one worker (learn_vocabulary.py) -> describe its use -> a finished folder

With --counts there are two jobs: one makes the folder of counts unless it is finished, and the other learns from it.
Without --counts, a single job counts what this vocabulary needs, and keeps the counts in its staging while it runs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pvalue import AsSingleton, PCollection

from pipeline.beam import estimate
from pipeline.beam.display import NOT_MEASURED
from pipeline.beam.engine_checks import check_launch
from pipeline.beam.engines import (
    beam_options,
    chosen_shuffle,
    is_dry_run,
    leaves_job,
    path_for_workers,
    runs_locally,
)
from pipeline.beam.runner import Execution, run_job
from pipeline.beam.steps import Distribute, call, call_last, call_once
from pipeline.commit.finished import NO_SEED, Provenance, Wanted, folder_as_input
from pipeline.commit.publish import publish_output
from pipeline.commit.reports import Report
from pipeline.commit.staging import Staging, plan_staging
from pipeline.exchange.blocks import Way
from pipeline.flags import recorded_options
from pipeline.jobs.counts import (
    AddTallies,
    CountWords,
    check_counts_folder,
    kind_of_result,
    must_count,
    plan_counts,
    run_counts,
)
from pipeline.jobs.learn_vocabulary import VocabularyPlan, learn_vocabulary, ledger_of, totals_of
from pipeline.jobs.vocab_accents import accents_warning, default_note, with_case_of
from pipeline.options import VocabJob
from pipeline.pairs.published_tokenizer import without_dropout
from pipeline.shard.languages import known_language, language_of_text
from pipeline.vocab.cut_words import check_rules
from pipeline.vocab.extend import check_extendable
from pipeline.vocab.memory import Tally, all_words, estimated_memory
from pipeline.vocab.report import Usage, VocabularyUse, describe_usage
from pipeline.words.rules import Rules, case_of, rules_of
from schemas import FORMAT_VERSION, storage
from schemas.errors import DataError, UsageError
from schemas.manifest import Input, Manifest, Shard, read_manifest, read_root
from schemas.terminal import print_note, tell_warning
from schemas.vocabulary import TOKENIZER_FILE, parse_vocabulary, tokenizer_url
from schemas.vocabulary_kinds import flags_of_others

MAX_DESCRIBERS = 64
"""Maximum workers that describe the vocabulary at the same time. Each needs some 50 ms to read tokenizer.json."""


# Options, in the launcher


def run(job: VocabJob, beam_arguments: list[str], known_flags: list[str]) -> Manifest | None:
    """Run the job to its end and return the published manifest, as `shard` does. Raises the same errors."""
    checked = check_launch(beam_arguments, known_flags)
    if job.counts is not None:
        check_counts_folder(job.counts, job.overwrite)
    job, extended = resolve_extension(job)
    job = _resolve_case(job)

    if job.text is not None:
        text = read_root(job.text, "text")
        options = beam_options(checked, beam_arguments, text.totals["text_bytes"])
        if job.counts is None:
            return _run_from_text(job, text, extended, options)

        if must_count(job, text):
            if leaves_job(options) and not is_dry_run(options):
                counts_folder = storage.printable(str(job.counts))
                raise UsageError(
                    f"--no_wait submits one job, and this command needs two: {counts_folder} is not finished, and the "
                    "vocabulary is learned from it. Leave --no_wait out, or leave --counts out, which makes the "
                    "vocabulary in one job."
                )

            _check_both_outputs(job)
            counted = run_counts(job, text, options)
            if counted is None:  # a dry run
                return None

    counts = read_manifest(str(job.counts), "counts")
    bytes_of_counts = sum(shard.bytes for shard in counts.shards)
    options = beam_options(checked, beam_arguments, bytes_of_counts)
    return _run_from_counts(job, counts, extended, options)


def _resolve_case(job: VocabJob) -> VocabJob:
    """Return the job with the case and accents of its text's language, after saying what that does to the text."""
    if job.text is not None:
        source = read_root(job.text, "text")
    else:
        source = read_manifest(str(job.counts), "counts")

    language = known_language(language_of_text(source))
    resolved = with_case_of(job, language)
    note = default_note(job, resolved, language)
    if note:
        print_note(note)
    warning = accents_warning(resolved, source)
    if warning:
        tell_warning(warning)
    return resolved


def resolve_extension(job: VocabJob) -> tuple[VocabJob, list[Input]]:
    """Return the job with the model, case and size that follow from the folder, and the folder as an input.

    A job that extends nothing is returned unchanged. Raises UsageError if the folder is the output, and DataError if it
    has no vocabulary, or one that cannot be extended.
    """
    if job.extend is None:
        return job, []
    _check_output(job.output, job.extend)

    url = tokenizer_url(job.extend)
    stored = storage.read(url)
    parse_vocabulary(stored, url)  # refuses what is no tokenizer
    tokenizer_json, _ = without_dropout(stored, url)
    vocabulary = parse_vocabulary(tokenizer_json, url)
    check_rules(tokenizer_json, vocabulary.model, storage.printable(job.extend))
    check_extendable(tokenizer_json, vocabulary, storage.printable(url))

    lowercase, keep_accents = case_of(json.loads(tokenizer_json))
    resolved = replace(
        job,
        model=vocabulary.model,
        lowercase=rules_of(vocabulary.model, lowercase).lowercase,
        # Unigram's folder decides on its own.
        keep_accents=vocabulary.model == "wordpiece" and lowercase and keep_accents,
        size=vocabulary.size + int(job.add or 0),
    )
    return resolved, [folder_as_input(job.extend, vocabulary.fingerprint)]


def _check_output(output: str, extended: str) -> None:
    """Raise UsageError if the output is the extended folder: the same command again would then extend the result."""
    if _place(output) == _place(extended):
        raise UsageError(
            f"--output {storage.printable(output)} is the folder that --extend names, and the same command again would "
            "extend its own result. Give another folder."
        )


def _check_both_outputs(job: VocabJob) -> None:
    """Raise the error with which the vocabulary's own job would end, before the words are counted for hours."""
    kind = kind_of_result(job.output, job.overwrite)
    if kind is None or job.overwrite:
        storage.check_writable_folder(job.output)
    if _place(job.output) == _place(str(job.counts)) or kind not in (None, "vocab"):
        raise UsageError(
            f"--output {storage.printable(job.output)} is for a vocabulary, and "
            f"{'--counts is the same folder' if kind is None else f'holds finished {kind}'}. Give a separate folder."
        )


def _place(folder: str) -> tuple[type, str]:
    fs, path = storage.filesystem(folder)
    return type(fs), os.path.realpath(path) if storage.is_local(folder) else path.rstrip("/")


# Plan, in the launcher


def _run_from_text(job: VocabJob, text: Manifest, extended: list[Input], options: PipelineOptions) -> Manifest | None:
    """Count what this vocabulary needs and learn it, in one job."""

    def plan(provenance: Provenance, staging: Staging) -> MakeVocabulary:
        count_plan = plan_counts(job, text, (rules_of(job.model, job.lowercase, job.keep_accents),), options)
        return MakeVocabulary(
            plan=VocabularyPlan(_for_workers(job, options), count_plan.partitions, count_plan.sources, staging),
            provenance=provenance,
            count=CountWords(count_plan, Way(chosen_shuffle(job.shuffle, options), staging)),
            tally=[],  # known once the text is counted
            min_ram=_min_ram(estimated_memory(text.totals["text_bytes"], job.model), options),
        )

    sources = [folder_as_input(str(job.text), text.fingerprint), *extended]
    return _run_job(job, sources, options, plan)


def _run_from_counts(
    job: VocabJob, counts: Manifest, extended: list[Input], options: PipelineOptions
) -> Manifest | None:
    folder = str(job.counts)

    def plan(provenance: Provenance, staging: Staging) -> MakeVocabulary:
        tally = tally_of(counts, folder, rules_of(job.model, job.lowercase, job.keep_accents))
        vocabulary = VocabularyPlan(
            job=_for_workers(job, options),
            partitions=counts.options["partitions"],
            sources=counts.statistics["sources"],
            staging=staging,
            counts=path_for_workers("--counts", folder, options),
            fingerprint=counts.fingerprint,
        )
        min_ram = _min_ram(all_words(tally).bytes_needed(job.model), options)
        return MakeVocabulary(vocabulary, provenance, count=None, tally=tally.tolist(), min_ram=min_ram)

    sources = [*counts.inputs, folder_as_input(folder, counts.fingerprint), *extended]
    return _run_job(job, sources, options, plan)


def tally_of(counts: Manifest, folder: str, rules: Rules) -> Tally:
    """Return the tally of a finished folder of counts. Raises DataError if it has none for these rules."""
    tallies = counts.statistics["tallies"]
    if rules.name not in tallies:
        raise DataError(
            f"{folder} holds no {rules.name} words, only {', '.join(tallies)}. Count the text again with --overwrite."
        )
    return np.array(tallies[rules.name], dtype=np.int64)


def _run_job(
    job: VocabJob,
    sources: list[Input],
    options: PipelineOptions,
    plan: Callable[[Provenance, Staging], MakeVocabulary],
) -> Manifest | None:
    """Run the job that learns. sources: the text or the counts, and an extended folder."""
    recorded = _recorded_options(job)
    provenance = Provenance(recorded, sources, NO_SEED)
    output = path_for_workers("--output", job.output, options)
    staging = plan_staging(output, "vocab", {"options": recorded, "inputs": [source.fingerprint for source in sources]})

    def execution() -> Execution:
        graph = plan(provenance, staging)
        count = graph.count
        seconds = 0.0 if count is None else count.plan.seconds
        return Execution(
            label="Vocabulary",
            graph=graph,
            options=options,
            staging=staging,
            work=NOT_MEASURED if count is None else count.work(),
            estimate=estimate.Estimate(1, estimate.VOCABULARY_BYTES, seconds),
        )

    return run_job("vocab", Wanted("vocab", provenance, job.overwrite), staging, options, execution)


def _recorded_options(job: VocabJob) -> dict[str, Any]:
    """Return the options that the manifest records, without those for other kinds."""
    others = flags_of_others(job.model)
    options = {name: value for name, value in recorded_options(job).items() if name not in others}
    if job.model == "wordpiece" and not job.keep_accents:
        del options["keep_accents"]  # as before it had this option
    if job.extend is None:
        del options["add"]
    return options


def _for_workers(job: VocabJob, options: PipelineOptions) -> VocabJob:
    if job.extend is None:
        return job
    return replace(job, extend=path_for_workers("--extend", job.extend, options))


def _min_ram(needed: int, options: PipelineOptions) -> str:
    """Return the learning step's resource hint; empty for local runners, which start extra workers for hints."""
    if runs_locally(options):
        return ""
    gigabytes = -(-needed // (1 << 30))  # rounded up
    return f"{gigabytes}GiB"


# The graph


@dataclass
class MakeVocabulary(beam.PTransform):
    """Counts -> a finished vocabulary. Learning is one step on one worker, which needs memory for all words.

    count: counts the text first; None if the counts are finished, and then `tally` has the tally of their words.
    min_ram: the memory for learning, as Beam's resource hint writes it; empty for a runner without resource hints.
    """

    plan: VocabularyPlan
    provenance: Provenance
    count: CountWords | None
    tally: list[Any]
    min_ram: str

    def expand(self, pbegin: Any) -> PCollection:
        learn = call_once(learn_vocabulary, AsSingleton(self._tallies(pbegin)), self.plan)
        if self.min_ram:
            learn = learn.with_resource_hints(min_ram=self.min_ram)

        learned = AsSingleton(pbegin | "Learn" >> learn)
        usage = (
            pbegin
            | "Partitions" >> beam.Create(list(enumerate(_groups(self.plan.partitions))), reshuffle=False)
            | "Distribute partitions" >> Distribute()
            | "Describe" >> call(describe_partitions, learned, self.plan)
            | "Add usage" >> beam.CombineGlobally(add_usages)
        )
        return pbegin | "Finish" >> call_last(
            publish_vocabulary, learned, AsSingleton(usage), self.plan, self.provenance
        )

    def _tallies(self, pbegin: Any) -> PCollection:
        if self.count is None:
            return pbegin | "Tally" >> beam.Create([[self.tally]])
        return pbegin | "Count words" >> self.count | "Tallies" >> AddTallies()


def _groups(partitions: int) -> list[list[int]]:
    """Divide partitions into groups, each described by one worker."""
    groups = max(1, min(MAX_DESCRIBERS, partitions // 8))
    return [list(range(first, partitions, groups)) for first in range(groups)]


# What workers do, and the last step


def describe_partitions(partitions: list[int], _: Report, plan: VocabularyPlan) -> Usage:
    """Encode the words of some partitions with the learned vocabulary, and return how often its tokens are used."""
    use = VocabularyUse(plan.staging.piece(TOKENIZER_FILE), len(plan.sources))
    reader = plan.open_counts()
    for partition in partitions:
        use.add(reader.read(partition))
    return use.usage


def add_usages(usages: Iterable[Usage]) -> Usage:
    """Sum the usages of partitions, in any order and grouping. The sum of no usages is an empty Usage."""
    total = Usage.empty(0, 0)
    for usage in usages:
        total = total.plus(usage)
    return total


def publish_vocabulary(learned: Report, usage: Usage, plan: VocabularyPlan, provenance: Provenance) -> None:
    tokenizer_json = plan.staging.piece(TOKENIZER_FILE)
    vocabulary = parse_vocabulary(tokenizer_json, TOKENIZER_FILE)
    entries = sorted(learned["entries"], key=lambda entry: entry["path"])

    statistics = describe_usage(vocabulary, usage, plan.sources)
    extension = {"extension": learned["extension"]} if "extension" in learned else {}
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        kind="vocab",
        options=provenance.options,
        inputs=provenance.inputs,
        seed=provenance.seed,
        fingerprint=vocabulary.fingerprint,
        shards=[Shard(**entry) for entry in entries],
        totals=totals_of(learned),
        statistics={**statistics, **extension, "listed_from_count": learned["listed_count"]},
        ledger=ledger_of(learned),
    )
    publish_output(plan.staging, manifest)
