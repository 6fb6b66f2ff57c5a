"""Runs a job from start to end: builds its graph, holds the output folder, runs it, and reads what it published."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions

from pipeline.runtime import (
    beam_internals,
    cloud_access,
    lease_files,
    leases,
    progress,
    publication,
    runner,
    shard_destination,
    stop_signals,
)
from pipeline.runtime.engine_checks import check_engine
from pipeline.runtime.engines import worker_location
from pipeline.runtime.estimate import Estimate
from pipeline.runtime.launch import is_dataflow, is_dry_run, leaves_job
from pipeline.runtime.lease_group import LeaseGroup, all_held
from pipeline.runtime.staging import Staging
from pipeline.runtime.submitted_job import EngineError, JobStoppedError, NotSubmittedError
from schemas import manifest as manifests
from schemas import storage
from schemas.errors import ClozelineError
from schemas.manifest import FolderKind, Manifest, read_manifest
from schemas.storage import remove_folder
from schemas.terminal import print_lines


def _nothing() -> None:
    """Default of `Execution.prepare`."""


@dataclass(frozen=True)
class Execution:
    """What a job needs to run.

    kind: the kind of folder that the job makes.
    label: name of the whole graph on an engine's pages.
    graph: the job's steps.
    work: what progress is measured by.
    estimate: what a dry run says about the job's size.
    prepare: called once the output folder is held, before the graph runs.
    published_first: stagings of other folders that the graph makes. Each is published before the job's own.
    """

    kind: FolderKind
    label: str
    graph: beam.PTransform
    options: PipelineOptions
    staging: Staging
    work: progress.Work
    estimate: Estimate
    prepare: Callable[[], None] = _nothing
    published_first: tuple[Staging, ...] = ()

    @property
    def stagings(self) -> tuple[Staging, ...]:
        """The stagings of all folders, in the order of publication."""
        return (*self.published_first, self.staging)


def execute(execution: Execution, command: str) -> Manifest | None:
    """Run a job and return its published manifest. None after a dry run, and for a job submitted with --no_wait.

    The output folder does not change before the graph is built and the engine has answered, and a dry run changes
    nothing at all. Raises UsageError if another job works in the output folder, and whatever the steps raise.
    """
    job = runner.BeamJob(execution.label, execution.graph, execution.options, execution.staging)
    if is_dry_run(execution.options):
        _check(job, execution, command)
        return None

    check_engine(execution.options)
    if is_dataflow(execution.options):
        cloud_access.check_buckets(_folders(execution))
    files = contextlib.nullcontext() if job.failures is None else beam_internals.temporary_files_removed()
    with files:
        return _run(execution, job, command)


def _run(execution: Execution, job: runner.BeamJob, command: str) -> Manifest | None:
    pipeline = job.build()
    staging = execution.staging
    with all_held(execution.stagings) as held, _staging_of_jobs_that_start(staging), _truth_of(staging):
        for each in execution.stagings:
            shard_destination.decide(each.output, each.job)
            publication.begin(each)
        execution.prepare()
        if leaves_job(execution.options):
            _submit_and_leave(job, pipeline, held)
            return None

        with progress.job_progress(command, staging, execution.work) as shown:
            try:
                runner.run_job(job, pipeline, _Submitted(execution.options, held, shown))
            except (JobStoppedError, EngineError) as error:
                # A job that may still run keeps its lease: it needs it to publish, and other jobs must stay out of the
                # folder.
                held.keep(error.still_runs)
                if not _is_lost_after_publication(error, held.last):
                    raise

        manifest = read_manifest(staging.output, execution.kind)
        for each in execution.stagings:
            publication.clean_up(each)
        return manifest


@contextlib.contextmanager
def _truth_of(staging: Staging) -> Iterator[None]:
    """If the block is interrupted after this job's result is in place, say so in the KeyboardInterrupt."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        if not publication.is_in_place(staging):
            raise
        with stop_signals.reported_as_finished(storage.printable(staging.output)):
            raise interrupt from None


@contextlib.contextmanager
def _staging_of_jobs_that_start(staging: Staging) -> Iterator[None]:
    """Remove a staging folder made in the block if the job could not be submitted. An older one stays."""
    was_there = staging.is_begun()
    try:
        yield
    except NotSubmittedError:
        if not was_there:
            with contextlib.suppress(ClozelineError):  # it only takes up space
                remove_folder(staging.url("").rstrip("/"), manifests.NAME)
        raise


def _folders(execution: Execution) -> dict[str, str]:
    """Return the folders that the job writes, by flag."""
    folders = {"--output": execution.staging.output}
    if is_dataflow(execution.options):
        folders["--temp_location"] = str(execution.options.view_as(GoogleCloudOptions).temp_location)
    return folders


def _check(job: runner.BeamJob, execution: Execution, command: str) -> None:
    """Do a dry run: build the job as it would be submitted, and print its estimate."""
    with beam_internals.no_temporary_files():
        pipeline = job.build()
        graph = pipeline.to_runner_api()  # before Dataflow's client adapts it
        runner.check_only(pipeline)
    unknown = cloud_access.check_buckets(_folders(execution))

    print_lines(execution.estimate.lines(command, graph))
    print_lines([f"  also writes: {storage.printable(each.output)}" for each in execution.published_first])
    for line in unknown:
        print(f"clozeline: {line}", file=sys.stderr)
    print(f"clozeline: dry run. The {command} job can be built; nothing was written or removed.", file=sys.stderr)


def _submit_and_leave(job: runner.BeamJob, pipeline: beam.Pipeline, held: LeaseGroup) -> None:
    """Submit a job whose last step cleans up, because no launcher waits for it."""
    held.leave()  # before the job can reach its last step
    try:
        runner.run_once(job, pipeline, lambda result: held.keep_if_killed())
        held.keep(True)
    except JobStoppedError as error:
        held.keep(error.still_runs)
        raise


def _is_lost_after_publication(error: BaseException, lease: leases.Lease) -> bool:
    """Whether only the connection to the job was lost, and its result is in place."""
    is_lost = isinstance(error, EngineError) and error.still_runs
    owner = lease_files.read(lease.output, lease.token) if is_lost else None
    return owner is not None and owner.published


@dataclass(frozen=True)
class _Submitted:
    """Callback for Beam's result of each attempt that an engine has accepted."""

    options: PipelineOptions
    held: LeaseGroup
    shown: progress.JobProgress

    def __call__(self, result: Any) -> None:
        # Workers inside the launcher end with it, and so does the job: its lease must not outlive them.
        if worker_location(self.options) != "here":
            self.held.keep_if_killed()
        self.shown.follow(result)
