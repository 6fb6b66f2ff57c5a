"""Runs a job from start to end: builds its graph, holds the output folder, runs it, and reads what it published."""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from pipeline.beam import display, internals, remote, stop_signals
from pipeline.beam.engine_checks import check_engine
from pipeline.beam.engines import (
    is_dataflow,
    is_dry_run,
    leaves_job,
    runner_as_written,
    runs_locally,
    worker_location,
)
from pipeline.beam.estimate import Estimate
from pipeline.beam.local import FINISHED_PIECES, WorkerLostError, run_locally
from pipeline.beam.remote import EngineError, JobStoppedError, NotSubmittedError
from pipeline.commit import failures, leases
from pipeline.commit.failures import Failures
from pipeline.commit.finished import Wanted, check_other_files, finished_manifest
from pipeline.commit.leases import Lease, all_held
from pipeline.commit.publish import clean_up
from pipeline.commit.staging import Staging
from pipeline.environment import set_in_environment
from schemas import manifest as manifests
from schemas import storage
from schemas.errors import ClozelineError, UsageError
from schemas.manifest import FolderKind, Manifest, read_manifest
from schemas.storage import remove_folder
from schemas.terminal import print_lines, tell

LOCAL_ATTEMPTS = 2
REMOTE_ATTEMPTS = 3
"""Maximum attempts when workers are lost. Each attempt continues from the pieces that the last one finished."""


@dataclass(frozen=True)
class Execution:
    """A job that Beam can build and run, more than once if needed.

    label: name of the whole graph on an engine's pages.
    graph: the job's steps.
    work: what progress is measured by.
    estimate: what a dry run says about the job's size.
    prepare: called once the output folder is held, before the graph runs.
    published_first: stagings of other folders that the graph makes. Each is published before the job's own.
    """

    label: str
    graph: beam.PTransform
    options: PipelineOptions
    staging: Staging
    work: display.Work
    estimate: Estimate
    prepare: Callable[[], None] = lambda: None
    published_first: tuple[Staging, ...] = ()

    @property
    def stagings(self) -> tuple[Staging, ...]:
        """The stagings of all folders, in the order of publication."""
        return (*self.published_first, self.staging)

    @property
    def failures(self) -> Failures | None:
        """Where steps report permanent errors; None on local runners, where an error ends the job."""
        return None if runs_locally(self.options) else Failures(self.staging)

    def build(self) -> beam.Pipeline:
        """Build the job. Nothing runs yet. Beam makes a folder for its temporary files: see `temporary_files_removed`.

        Raises UsageError if the runner cannot be used. Errors in the graph itself surface here as well.
        """
        set_in_environment(os.environ)  # local workers inherit it
        options = copy.deepcopy(self.options)  # Beam changes them when it submits the job
        with _flags_explained(self.options):
            pipeline = beam.Pipeline(options=options)

        graph = copy.copy(self.graph)  # Beam ties a transform to the first pipeline that it is applied to
        with failures.collected(self.failures):
            _ = pipeline | self.label >> graph
        return pipeline


@contextlib.contextmanager
def _flags_explained(options: PipelineOptions) -> Iterator[None]:
    """Raise UsageError, in one line, for Beam's error about a missing package or about flags that do not fit."""
    try:
        yield
    except (ImportError, ValueError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise UsageError(f"--runner {runner_as_written(options)} cannot be used: {' '.join(lines)}") from error


def run_job(
    command: str, wanted: Wanted, staging: Staging, options: PipelineOptions, plan: Callable[[], Execution]
) -> Manifest | None:
    """Run a job unless its result is finished, and return the published manifest.

    plan: called only if there is work to do.
    The output folder does not change before the graph is built and the engine has answered, and a dry run changes
    nothing at all. Returns None after a dry run, and for a job submitted with --no_wait. Raises UsageError if the
    output folder holds another result or another job works there, and whatever the steps raise.
    """
    finished = finished_manifest(wanted, staging, is_dry_run(options))
    if finished is not None:
        return finished
    execution = plan()
    check_other_files(wanted, staging.output)
    if is_dry_run(execution.options):
        _check(execution, command)
        return None

    check_engine(execution.options)
    with internals.temporary_files_removed():
        return _run(execution, command, wanted.kind)


def _check(execution: Execution, command: str) -> None:
    """Do a dry run: build the job as it would be submitted, and print its estimate."""
    with internals.temporary_files_removed():
        pipeline = execution.build()
        graph = pipeline.to_runner_api()  # before Dataflow's client adapts it
        if is_dataflow(execution.options):
            with _flags_explained(execution.options):
                pipeline.run()  # its client translates the job and checks it, and submits nothing

    print_lines(execution.estimate.lines(command, execution.work, graph))
    print_lines([f"  also writes: {storage.printable(each.output)}" for each in execution.published_first])
    tell(f"dry run. The {command} job can be built; nothing was written or removed.")


def _run(execution: Execution, command: str, kind: FolderKind) -> Manifest | None:
    pipeline = execution.build()
    staging = execution.staging
    with all_held(execution.stagings) as held, _staging_of_refused_jobs_removed(staging), _truth_of(staging):
        execution.prepare()
        if leaves_job(execution.options):
            _submit_and_leave(execution, pipeline, held)
            return None

        # Workers inside the launcher end with it, and so does the job: its lease must not outlive them.
        is_here = worker_location(execution.options) == "here"
        with display.job_progress(command, staging, execution.work):
            try:
                run_attempts(execution, pipeline, None if is_here else partial(_keep_if_killed, held))
            except (JobStoppedError, EngineError) as error:
                # A job that may still run keeps its lease: it needs it to publish, and other jobs must stay out of the
                # folder.
                _keep(held, error.still_runs)
                if not _is_lost_after_publication(error, held[-1]):
                    raise

        manifest = read_manifest(staging.output, kind)
        for each in execution.stagings:
            clean_up(each)
        return manifest


@contextlib.contextmanager
def _truth_of(staging: Staging) -> Iterator[None]:
    """If the block is interrupted after this job's result is in place, say so in the KeyboardInterrupt."""
    url = storage.join(staging.output, manifests.NAME)
    before = storage.modified(url)
    try:
        yield
    except KeyboardInterrupt as interrupt:
        is_finished = False
        with contextlib.suppress(ClozelineError):  # the disk or the store does not answer
            is_finished = storage.modified(url) not in (None, before)
        if not is_finished:
            raise
        with stop_signals.reported_as_finished(storage.printable(staging.output)):
            raise interrupt from None


@contextlib.contextmanager
def _staging_of_refused_jobs_removed(staging: Staging) -> Iterator[None]:
    """Remove a staging folder made in the block if the job could not be submitted. An older one stays."""
    was_there = staging.is_begun()
    try:
        yield
    except NotSubmittedError:
        if not was_there:
            with contextlib.suppress(ClozelineError):  # it only takes up space
                remove_folder(staging.url("").rstrip("/"))
        raise


def _submit_and_leave(execution: Execution, pipeline: beam.Pipeline, held: list[Lease]) -> None:
    """Submit a job whose last step cleans up, because no launcher waits for it."""
    for lease in held:
        lease.leave()  # before the job can reach its last step
    try:
        run_once(execution, pipeline, partial(_keep_if_killed, held))
        _keep(held, True)
    except JobStoppedError as error:
        _keep(held, error.still_runs)
        raise


def _keep(held: list[Lease], keep: bool) -> None:
    for lease in held:
        lease.keep = keep


def _keep_if_killed(held: list[Lease]) -> None:
    for lease in held:
        lease.keep_if_killed()


def _is_lost_after_publication(error: BaseException, lease: Lease) -> bool:
    """Whether only the connection to the job was lost, and its result is in place. lease: of the last folder."""
    is_lost = isinstance(error, EngineError) and error.still_runs
    owner = leases.read(lease.output, lease.token) if is_lost else None
    return owner is not None and owner.published


def run_attempts(execution: Execution, pipeline: beam.Pipeline, submitted: Callable[[], None] | None = None) -> Any:
    """Run a job to its end and return Beam's result. When workers are lost, it is run again: see REMOTE_ATTEMPTS.

    pipeline: the job as it was built, for the first attempt.
    submitted: called once an engine has accepted an attempt.

    Raises a worker's ClozelineError as it was raised there, StorageError if a disk refuses Beam's temporary files,
    EngineError for anything else that an engine reports, and JobStoppedError if Ctrl-C stopped a job that runs in
    another process.
    """
    attempts = LOCAL_ATTEMPTS if runs_locally(execution.options) else REMOTE_ATTEMPTS
    for _ in range(attempts - 1):
        try:
            return run_once(execution, pipeline, submitted)
        except (WorkerLostError, EngineError) as error:
            if not error.may_pass:
                raise
            reason = str(error).partition(FINISHED_PIECES)[0].strip()
            tell(f"{reason} Trying again; finished pieces are reused.")

        try:
            check_engine(execution.options)  # Beam would wait for one that is gone
        except UsageError as error:
            raise EngineError(f"{error} {FINISHED_PIECES}.") from error
        pipeline = execution.build()
    return run_once(execution, pipeline, submitted)


def run_once(execution: Execution, pipeline: beam.Pipeline, submitted: Callable[[], None] | None = None) -> Any:
    """Run one attempt of a job. Returns and raises the same as `run_attempts`, but a lost worker is not tried again."""
    try:
        if execution.failures is None:
            return run_locally(pipeline)

        job = remote.submit(pipeline, execution.options, submitted)
        if leaves_job(execution.options) and not job.is_stopped:
            job.leave()
        else:
            job.follow(execution.failures)
        return job.result
    except ClozelineError:
        raise
    except Exception as error:
        carried = failures.carried_error(str(error))
        if carried is None:
            raise
        raise carried from None
