"""A job that runs in another process or on other machines: followed to its end, or canceled when the user stops it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions, PortableOptions


class JobStoppedError(KeyboardInterrupt):
    """Ctrl-C while a job ran elsewhere; the message says what became of it. still_runs: it could not be canceled."""

    def __init__(self, message: str, still_runs: bool):
        super().__init__(message)
        self.still_runs = still_runs


def follow(result: Any, runner: str, options: PipelineOptions) -> None:
    """Wait for a submitted job, `result` being Beam's. Raises JobStoppedError on Ctrl-C, once the job is canceled."""
    job = RemoteJob(result, runner, options)
    print(f"clozeline: {job} has been submitted.", file=sys.stderr, flush=True)
    try:
        result.wait_until_finish()
    except KeyboardInterrupt:
        raise job.cancel() from None


@dataclass(frozen=True)
class RemoteJob:
    """A submitted job. As text: "job 2026-11-22_01_02_03-456 of DataflowRunner"."""

    result: Any
    runner: str
    options: PipelineOptions

    @property
    def identifier(self) -> str:
        """The engine's name for the job. Dataflow's result has a method for it, others a private attribute."""
        found = getattr(self.result, "job_id", None) or getattr(self.result, "_job_id", "(unknown)")
        return str(found() if callable(found) else found)

    def __str__(self) -> str:
        return f"job {self.identifier} of {self.runner}"

    def cancel(self) -> JobStoppedError:
        """Cancel the job and return the error to raise. A second Ctrl-C leaves the job running."""
        print(f"clozeline: canceling {self}. Press Ctrl-C again to leave it running.", file=sys.stderr, flush=True)
        try:
            self.result.cancel()
        except (Exception, KeyboardInterrupt) as error:  # whatever a client raises, the user must learn the job's name
            reason = str(error) or type(error).__name__
            message = f"{self} was not canceled ({reason}) and may still run. {self.how_to_cancel()}"
            return JobStoppedError(message, still_runs=True)

        message = f"{self} was canceled. Run the same command again to continue; finished pieces are reused."
        return JobStoppedError(message, still_runs=False)

    def how_to_cancel(self) -> str:
        if "dataflow" in self.runner.lower():
            cloud = self.options.view_as(GoogleCloudOptions)
            place = f"{self.identifier} --project {cloud.project} --region {cloud.region}"
            return (
                f"Look at it with `gcloud dataflow jobs show {place}`, and cancel it with "
                f"`gcloud dataflow jobs cancel {place}`."
            )
        endpoint = self.options.view_as(PortableOptions).job_endpoint or "the engine"
        return f"Look at it and cancel it by this id at {endpoint} or on the engine's own page."
