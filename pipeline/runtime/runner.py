"""Builds and runs a job with Beam: chooses the runner, the number of workers and Beam's flags.

Importing this module changes no logger; terminal_logs.py decides what a terminal shows.
"""

from __future__ import annotations

import copy
import errno
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions

from pipeline.commit import failures
from pipeline.commit.failures import Failures
from pipeline.commit.staging import Staging
from pipeline.runtime import beam_internals, local_workers, remote_jobs
from pipeline.runtime.carried_errors import carried_error
from pipeline.runtime.engine_checks import check_engine
from pipeline.runtime.engines import runner_as_written, runs_locally, set_engine_defaults
from pipeline.runtime.launch import check_client, is_dataflow, leaves_job
from pipeline.runtime.local_workers import FINISHED_PIECES, WorkerLostError
from pipeline.runtime.runner_names import DEFAULT_RUNNER
from pipeline.runtime.submitted_job import EngineError
from pipeline.runtime.worker_environment import set_in_environment
from schemas.errors import ClozelineError, StorageError, UsageError
from schemas.host_limits import usable_cores

WORTH_A_PROCESS = 4 << 20  # bytes of input; with less, starting worker processes takes longer than the work

LOCAL_ATTEMPTS = 2
REMOTE_ATTEMPTS = 3
"""Maximum attempts when workers are lost. Each attempt continues from the pieces that the last one finished."""

REFUSED_BY_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO)


def beam_options(checked: PipelineOptions, arguments: list[str], input_bytes: int) -> PipelineOptions:
    """Return a copy of a job's options with the number of workers and the engine's defaults that its flags leave open.

    checked: what `check_flags` returned for these `arguments`.
    By default the job runs on this machine, with one process per core when the input is large enough. Raises UsageError
    for --num_workers on this machine, and for workers without Clozeline.
    """
    options = copy.deepcopy(checked)
    runner = runner_as_written(options)
    given = {argument.partition("=")[0] for argument in arguments}
    if "--num_workers" in given and runs_locally(options):
        raise UsageError(
            f"--num_workers has no effect with {runner}, which runs on this machine. "
            "Use --direct_num_workers N for N worker processes."
        )

    configures_workers = any(flag.startswith("--direct_") for flag in given)
    if runner == DEFAULT_RUNNER and not configures_workers:
        is_large = input_bytes >= WORTH_A_PROCESS
        options.view_as(DirectOptions).direct_num_workers = usable_cores() if is_large else 1
    set_engine_defaults(options, given)
    return options


@dataclass(frozen=True)
class BeamJob:
    """A job that Beam can build and run, more than once if needed. label: name of the graph on an engine's pages."""

    label: str
    graph: beam.PTransform
    options: PipelineOptions
    staging: Staging

    @property
    def failures(self) -> Failures | None:
        """Where steps report permanent errors; None on local runners, where an error ends the job."""
        return None if runs_locally(self.options) else Failures(self.staging)

    def build(self) -> beam.Pipeline:
        """Build the job. Nothing runs and nothing is written yet.

        Raises UsageError if the runner cannot be used. Errors in the graph itself surface here as well.
        """
        check_client(self.options)
        set_in_environment(os.environ)  # local workers inherit it
        options = copy.deepcopy(self.options)  # Beam changes them when it submits the job
        try:
            pipeline = beam.Pipeline(options=options)
        except (ImportError, ValueError) as error:  # a package is missing, or flags do not fit together
            raise UsageError(f"--runner {runner_as_written(options)} cannot be used: {_in_one_line(error)}") from error

        graph = copy.copy(self.graph)  # Beam ties a transform to the first pipeline that it is applied to
        with failures.collected(self.failures):
            _ = pipeline | self.label >> graph
        return pipeline


def _in_one_line(error: Exception) -> str:
    """Return Beam's message about flags, which has one line per fault, as a single line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines)


def _use_own_workers(pipeline: beam.Pipeline, attempt: str) -> None:
    """Make a local job with several processes run in our worker processes, which end with the attempt."""
    direct = pipeline.options.view_as(DirectOptions)
    if runner_as_written(pipeline.options) != DEFAULT_RUNNER or direct.direct_num_workers == 1:
        return
    if direct.direct_running_mode == "multi_threading":
        return

    # In this mode Beam starts the runner's own environment once per worker.
    direct.direct_running_mode = "in_memory"
    pipeline.runner = beam_internals.runner_with_workers(local_workers.worker_command(attempt))


def check_only(pipeline: beam.Pipeline) -> None:
    """Let Dataflow translate the job without submitting it. Other runners have no dry run; building is their check.

    Raises UsageError for flags whose values Dataflow's client rejects.
    """
    if not is_dataflow(pipeline.options):
        return
    try:
        pipeline.run()
    except (ImportError, ValueError) as error:
        raise UsageError(
            f"--runner {runner_as_written(pipeline.options)} cannot be used: {_in_one_line(error)}"
        ) from error


def run_job(job: BeamJob, pipeline: beam.Pipeline, submitted: Callable[[Any], None] | None = None) -> Any:
    """Run a job to its end and return Beam's result. When workers are lost, it is run again: see REMOTE_ATTEMPTS.

    pipeline: the job as it was built, for the first attempt.
    submitted: called with Beam's result of each attempt that runs on an engine, while it runs.

    Raises a worker's ClozelineError as it was raised there, StorageError if a disk refuses Beam's temporary files,
    EngineError for anything else that an engine reports, and JobStoppedError if Ctrl-C stopped a job that runs in
    another process.
    """
    attempts = LOCAL_ATTEMPTS if runs_locally(job.options) else REMOTE_ATTEMPTS
    for _ in range(attempts - 1):
        try:
            return run_once(job, pipeline, submitted)
        except (WorkerLostError, EngineError) as error:
            if not error.may_pass:
                raise
            reason = str(error).partition(FINISHED_PIECES)[0].strip()
            print(f"clozeline: {reason} Trying again; finished pieces are reused.", file=sys.stderr, flush=True)
            _check_again(job.options)
            pipeline = job.build()
    return run_once(job, pipeline, submitted)


def _check_again(options: PipelineOptions) -> None:
    """Raise EngineError if the engine no longer passes `check_engine`, because Beam would wait for it."""
    try:
        check_engine(options)
    except UsageError as error:
        raise EngineError(f"{error} {FINISHED_PIECES}.") from error


def run_once(job: BeamJob, pipeline: beam.Pipeline, submitted: Callable[[Any], None] | None = None) -> Any:
    """Run one attempt of a job. Returns and raises the same as `run_job`."""
    try:
        if job.failures is None:
            return _run_locally(pipeline)
        return _run_remotely(job, pipeline, job.failures, submitted)
    except ClozelineError:
        raise
    except Exception as error:
        carried = carried_error(str(error))
        if carried is None:
            raise
        raise carried from None


def _run_locally(pipeline: beam.Pipeline) -> Any:
    try:
        with local_workers.supervised() as attempt:
            _use_own_workers(pipeline, attempt)
            result = pipeline.run()
            result.wait_until_finish()
            return result
    except OSError as error:
        if error.errno not in REFUSED_BY_DISK:
            raise
        place = error.filename or "a temporary folder"
        raise StorageError(
            f"Beam cannot write {place}: {error.strerror}. Check that disk, or set TMPDIR to a folder with free space."
        ) from error


def _run_remotely(
    job: BeamJob, pipeline: beam.Pipeline, reported: Failures, submitted: Callable[[Any], None] | None
) -> Any:
    runner = runner_as_written(job.options)
    submission = remote_jobs.submit(pipeline, runner)
    if submitted is not None:
        submitted(submission.result)

    # Not the pipeline's options: Beam changes them when it submits the job.
    if leaves_job(job.options) and submission.asked is None:
        remote_jobs.leave(submission.result, runner, job.options)
    else:
        remote_jobs.follow(submission, runner, job.options, reported)
    return submission.result
