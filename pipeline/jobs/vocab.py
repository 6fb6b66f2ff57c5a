"""`python -m pipeline vocab`: checks before the jobs start, and the plan of their work.

With --counts there are two jobs: one makes the folder of counts unless it is finished (counts.py), and the other learns
from it. Without --counts, a single job counts what this vocabulary needs, and keeps the counts in its staging while it
runs.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions

from pipeline.beam import estimate
from pipeline.beam.display import NOT_MEASURED
from pipeline.beam.engines import (
    beam_options,
    check_launch,
    chosen_shuffle,
    is_dry_run,
    leaves_job,
    path_for_workers,
    runs_locally,
)
from pipeline.beam.runner import Execution, execute
from pipeline.flags import recorded_options
from pipeline.jobs.counts import (
    NO_SEED,
    check_counts_folder,
    counting_seconds,
    counting_work,
    must_count,
    needs_two_jobs,
    plan_counts,
    run_counts,
)
from pipeline.jobs.finished import Wanted, finished_manifest
from pipeline.jobs.vocab_accents import accents_warning, default_note, with_case_of
from pipeline.jobs.vocab_extension import resolve_extension
from pipeline.options import VocabJob
from pipeline.runtime.staging import Staging, plan_staging
from pipeline.shard.languages import find_language
from pipeline.steps.counts_reader import CountsPlace, tally_of
from pipeline.steps.provenance import Provenance
from pipeline.steps.vocab import VocabularyPlan
from pipeline.transforms.vocab import CountWords, MakeVocabulary
from pipeline.vocab.memory import all_words, estimated_memory
from pipeline.words.rules import rules_of
from schemas import storage
from schemas.manifest import Input, Manifest, read_manifest, read_root


def run(job: VocabJob, beam_arguments: list[str], known_flags: list[str]) -> Manifest | None:
    """Run the job to its end and return the published manifest, as `shard` does. Raises the same errors."""
    checked = check_launch(beam_arguments, known_flags)
    if job.counts is not None:
        check_counts_folder(job.counts)
    job, extended = resolve_extension(job)
    job = _resolve_case(job)

    if job.text is not None:
        text = read_root(job.text, "text")
        options = beam_options(checked, beam_arguments, text.totals["text_bytes"])
        if job.counts is None:
            return _run_from_text(job, text, extended, options)

        if must_count(job, text):
            if leaves_job(options) and not is_dry_run(options):
                raise needs_two_jobs(job)

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

    language = find_language(source.options.get("language", "en"))
    resolved = with_case_of(job, language)
    note = default_note(job, resolved, language)
    if note:
        print(note, file=sys.stderr)
    warning = accents_warning(resolved, source)
    if warning:
        print(f"clozeline: warning: {warning}", file=sys.stderr)
    return resolved


def _run_from_text(job: VocabJob, text: Manifest, extended: list[Input], options: PipelineOptions) -> Manifest | None:
    """Count what this vocabulary needs and learn it, in one job."""
    source = Input(path=storage.printable(str(job.text)), fingerprint=text.fingerprint)
    provenance = Provenance(_recorded_options(job), [source, *extended], NO_SEED)
    staging = _plan_staging(job, {"text": text.fingerprint, **_fingerprint_of(extended)}, options)

    finished = finished_manifest(Wanted("vocab", provenance, job.overwrite), staging, is_dry_run(options))
    if finished is not None:
        return finished

    rules = rules_of(job.model, job.lowercase)
    count_plan = plan_counts(job, text, (rules,), options)
    count = CountWords(count_plan, chosen_shuffle(job.shuffle, options), staging)

    # These counts are in staging, not in a folder with a path and a fingerprint.
    place = CountsPlace(
        folder="",
        fingerprint="",
        rules=rules,
        partitions=count_plan.partitions,
        staging=staging,
    )
    graph = MakeVocabulary(
        plan=VocabularyPlan(_for_workers(job, options), place, count_plan.sources, staging),
        provenance=provenance,
        count=count,
        tally=[],  # known once the text is counted
        min_ram=_min_ram(estimated_memory(count_plan.text_bytes, job.model), options),
    )
    execution = Execution(
        kind="vocab",
        label="Vocabulary",
        graph=graph,
        options=options,
        staging=staging,
        work=counting_work(count, text),
        estimate=lambda: _estimate(count_plan.lots, count_plan.text_bytes),
    )
    return execute(execution, "vocab")


def _run_from_counts(
    job: VocabJob, counts: Manifest, extended: list[Input], options: PipelineOptions
) -> Manifest | None:
    """Learn from a finished folder of counts."""
    folder = str(job.counts)
    source = Input(path=storage.printable(folder), fingerprint=counts.fingerprint)
    provenance = Provenance(_recorded_options(job), [*counts.inputs, source, *extended], NO_SEED)
    staging = _plan_staging(job, {"counts": counts.fingerprint, **_fingerprint_of(extended)}, options)

    finished = finished_manifest(Wanted("vocab", provenance, job.overwrite), staging, is_dry_run(options))
    if finished is not None:
        return finished

    rules = rules_of(job.model, job.lowercase)
    tally = tally_of(counts, folder, rules)
    place = CountsPlace(
        folder=path_for_workers("--counts", folder, options),
        fingerprint=counts.fingerprint,
        rules=rules,
        partitions=counts.options["partitions"],
        staging=staging,
    )
    graph = MakeVocabulary(
        plan=VocabularyPlan(_for_workers(job, options), place, counts.statistics["sources"], staging),
        provenance=provenance,
        count=None,
        tally=tally.tolist(),
        min_ram=_min_ram(all_words(tally).bytes_needed(job.model), options),
    )
    execution = Execution(
        kind="vocab",
        label="Vocabulary",
        graph=graph,
        options=options,
        staging=staging,
        work=NOT_MEASURED,
        estimate=lambda: _estimate(lots=0, text_bytes=0),
    )
    return execute(execution, "vocab")


def _recorded_options(job: VocabJob) -> dict[str, Any]:
    """Return the options that the manifest records. Other models omit Unigram's options, which were added later."""
    options = recorded_options(job)
    if job.model != "unigram":
        del options["special_tokens"]
        del options["keep_accents"]
    if job.extend is None:
        del options["add"]
    return options


def _fingerprint_of(extended: list[Input]) -> dict[str, str]:
    return {f"extended {i}": str(source.fingerprint) for i, source in enumerate(extended)}


def _for_workers(job: VocabJob, options: PipelineOptions) -> VocabJob:
    """Return the job with a path to the extended folder that workers can open."""
    if job.extend is None:
        return job
    return replace(job, extend=path_for_workers("--extend", job.extend, options))


def _plan_staging(job: VocabJob, made_from: dict[str, str], options: PipelineOptions) -> Staging:
    """Plan the staging of a vocabulary. `made_from`: fingerprints of the text or counts, and of an extended folder."""
    output = path_for_workers("--output", job.output, options)
    identity: dict[str, Any] = {"options": _recorded_options(job), **made_from}
    return plan_staging(output, "vocab", identity)


def _estimate(lots: int, text_bytes: int) -> estimate.Estimate:
    """Estimate a job that counts this much text (may be 0) and learns a vocabulary from it."""
    return estimate.Estimate(
        splits=lots,
        shards=1,
        are_counted=True,
        input_bytes=text_bytes,
        output_bytes=estimate.VOCABULARY_BYTES,
        seconds=counting_seconds(text_bytes),
    )


def _min_ram(needed: int, options: PipelineOptions) -> str:
    """Return the learning step's resource hint; empty for local runners, which start extra workers for hints."""
    if runs_locally(options):
        return ""
    gigabytes = -(-needed // (1 << 30))  # rounded up
    return f"{gigabytes}GiB"
