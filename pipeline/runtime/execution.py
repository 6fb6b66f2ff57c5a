"""The course of a job: its graph is built, the output folder is held, the graph runs, and what it published is read."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from pipeline.runtime import leases, placement, progress, runner
from pipeline.runtime.remote_jobs import JobStoppedError
from pipeline.runtime.staging import Staging
from schemas.manifest import FolderKind, Manifest, read_manifest


def _nothing() -> None:
    """What most jobs prepare."""


@dataclass(frozen=True)
class Execution:
    """What a job needs to run.

    kind: of the folder that it makes.
    label: of the whole graph, for engines' pages.
    graph: the job's steps.
    weights: the bytes of work behind each report that will appear in staging, for progress.
    prepare: called once the output folder is held, before the graph runs.
    """

    kind: FolderKind
    label: str
    graph: beam.PTransform
    options: PipelineOptions
    staging: Staging
    weights: Mapping[str, int]
    prepare: Callable[[], None] = _nothing


def execute(work: Execution, command: str, finish: Callable[[], None] | None = None) -> Manifest | None:
    """Run a job, then `finish` in this process, and return what was published. None after a dry run.

    Nothing in the output folder changes before the graph is built, and a dry run changes nothing at all. Raises
    UsageError when another job works in the output folder, and whatever the steps raise.
    """
    job = runner.BeamJob(work.label, work.graph, work.options, work.staging)
    pipeline = job.build()
    if runner.is_dry_run(work.options):
        runner.check_only(pipeline)
        print(
            f"clozeline: dry run. The {command} job can be built; nothing was read, written or removed.",
            file=sys.stderr,
        )
        return None

    output = work.staging.output
    with leases.held(output, work.staging.token) as lease:
        placement.decide(output, work.staging.job)
        work.prepare()
        with progress.job_progress(command, work.staging, work.weights) as shown:
            try:
                runner.run_job(job, pipeline, shown.follow)
            except JobStoppedError as stopped:
                # A job that may still run must be able to publish, and no other job may meet it in the folder.
                lease.keep = stopped.still_runs
                raise

            if finish is not None:
                finish()
        return read_manifest(output, work.kind)
