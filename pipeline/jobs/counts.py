"""The folder of word counts that `vocab --counts` keeps: whether it must be made, and the job that makes it.

The plan for counting is here too, because a job that makes a vocabulary from text counts in the same way.
"""

from __future__ import annotations

import sys

from apache_beam.options.pipeline_options import PipelineOptions

from pipeline.beam import estimate
from pipeline.beam.display import Work
from pipeline.beam.engines import chosen_shuffle, is_dry_run, path_for_workers
from pipeline.beam.runner import Execution, execute
from pipeline.jobs.finished import Wanted, finished_manifest
from pipeline.options import VocabJob
from pipeline.runtime.staging import plan_staging
from pipeline.steps.provenance import Provenance
from pipeline.steps.word_counts import LOT_NOTES, CountPlan
from pipeline.transforms.vocab import COUNTS_STREAM, CountWords, PublishCounts
from pipeline.vocab.counting import reported_sources
from pipeline.words.rules import ALL_RULES, Rules, rules_of
from schemas import manifest as manifests
from schemas import storage
from schemas.errors import UsageError
from schemas.manifest import Input, Manifest, read_manifest

NO_SEED = 0  # nothing here is random
COUNT_VERSION = 3  # of the rules by which text is counted; version 2 had no zero width joiners in Unigram's words


def check_counts_folder(folder: str) -> None:
    """Raise UsageError if a folder has a finished result other than counts, which is neither read nor replaced."""
    url = storage.join(folder, manifests.NAME)
    if not storage.exists(url):
        return

    kind = manifests.parse_manifest(storage.read(url), url).kind
    if kind != "counts":
        raise UsageError(
            f"--counts {storage.printable(folder)} holds finished {kind}, and counts need a separate folder. Give "
            "another folder as --counts; with --text it is made if it does not exist."
        )


def must_count(job: VocabJob, text: Manifest) -> bool:
    """Whether the folder of counts must be made first. Raises UsageError if it has the counts of another text."""
    folder = str(job.counts)
    if not storage.exists(storage.join(folder, manifests.NAME)):
        return True

    counts = read_manifest(folder, "counts")
    is_of_text = bool(counts.inputs) and counts.inputs[0].fingerprint == text.fingerprint
    has_rules = rules_of(job.model, job.lowercase).name in counts.statistics["tallies"]
    is_current = has_rules and counts.options.get("version") == COUNT_VERSION
    if is_of_text and job.overwrite and not is_current:
        return True
    if is_of_text and not is_current:
        raise UsageError(
            f"--counts {storage.printable(folder)} holds counts by the rules of an older version. Give --overwrite to "
            "count again."
        )
    if is_of_text:
        print(f"clozeline: {storage.printable(folder)} holds the counts of this text already.", file=sys.stderr)
        return False

    if job.overwrite:
        return True
    raise UsageError(
        f"--counts {storage.printable(folder)} holds the counts of another text than --text {job.text}. Give another "
        "folder, leave --text out to learn from these counts, or give --overwrite to count again."
    )


def needs_two_jobs(job: VocabJob) -> UsageError:
    """Return the error for --no_wait if the folder of counts must be made first."""
    counts = storage.printable(str(job.counts))
    return UsageError(
        f"--no_wait submits one job, and this command needs two: {counts} is not finished, and the vocabulary is "
        "learned from it. Leave --no_wait out, or leave --counts out, which makes the vocabulary in one job."
    )


def run_counts(job: VocabJob, text: Manifest, options: PipelineOptions) -> Manifest | None:
    """Make a finished folder of counts, for all sets of rules. Returns its manifest, or None after a dry run."""
    source = Input(path=storage.printable(str(job.text)), fingerprint=text.fingerprint)
    recorded = {"version": COUNT_VERSION, "language": text.options["language"]}
    provenance = Provenance(recorded, [source], NO_SEED)

    output = path_for_workers("--counts", str(job.counts), options)
    identity = {"options": provenance.options, "text": text.fingerprint}
    staging = plan_staging(output, "counts", identity)

    # Another launcher may have made the folder since `must_count` checked.
    wanted = Wanted("counts", provenance, job.overwrite)
    finished = finished_manifest(wanted, staging, is_dry_run(options))
    if finished is not None:
        return finished

    plan = plan_counts(job, text, ALL_RULES, options)
    count = CountWords(plan, chosen_shuffle(job.shuffle, options), staging)
    execution = Execution(
        kind="counts",
        label="Counts",
        graph=PublishCounts(count, provenance),
        options=options,
        staging=staging,
        work=counting_work(count, text),
        estimate=lambda: estimate.Estimate(
            splits=plan.lots,
            shards=plan.partitions * len(ALL_RULES),
            are_counted=True,
            input_bytes=plan.text_bytes,
            output_bytes=estimate.COUNTS_BYTES,
            seconds=counting_seconds(plan.text_bytes),
        ),
    )
    return execute(execution, "vocab")


def plan_counts(job: VocabJob, text: Manifest, rules: tuple[Rules, ...], options: PipelineOptions) -> CountPlan:
    """Return the plan for counting the words of a text by these rules."""
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


def counting_work(count: CountWords, text: Manifest) -> Work:
    """Return what progress is measured by: the lots of text that are counted."""
    if count.shuffle == "service":
        prefix = LOT_NOTES
    else:
        prefix = f"{COUNTS_STREAM.name}-"
    return Work(prefix, count.plan.lots, text.totals["text_bytes"])


def counting_seconds(text_bytes: int) -> float:
    """Estimate the CPU seconds that counting takes on one core."""
    return text_bytes / estimate.COUNT_BYTES_PER_SECOND
