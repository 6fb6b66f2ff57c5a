"""A job that an engine has accepted: its name, whether it has ended, how it is canceled, and the errors about it."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any

from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions, PortableOptions

from pipeline.commit.failures import Failures
from pipeline.runtime.beam_internals import ENDED_STATES, job_identifier
from pipeline.runtime.engine_errors import explain
from pipeline.runtime.engines import short_runner_name, worker_location
from pipeline.runtime.launch import console_url, is_dataflow, makes_template
from pipeline.runtime.local_workers import FINISHED_PIECES
from pipeline.runtime.stop_signals import Terminated
from schemas.errors import ClozelineError, UsageError

LOOK_SECONDS = 2.0
"""How often the launcher checks for errors that steps have reported, and asks a lost job server again; one request."""

CANCEL_SECONDS = 10.0  # how long the launcher waits for an engine to cancel a job that has failed
CONFIRM_SECONDS = 60.0  # how long the launcher waits for a job that its user has stopped to end
RECONNECT_SECONDS = 120.0  # how long a job server may be unreachable, for example during a restart


class EngineError(ClozelineError):
    """An engine refused a job, lost it or could not be reached, for a reason outside this program.

    may_pass: the same job may succeed when it is submitted again.
    still_runs: the engine may continue the job.
    """

    def __init__(self, message: str, may_pass: bool = False, still_runs: bool = False):
        super().__init__(message)
        self.may_pass = may_pass
        self.still_runs = still_runs


class NotSubmittedError(EngineError):
    """Nothing was started, because the engine's client lacks something that it needs, such as a job server."""

    exit_code = UsageError.exit_code


class JobStoppedError(KeyboardInterrupt):
    """Ctrl-C while a job ran elsewhere. The message says what became of the job.

    still_runs: the engine may continue it.
    """

    def __init__(self, message: str, still_runs: bool):
        super().__init__(message)
        self.still_runs = still_runs


@dataclass(frozen=True)
class RemoteJob:
    """A submitted job. As text: "job 2026-11-22_01_02_03-456 of DataflowRunner"."""

    result: Any
    runner: str
    options: PipelineOptions

    def __str__(self) -> str:
        return f"job {job_identifier(self.result)} of {self.runner}"

    def announce(self) -> None:
        """Print that the engine has the job, and where its page is."""
        print(f"clozeline: {self} has been submitted.", file=sys.stderr, flush=True)
        if is_dataflow(self.options) and not makes_template(self.options):
            url = console_url(job_identifier(self.result), self.options)
            print(f"clozeline: its page is {url}", file=sys.stderr, flush=True)

    def stop(self, interrupt: KeyboardInterrupt, failures: Failures) -> JobStoppedError:
        """Cancel the job, or leave it running if a user at a terminal wants that. Return the error to raise.

        The user is not asked after SIGTERM, or where the job would end with the launcher in any case.
        """
        can_run_on = worker_location(self.options) != "here" and not isinstance(interrupt, Terminated)
        if not can_run_on or not can_ask() or self._is_to_be_canceled():
            return self.cancel(failures)

        message = f"{self} was left running; it publishes and cleans up on its own. {self.how_to_cancel()}"
        return JobStoppedError(message, still_runs=True)

    def _is_to_be_canceled(self) -> bool:
        """Ask the user. Ctrl-C again, a closed terminal or just Enter mean that the job is to be canceled."""
        try:
            answer = ask(f"clozeline: stop waiting for {self}. Cancel it, or leave it running? [C/l] ")
        except (KeyboardInterrupt, EOFError):
            return True
        return not answer.strip().lower().startswith("l")

    def cancel(self, failures: Failures) -> JobStoppedError:
        """Cancel the job and return the error to raise. A second Ctrl-C leaves the job running.

        Beam's job servers for Flink and Spark report a job as canceled at once, while the engine continues it. So the
        job is also made to end itself (`Failures.end_job`), and counts as canceled once it has.
        """
        try:
            # Inside the try: whoever reads this line may press Ctrl-C before the next statement is reached.
            print(f"clozeline: canceling {self}. Press Ctrl-C again to leave it running.", file=sys.stderr, flush=True)
            self.result.cancel()
        except (Exception, KeyboardInterrupt) as error:  # whatever a client raises, the user must learn the job's name
            reason = str(error) or type(error).__name__
            message = f"{self} was not canceled ({reason}) and may still run. {self.how_to_cancel()}"
            return JobStoppedError(message, still_runs=True)

        try:
            has_ended = self._has_ended(failures)
        except (Exception, KeyboardInterrupt):  # the connection broke, or the user does not want to wait
            has_ended = False
        if has_ended:
            message = f"{self} was canceled. Run the same command again to continue; finished pieces are reused."
            return JobStoppedError(message, still_runs=False)

        message = (
            f"{self} was asked to end, has not ended yet and may still run. It makes no result, and gives the output "
            f"folder free when it ends by itself. {self.how_to_cancel()}"
        )
        return JobStoppedError(message, still_runs=True)

    def _has_ended(self, failures: Failures) -> bool:
        """Wait until a canceled job has ended, for CONFIRM_SECONDS at most, and return whether it has."""
        stopped = UsageError(f"{self} was stopped by its user.")
        if worker_location(self.options) == "here":  # it ends with this process, or before
            failures.report(stopped)
            return True
        if is_dataflow(self.options) or short_runner_name(self.options) == "prism":  # whose states can be trusted
            return self._comes_true(lambda: self.result.state in ENDED_STATES)

        failures.end_job(stopped)
        return self._comes_true(failures.has_ended_job)

    def _comes_true(self, condition: Callable[[], bool]) -> bool:
        """Wait until a condition is true, for CONFIRM_SECONDS at most, and return whether it is."""
        began = monotonic()
        is_told = False
        while not condition():
            waited = monotonic() - began
            if waited > CONFIRM_SECONDS:
                return False
            if waited > LOOK_SECONDS and not is_told:
                print(
                    f"clozeline: waiting until it has ended, for {CONFIRM_SECONDS:.0f} s at most. Press Ctrl-C again "
                    "not to wait.",
                    file=sys.stderr,
                    flush=True,
                )
                is_told = True
            sleep(0.2)
        return True

    def cancel_quietly(self) -> None:
        """Cancel a failed job, ignoring errors: a job that stays does nothing more, and publishes nothing."""
        thread = threading.Thread(target=self._try_to_cancel, name="job cancel", daemon=True)
        thread.start()
        thread.join(CANCEL_SECONDS)

    def _try_to_cancel(self) -> None:
        with contextlib.suppress(Exception):  # whatever a client raises; the job's own error is reported
            self.result.cancel()

    def last_state(self) -> Any:
        """Wait until the job has ended and return its state; None if its server is unreachable for too long."""
        answered = monotonic()
        is_told = False
        while monotonic() - answered < RECONNECT_SECONDS:
            with contextlib.suppress(Exception):  # whatever a client raises; the error that broke the wait is reported
                state = self.result.state
                if state in ENDED_STATES:
                    return state
                answered = monotonic()

            if not is_told:
                print(f"clozeline: lost the connection to {self}, and looks for it again.", file=sys.stderr, flush=True)
                is_told = True
            sleep(LOOK_SECONDS)
        return None

    def lost(self, error: Exception) -> EngineError:
        """Return the error to raise when the job server has been unreachable for too long."""
        reason = (
            f"{self} cannot be followed: its job server has not answered for {RECONNECT_SECONDS:.0f} s "
            f"({explain(error).text.rstrip('.')})."
        )
        if worker_location(self.options) == "here":
            advice = f"Its workers end with this command. {FINISHED_PIECES} once the server answers."
            return EngineError(f"{reason} {advice}")

        advice = "It may still run, and then publishes on its own. Run the same command again once it has ended."
        return EngineError(f"{reason} {advice} {self.how_to_cancel()}", still_runs=True)

    def how_to_cancel(self) -> str:
        """Return how the user can find and cancel the job without this program."""
        if makes_template(self.options):
            return "Look at it and cancel it in the console of Google Cloud."
        if is_dataflow(self.options):
            cloud = self.options.view_as(GoogleCloudOptions)
            job = f"{job_identifier(self.result)} --project {cloud.project} --region {cloud.region}"
            return (
                f"Look at it with `gcloud dataflow jobs show {job}`, and cancel it with "
                f"`gcloud dataflow jobs cancel {job}`."
            )

        endpoint = self.options.view_as(PortableOptions).job_endpoint or "the engine"
        return f"Look at it and cancel it by this id at {endpoint} or on the engine's own page."


def can_ask() -> bool:
    """Whether there is a user who can see questions and answer them."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


def ask(question: str) -> str:
    """Ask on stderr, where everything but results goes, and return the answer. Raises EOFError if there is none."""
    print(f"\n{question}", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if not answer:
        raise EOFError
    return answer
