"""A job that runs in another process or on other machines: submitted, followed to its end, or canceled by the user."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions, PortableOptions

from pipeline.runtime.beam_internals import job_identifier
from pipeline.runtime.carried_errors import is_carried
from schemas.errors import ClozelineError

_MAX_MESSAGE = 600  # characters of an engine's message that are repeated


class EngineError(ClozelineError):
    """An engine refused a job, lost it or could not be reached, for a reason outside this program."""


class JobStoppedError(KeyboardInterrupt):
    """Ctrl-C while a job ran elsewhere. The message says what became of it. still_runs: it could not be canceled."""

    def __init__(self, message: str, still_runs: bool):
        super().__init__(message)
        self.still_runs = still_runs


def submit(pipeline: beam.Pipeline, runner: str) -> Any:
    """Hand a job to its engine and return Beam's result.

    Raises EngineError when the engine does not take it, and JobStoppedError on Ctrl-C, when it may have been taken.
    """
    name = pipeline.options.view_as(GoogleCloudOptions).job_name
    job = f"the job {name}" if name else "the job"
    endpoint = pipeline.options.view_as(PortableOptions).job_endpoint  # Beam empties it once the job is submitted

    try:
        return pipeline.run()
    except KeyboardInterrupt:
        message = (
            f"stopped while {job} was submitted to {runner}. It has no id yet and may still run: look for {job} at "
            f"{endpoint or 'the engine'} or on the engine's own page, and cancel it there."
        )
        raise JobStoppedError(message, still_runs=True) from None
    except Exception as error:
        _raise_if_ours(error)
        address = f"--job_endpoint {endpoint}" if endpoint else "--job_endpoint (or --flink_job_server_jar)"
        raise EngineError(
            f"{runner} did not take {job}: {last_message(error)} Check that the engine runs, {address} and "
            "--environment_type."
        ) from error


def follow(result: Any, runner: str, options: PipelineOptions) -> None:
    """Wait for a submitted job; `result` is what `submit` returned.

    Raises EngineError when the job fails for a reason outside this program, and JobStoppedError on Ctrl-C, once the
    job is canceled.
    """
    job = RemoteJob(result, runner, options)
    print(f"clozeline: {job} has been submitted.", file=sys.stderr, flush=True)
    try:
        result.wait_until_finish()
    except KeyboardInterrupt:
        raise job.cancel() from None
    except Exception as error:
        _raise_if_ours(error)
        raise EngineError(
            f"{job} failed: {last_message(error)} The engine's log says more. Finished pieces are kept: run the same "
            "command again once the cause is removed."
        ) from error


def _raise_if_ours(error: Exception) -> None:
    """Raise an error of ours again, unchanged. Log the traceback of any other, at a level that shows on request."""
    if isinstance(error, ClozelineError) or is_carried(str(error)):
        raise error
    logging.getLogger(__name__).debug("What the engine's client raised", exc_info=error)


def last_message(error: Exception) -> str:
    """Return what an engine said last, as one line that ends a sentence. Before it come tracebacks; it is the cause."""
    lines = [line.strip() for line in _text_of(error).splitlines() if line.strip()]
    last = lines[-1] if lines else type(error).__name__

    advice = ""
    if "docker" in last.lower():
        advice = " Workers run in containers unless --environment_type is LOOPBACK, PROCESS or EXTERNAL."
    return last[:_MAX_MESSAGE].rstrip(".") + "." + advice


def _text_of(error: Exception) -> str:
    """An error's text. That of a gRPC error has the engine's own words in the middle; `details` has them alone."""
    details = getattr(error, "details", None)
    if callable(details):
        text = details()
        if text:
            return str(text)
    return str(error)


@dataclass(frozen=True)
class RemoteJob:
    """A submitted job. As text: "job 2026-11-22_01_02_03-456 of DataflowRunner"."""

    result: Any
    runner: str
    options: PipelineOptions

    def __str__(self) -> str:
        return f"job {job_identifier(self.result)} of {self.runner}"

    def cancel(self) -> JobStoppedError:
        """Cancel the job and return the error to raise. A second Ctrl-C leaves the job running."""
        try:
            # Inside the try: whoever reads this line may press Ctrl-C before the next statement is reached.
            print(f"clozeline: canceling {self}. Press Ctrl-C again to leave it running.", file=sys.stderr, flush=True)
            self.result.cancel()
        except (Exception, KeyboardInterrupt) as error:  # whatever a client raises, the user must learn the job's name
            reason = str(error) or type(error).__name__
            message = f"{self} was not canceled ({reason}) and may still run. {self.how_to_cancel()}"
            return JobStoppedError(message, still_runs=True)

        message = f"{self} was canceled. Run the same command again to continue; finished pieces are reused."
        return JobStoppedError(message, still_runs=False)

    def how_to_cancel(self) -> str:
        """Return how the user can find and cancel the job without this program."""
        if "dataflow" in self.runner.lower():
            cloud = self.options.view_as(GoogleCloudOptions)
            job = f"{job_identifier(self.result)} --project {cloud.project} --region {cloud.region}"
            return (
                f"Look at it with `gcloud dataflow jobs show {job}`, and cancel it with "
                f"`gcloud dataflow jobs cancel {job}`."
            )

        endpoint = self.options.view_as(PortableOptions).job_endpoint or "the engine"
        return f"Look at it and cancel it by this id at {endpoint} or on the engine's own page."
