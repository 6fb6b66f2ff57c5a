"""`python -m pipeline statistics`: checks before the job starts, and the plan of its work."""

from __future__ import annotations

from itertools import islice

from pipeline.beam.display import Work
from pipeline.beam.engines import beam_options, check_launch, chosen_shuffle, is_dry_run, path_for_workers
from pipeline.beam.estimate import STATISTICS_BYTES_PER_TOKEN, STATISTICS_TOKENS_PER_SECOND, Estimate
from pipeline.beam.runner import Execution, execute
from pipeline.flags import recorded_options
from pipeline.jobs.finished import Wanted, finished_manifest
from pipeline.options import StatisticsJob
from pipeline.runtime.staging import plan_staging
from pipeline.steps.provenance import Provenance
from pipeline.steps.statistics_plan import StatisticsPlan, check_size, stride_of
from pipeline.transforms.statistics import STATISTICS_STREAM, WriteStatistics
from schemas import storage
from schemas.cooccurrences import MAX_WINDOW, Counting, counting_of
from schemas.errors import UsageError
from schemas.manifest import Input, Manifest, read_manifest
from schemas.row_checks import read_pairs_vocabulary

NO_SEED = 0  # the sample of rows is the same in every run


def run(job: StatisticsJob, beam_arguments: list[str], known_flags: list[str]) -> Manifest | None:
    """Run the job to its end and return the published manifest, as `shard` does. Raises the same errors."""
    checked = check_launch(beam_arguments, known_flags)
    if job.window > MAX_WINDOW:
        raise UsageError(f"--window {job.window} is more than {MAX_WINDOW}. Tokens that far apart say little.")

    pairs = read_manifest(job.pairs, "pairs")
    counting = counting_of(read_pairs_vocabulary(job.pairs, pairs), job.window)
    source = Input(path=storage.printable(job.pairs), fingerprint=pairs.fingerprint)
    provenance = Provenance(recorded_options(job), [source], NO_SEED)

    input_bytes = sum(shard.bytes for shard in pairs.shards)
    options = beam_options(checked, beam_arguments, input_bytes)
    output = path_for_workers("--output", job.output, options)
    identity = {"options": provenance.options, "pairs": pairs.fingerprint}
    staging = plan_staging(output, "statistics", identity)
    finished = finished_manifest(Wanted("statistics", provenance, job.overwrite), staging, is_dry_run(options))
    if finished is not None:
        return finished

    plan = _plan(job, pairs, path_for_workers("--pairs", job.pairs, options), counting)
    execution = Execution(
        kind="statistics",
        label="Statistics",
        graph=WriteStatistics(plan, provenance, chosen_shuffle(job.shuffle, options), staging),
        options=options,
        staging=staging,
        work=Work(f"{STATISTICS_STREAM.name}-", plan.lots, input_bytes),
        estimate=lambda: _estimate(plan, input_bytes),
    )
    return execute(execution, "statistics")


def _plan(job: StatisticsJob, pairs: Manifest, url: str, counting: Counting) -> StatisticsPlan:
    """Return the plan of the job. url: the folder of pairs, as workers reach it.

    Raises UsageError if it would take too much memory.
    """
    stride = stride_of(pairs.num_shards, pairs.totals["tokens"], job.max_tokens)
    plan = StatisticsPlan(
        pairs=url,
        fingerprint=pairs.fingerprint,
        vocabulary=pairs.options["vocabulary"],
        counting=counting,
        num_shards=pairs.num_shards,
        num_parts=max(1, len(pairs.parts_of("shards"))),
        tokens=pairs.totals["tokens"],
        tokens_read=sum(shard.tokens for shard in islice(pairs.shards, 0, None, stride)),
        max_tokens=job.max_tokens,
        max_cooccurrences=job.max_cooccurrences,
    )
    check_size(plan)
    return plan


def _estimate(plan: StatisticsPlan, input_bytes: int) -> Estimate:
    """Return what a dry run prints about the job."""
    return Estimate(
        splits=plan.lots,
        shards=plan.partitions + 1,
        are_counted=True,
        input_bytes=input_bytes,
        output_bytes=plan.counted_tokens * STATISTICS_BYTES_PER_TOKEN,
        seconds=plan.counted_tokens / STATISTICS_TOKENS_PER_SECOND,
    )
