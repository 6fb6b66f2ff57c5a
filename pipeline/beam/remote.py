"""A job on an engine, in another process or on other machines: submitted, followed to its end, or canceled."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions, PortableOptions

from pipeline.beam import stop_signals
from pipeline.beam.causes import explain, last_message
from pipeline.beam.engines import is_dataflow, makes_template, runner_as_written, short_runner_name, worker_location
from pipeline.beam.internals import ENDED_STATES, FINISHED_STATES, MESSAGE_THREAD, job_identifier
from pipeline.beam.local import FINISHED_PIECES
from pipeline.commit.failures import Failures, is_carried
from schemas.errors import ClozelineError, StorageError, UsageError
from schemas.terminal import tell

POLL_SECONDS = 0.5  # how often the launcher checks whether a remote job has ended; costs nothing
LOOK_SECONDS = 2.0  # how often it checks for errors that steps have reported; one request
CANCEL_SECONDS = 10.0  # how long the launcher waits for an engine to cancel a job that has failed
CONFIRM_SECONDS = 60.0  # how long the launcher waits for a job that its user has stopped to end


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


def _raise_if_ours(error: Exception) -> None:
    """Raise one of our own errors again, unchanged. Log the traceback of any other at DEBUG."""
    if isinstance(error, ClozelineError) or is_carried(str(error)):
        raise error
    logging.getLogger("clozeline.engines").debug("What the engine's client raised", exc_info=error)


def submit(pipeline: beam.Pipeline, options: PipelineOptions, submitted: Callable[[], None] | None = None) -> RemoteJob:
    """Submit a job to its engine. A request to stop waits until that is done: a job without an id cannot be canceled.

    options: the job's, not the pipeline's, which Beam changes when it submits the job.
    submitted: called before a request to stop can interrupt.

    Raises NotSubmittedError if nothing was started because something is missing, EngineError if the engine does not
    accept the job, and JobStoppedError if a stop was requested and the job was not accepted or not waited for.
    """
    runner = runner_as_written(options)
    name = options.view_as(GoogleCloudOptions).job_name
    job = f"the job {name}" if name else "the job"

    notice = f"stopping once {job} has been submitted and can be canceled. Press Ctrl-C again not to wait."
    stops: list[int] = []
    try:
        with stop_signals.deferred(notice) as stops:
            result = pipeline.run()
            if submitted is not None:
                submitted()
        return RemoteJob(result, options, is_stopped=bool(stops))
    except KeyboardInterrupt:
        message = (
            f"stopped while {job} was submitted to {runner}. It has no id yet and may still run: look for {job} at "
            f"{_place_of(options)} or on the engine's own page, and cancel it there."
        )
        raise JobStoppedError(message, still_runs=True) from None
    except Exception as error:
        if stops:
            message = f"stopped; {runner} did not take {job}. Run the same command again to continue."
            raise JobStoppedError(message, still_runs=False) from error
        _raise_if_ours(error)
        explained = explain(error)
        kind = NotSubmittedError if explained.is_usage else EngineError
        raise kind(f"{runner} did not take {job}. {explained.text}") from error


def _place_of(options: PipelineOptions) -> str:
    return str(options.view_as(PortableOptions).job_endpoint or "the engine")


@dataclass(frozen=True)
class RemoteJob:
    """A submitted job. As text: "job 2026-11-22_01_02_03-456 of DataflowRunner".

    result: Beam's. is_stopped: a request to stop came while the job was submitted.
    """

    result: Any
    options: PipelineOptions
    is_stopped: bool = False

    def __str__(self) -> str:
        return f"job {job_identifier(self.result)} of {runner_as_written(self.options)}"

    def leave(self) -> None:
        """Print how to find the job, and leave it to its engine."""
        tell(f"{self} has been submitted.")
        tell(
            "not waiting for it (--no_wait). The result is complete once the output folder has a manifest.json. "
            f"{self.how_to_find()}"
        )

    def follow(self, failures: Failures) -> None:
        """Wait for the job, or cancel it at once if that was already requested.

        Raises the error that a step has reported, as soon as it is found and the job is canceled; EngineError if the
        job fails for a reason outside this program; and JobStoppedError on Ctrl-C, once the job is canceled.
        """
        try:
            tell(f"{self} has been submitted.")
            if self.is_stopped:
                raise KeyboardInterrupt
            with _quiet_messages():
                end = _end_of(self.result)
                failed = _failure_before(end, failures)
        except KeyboardInterrupt:
            raise self.cancel(failures) from None

        if failed is not None:
            self._cancel_quietly()
            failures.remove()
            raise failed
        self._check_end(*end.result())

    def cancel(self, failures: Failures) -> JobStoppedError:
        """Cancel the job and return the error to raise. A second Ctrl-C leaves the job running.

        Beam's job servers for Flink and Spark report a job as canceled at once, while the engine continues it. So the
        job is also made to end itself (`Failures.end_job`), and counts as canceled once it has.
        """
        try:
            # Inside the try: whoever reads this line may press Ctrl-C before the next statement is reached.
            tell(f"canceling {self}. Press Ctrl-C again to leave it running. {self.how_to_find()}")
            self.result.cancel()
        except (Exception, KeyboardInterrupt) as error:  # whatever a client raises, the user must learn the job's name
            reason = str(error) or type(error).__name__
            message = f"{self} was not canceled ({reason}) and may still run. {self.how_to_find()}"
            return JobStoppedError(message, still_runs=True)

        with contextlib.suppress(Exception, KeyboardInterrupt):  # a broken connection; a user who does not wait
            if self._has_ended(failures):
                message = f"{self} was canceled. Run the same command again to continue; finished pieces are reused."
                return JobStoppedError(message, still_runs=False)

        message = (
            f"{self} was asked to end, has not ended yet and may still run. It makes no result, and gives the output "
            f"folder free when it ends by itself. {self.how_to_find()}"
        )
        return JobStoppedError(message, still_runs=True)

    def _has_ended(self, failures: Failures) -> bool:
        stopped = UsageError(f"{self} was stopped by its user.")
        if worker_location(self.options) == "here":  # it ends with this process, or before
            failures.report(stopped)
            return True
        if is_dataflow(self.options) or short_runner_name(self.options) == "prism":  # whose states can be trusted
            return _comes_true(lambda: self.result.state in ENDED_STATES)

        failures.end_job(stopped)
        return _comes_true(failures.has_ended_job)

    def _cancel_quietly(self) -> None:
        """Cancel a failed job, ignoring errors: a job that stays does nothing more, and publishes nothing."""

        def cancel() -> None:
            with contextlib.suppress(Exception):  # whatever a client raises; the job's own error is reported
                self.result.cancel()

        thread = threading.Thread(target=cancel, name="job cancel", daemon=True)
        thread.start()
        thread.join(CANCEL_SECONDS)

    def _check_end(self, state: Any, error: Exception | None) -> None:
        """Raise EngineError unless the job was finished. state, error: as in `_end_of`."""
        if state in FINISHED_STATES:
            return

        error = error or RuntimeError(f"It ended in state {state}.")
        _raise_if_ours(error)
        if state not in ENDED_STATES:
            raise self.lost(error) from error
        explained = explain(error)
        message = f"{self} failed: {explained.text} {FINISHED_PIECES} once the cause is removed."
        raise EngineError(message, explained.may_pass) from error

    def lost(self, error: Exception) -> EngineError:
        """Return the error to raise when the connection to the job server is lost before the job has ended."""
        said = last_message(str(error)).rstrip(".")
        reason = f"{self} cannot be followed: the connection to its job server is lost ({said})."
        if worker_location(self.options) == "here":
            advice = f"Its workers end with this command. {FINISHED_PIECES} once the server answers."
            return EngineError(f"{reason} {advice}")

        advice = "It may still run, and then publishes by itself. Run the same command again once it has ended."
        return EngineError(f"{reason} {advice} {self.how_to_find()}", still_runs=True)

    def how_to_find(self) -> str:
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
        return f"Look at it and cancel it by this id at {_place_of(self.options)} or on the engine's own page."


def _comes_true(condition: Callable[[], bool]) -> bool:
    deadline = monotonic() + CONFIRM_SECONDS
    while not condition():
        if monotonic() > deadline:
            return False
        sleep(0.2)
    return True


@contextlib.contextmanager
def _quiet_messages() -> Iterator[None]:
    """Hide tracebacks of Beam's thread that reads a job's messages: `_end_of` reports a broken connection."""
    previous = threading.excepthook

    def hook(arguments: threading.ExceptHookArgs) -> None:
        if arguments.thread is None or arguments.thread.name != MESSAGE_THREAD:
            previous(arguments)

    threading.excepthook = hook
    try:
        yield
    finally:
        threading.excepthook = previous


def _end_of(result: Any) -> Future[tuple[Any, Exception | None]]:
    """Return the state in which a job ends, and the error of Beam's wait for that, if it raised one.

    A thread waits, because Beam's wait cannot be interrupted with every runner. It also ends when the connection to the
    job server is lost, although the job continues. If it were submitted again, it would run twice.
    """
    end: Future[tuple[Any, Exception | None]] = Future()

    def wait_for_it() -> None:
        state = error = None
        try:
            state = result.wait_until_finish()
        except Exception as caught:
            error = caught
        with contextlib.suppress(Exception):  # whatever a client raises; the error above is reported
            if state not in ENDED_STATES:
                state = result.state
        end.set_result((state, error))

    threading.Thread(target=wait_for_it, name="job end", daemon=True).start()
    return end


def _failure_before(end: Future[Any], failures: Failures) -> ClozelineError | None:
    """Wait until the job has ended or a step has reported an error, which is returned."""
    looked = monotonic()
    while not wait([end], POLL_SECONDS).done:
        if monotonic() - looked < LOOK_SECONDS:
            continue
        with contextlib.suppress(StorageError):  # unreachable for a moment; the last call below reports it
            if failed := failures.error():
                return failed
        looked = monotonic()
    return failures.error()
