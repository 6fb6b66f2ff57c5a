"""`python -m pipeline vocab`: what is checked before the jobs start, and how their work is planned.

With --counts there are two jobs: one makes the folder of counts unless it is finished, the other one learns from it.
Without, a single job counts what this vocabulary needs, and keeps the counts in its staging while it runs.
"""

from __future__ import annotations

import sys
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions

from pipeline.flags import recorded_options
from pipeline.jobs.finished import Wanted, finished_manifest
from pipeline.options import VocabJob
from pipeline.runtime import estimate
from pipeline.runtime.engines import chosen_shuffle, path_for_workers, runs_locally
from pipeline.runtime.execution import Execution, execute
from pipeline.runtime.launch import check_launch, is_dry_run, leaves_job
from pipeline.runtime.progress import NOT_MEASURED, Work
from pipeline.runtime.runner import beam_options
from pipeline.runtime.staging import Staging, plan_staging
from pipeline.steps.counts_reader import CountsPlace, tally_of
from pipeline.steps.provenance import Provenance
from pipeline.steps.vocab import VocabularyPlan
from pipeline.steps.word_counts import LOT_NOTES, CountPlan
from pipeline.transforms.vocab import COUNTS_STREAM, CountWords, MakeVocabulary, PublishCounts
from pipeline.vocab.counting import reported_sources
from pipeline.vocab.cut_runs import ALL_RULES, Rules
from pipeline.vocab.rare_words import all_words, estimated_memory
from schemas import manifest as manifests
from schemas import storage
from schemas.errors import UsageError
from schemas.manifest import Input, Manifest, read_manifest, read_root

NO_SEED = 0  # nothing here is random
COUNT_VERSION = 1  # of the rules by which text is counted


def run(job: VocabJob, beam_arguments: list[str], known_flags: list[str]) -> Manifest | None:
    """Run the job to its end and return what it published, as `shard` does. Raises the same errors."""
    check_launch(beam_arguments, known_flags)
    if job.counts is not None:
        _check_counts_folder(job.counts)
    if job.text is not None:
        text = read_root(job.text, "text")
        options = beam_options(beam_arguments, known_flags, text.totals["text_bytes"])
        if job.counts is None:
            return _run_from_text(job, text, options)

        if _must_count(job, text):
            if leaves_job(options) and not is_dry_run(options):
                raise _two_jobs(job)
            counted = _run_counts(job, text, options)
            if counted is None:  # a dry run
                return None

    # Options are made for each job, because Beam empties some of them when it runs.
    counts = read_manifest(str(job.counts), "counts")
    options = beam_options(beam_arguments, known_flags, sum(shard.bytes for shard in counts.shards))
    return _run_from_counts(job, counts, options)


def _run_from_text(job: VocabJob, text: Manifest, options: PipelineOptions) -> Manifest | None:
    """Count what this vocabulary needs, and learn it, in one job."""
    source = Input(path=storage.printable(str(job.text)), fingerprint=text.fingerprint)
    provenance = Provenance(recorded_options(job), [source], NO_SEED)
    staging = _vocabulary_staging(job, {"text": text.fingerprint}, options)
    finished = finished_manifest(Wanted("vocab", provenance, job.overwrite), staging, is_dry_run(options))
    if finished is not None:
        return finished

    rules = Rules(job.model, job.lowercase)
    count_plan = _count_plan(job, text, (rules,), options)
    count = CountWords(count_plan, chosen_shuffle(job.shuffle, options), staging)
    place = CountsPlace("", "", rules, count_plan.partitions, staging)
    plan = VocabularyPlan(job, place, count_plan.sources, staging)

    min_ram = _min_ram(estimated_memory(count_plan.text_bytes), options)
    graph = MakeVocabulary(plan, provenance, count, [], min_ram)
    size = _estimate(count_plan.lots, text.totals["text_bytes"], 1, estimate.VOCABULARY_BYTES)
    return execute(Execution("vocab", "Vocabulary", graph, options, staging, _work(count, text), size), "vocab")


def _run_from_counts(job: VocabJob, counts: Manifest, options: PipelineOptions) -> Manifest | None:
    """Learn from a finished folder of counts."""
    folder = str(job.counts)
    source = Input(path=storage.printable(folder), fingerprint=counts.fingerprint)
    provenance = Provenance(recorded_options(job), [*counts.inputs, source], NO_SEED)
    staging = _vocabulary_staging(job, {"counts": counts.fingerprint}, options)
    finished = finished_manifest(Wanted("vocab", provenance, job.overwrite), staging, is_dry_run(options))
    if finished is not None:
        return finished

    rules = Rules(job.model, job.lowercase)
    tally = tally_of(counts, folder, rules)
    worker_path = path_for_workers("--counts", folder, options)
    place = CountsPlace(worker_path, counts.fingerprint, rules, counts.options["partitions"], staging)
    plan = VocabularyPlan(job, place, counts.statistics["sources"], staging)
    min_ram = _min_ram(all_words(tally).bytes_needed(), options)
    graph = MakeVocabulary(plan, provenance, None, tally.tolist(), min_ram)
    size = _estimate(0, 0, 1, estimate.VOCABULARY_BYTES)
    return execute(Execution("vocab", "Vocabulary", graph, options, staging, NOT_MEASURED, size), "vocab")


def _check_counts_folder(folder: str) -> None:
    """Raise UsageError when a folder holds a finished result that is no counts; it is neither read nor replaced."""
    url = storage.join(folder, manifests.NAME)
    if not storage.exists(url):
        return
    kind = manifests.parse_manifest(storage.read(url), url).kind
    if kind != "counts":
        raise UsageError(
            f"--counts {storage.printable(folder)} holds finished {kind}, and counts need a folder of their own. Give "
            "another folder as --counts; with --text it is made if it does not exist."
        )


def _must_count(job: VocabJob, text: Manifest) -> bool:
    """Whether the folder of counts has to be made first. Raises UsageError when it holds those of another text."""
    folder = str(job.counts)
    if not storage.exists(storage.join(folder, manifests.NAME)):
        return True

    counts = read_manifest(folder, "counts")
    if counts.inputs and counts.inputs[0].fingerprint == text.fingerprint:
        print(f"clozeline: {storage.printable(folder)} holds the counts of this text already.", file=sys.stderr)
        return False
    if job.overwrite:
        return True
    raise UsageError(
        f"--counts {storage.printable(folder)} holds the counts of another text than --text {job.text}. Give another "
        "folder, leave --text out to learn from these counts, or give --overwrite to count again."
    )


def _two_jobs(job: VocabJob) -> UsageError:
    counts = storage.printable(str(job.counts))
    return UsageError(
        f"--no_wait submits one job, and this command needs two: {counts} is not finished, and the vocabulary is "
        "learned from it. Leave --no_wait out, or leave --counts out, which makes the vocabulary in one job."
    )


def _run_counts(job: VocabJob, text: Manifest, options: PipelineOptions) -> Manifest | None:
    """Make a finished folder of counts, for all sets of rules."""
    source = Input(path=storage.printable(str(job.text)), fingerprint=text.fingerprint)
    provenance = Provenance({"version": COUNT_VERSION}, [source], NO_SEED)
    output = path_for_workers("--counts", str(job.counts), options)
    identity = {"options": provenance.options, "text": text.fingerprint}
    staging = plan_staging(output, "counts", identity)
    finished = finished_manifest(Wanted("counts", provenance, job.overwrite), staging, is_dry_run(options))
    if finished is not None:  # by another launcher, since it was looked for
        return finished

    plan = _count_plan(job, text, ALL_RULES, options)
    count = CountWords(plan, chosen_shuffle(job.shuffle, options), staging)
    graph = PublishCounts(count, provenance)
    size = _estimate(plan.lots, text.totals["text_bytes"], plan.partitions * len(ALL_RULES), estimate.COUNTS_BYTES)
    return execute(Execution("counts", "Counts", graph, options, staging, _work(count, text), size), "vocab")


def _vocabulary_staging(job: VocabJob, made_from: dict[str, str], options: PipelineOptions) -> Staging:
    output = path_for_workers("--output", job.output, options)
    identity: dict[str, Any] = {"options": recorded_options(job), **made_from}
    return plan_staging(output, "vocab", identity)


def _count_plan(job: VocabJob, text: Manifest, rules: tuple[Rules, ...], options: PipelineOptions) -> CountPlan:
    return CountPlan(
        text=path_for_workers("--text", str(job.text), options),
        fingerprint=text.fingerprint,
        sources=reported_sources(text.statistics["documents_by_source"]),
        rules=rules,
        num_shards=text.num_shards,
        num_parts=max(1, len(text.parts_of("shards"))),
        text_bytes=text.totals["text_bytes"],
        is_result=job.counts is not None,
    )


def _estimate(lots: int, text_bytes: int, shards: int, output_bytes: int) -> estimate.Estimate:
    seconds = text_bytes / estimate.COUNT_BYTES_PER_SECOND
    return estimate.Estimate(lots, shards, True, text_bytes, output_bytes, seconds)


def _work(count: CountWords, text: Manifest) -> Work:
    """What progress is measured by: the lots of text that are counted."""
    prefix = LOT_NOTES if count.shuffle == "service" else f"{COUNTS_STREAM.name}-"
    return Work(prefix, count.plan.lots, text.totals["text_bytes"])


def _min_ram(needed: int, options: PipelineOptions) -> str:
    """The resource hint of the learning step. Local runners start separate workers for a step with hints."""
    return "" if runs_locally(options) else f"{-(-needed // (1 << 30))}GiB"
