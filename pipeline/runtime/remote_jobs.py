"""A job that runs in another process or on other machines: submitted, followed to its end, or canceled by the user."""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from time import monotonic
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions, PortableOptions

from pipeline.commit.failures import Failures
from pipeline.runtime import stop_signals
from pipeline.runtime.beam_internals import ENDED_STATES, FINISHED_STATES, MESSAGE_THREAD
from pipeline.runtime.carried_errors import is_carried
from pipeline.runtime.engine_errors import explain
from pipeline.runtime.local_workers import FINISHED_PIECES
from pipeline.runtime.submitted_job import LOOK_SECONDS, EngineError, JobStoppedError, NotSubmittedError, RemoteJob
from schemas.errors import ClozelineError, StorageError

SUBMIT_SECONDS = 60.0  # how long a request to stop waits for a job that is being submitted
POLL_SECONDS = 0.5  # how often the launcher checks whether a remote job has ended; costs nothing


@dataclass(frozen=True)
class Submission:
    """What `submit` returns. result: Beam's. asked: a request to stop that came while the job was submitted."""

    result: Any
    asked: KeyboardInterrupt | None = None


def submit(pipeline: beam.Pipeline, runner: str) -> Submission:
    """Submit a job to its engine. A request to stop waits until that is done: a job without an id cannot be canceled.

    Raises NotSubmittedError if nothing was started because something is missing, EngineError if the engine does not
    accept the job, and JobStoppedError if a stop was requested and the job was not accepted, or submission took longer
    than SUBMIT_SECONDS.
    """
    name = pipeline.options.view_as(GoogleCloudOptions).job_name
    job = f"the job {name}" if name else "the job"
    endpoint = pipeline.options.view_as(PortableOptions).job_endpoint  # Beam empties it once the job is submitted

    notice = (
        f"stopping once {job} has been submitted and can be canceled, which is waited for {SUBMIT_SECONDS:.0f} s at "
        "most. Press Ctrl-C again not to wait."
    )
    deferral = stop_signals.Deferral(0, "")
    try:
        with _own_interrupts(), stop_signals.deferred(SUBMIT_SECONDS, notice) as deferral:
            result = pipeline.run()
        return Submission(result, deferral.asked)
    except KeyboardInterrupt:
        message = (
            f"stopped while {job} was submitted to {runner}. It has no id yet and may still run: look for {job} at "
            f"{endpoint or 'the engine'} or on the engine's own page, and cancel it there."
        )
        raise JobStoppedError(message, still_runs=True) from None
    except Exception as error:
        if deferral.asked is not None:
            message = f"stopped; {runner} did not take {job}. Run the same command again to continue."
            raise JobStoppedError(message, still_runs=False) from error
        _raise_if_ours(error)
        explained = explain(error)
        kind = NotSubmittedError if explained.is_usage else EngineError
        raise kind(f"{runner} did not take {job}. {explained.text}") from error


@contextlib.contextmanager
def _own_interrupts() -> Iterator[None]:
    """Restore the handler of Ctrl-C after the block.

    A runner that starts a job server installs a handler that stops the server, after which no job could be canceled.
    The server is stopped when the launcher exits in any case.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT) if in_main_thread else None
    try:
        yield
    finally:
        if handler is not None:
            signal.signal(signal.SIGINT, handler)


def leave(result: Any, runner: str, options: PipelineOptions) -> None:
    """Print how to find a submitted job, and leave it to its engine."""
    job = RemoteJob(result, runner, options)
    job.announce()
    print(
        "clozeline: not waiting for it (--no_wait). The result is complete once the output folder has a manifest.json. "
        f"{job.how_to_cancel()}",
        file=sys.stderr,
        flush=True,
    )


def follow(submission: Submission, runner: str, options: PipelineOptions, failures: Failures) -> None:
    """Wait for a submitted job, or stop it at once if that was already requested.

    Raises the error that a step has reported, as soon as it is found and the job is canceled; EngineError if the job
    fails for a reason outside this program; and JobStoppedError on Ctrl-C, once the job is canceled.
    """
    job = RemoteJob(submission.result, runner, options)
    job.announce()
    try:
        if submission.asked is not None:
            raise submission.asked
        with _quiet_messages():
            end = _JobEnd(job)
            failed = _wait(end, failures)
    except KeyboardInterrupt as interrupt:
        raise job.stop(interrupt, failures) from None

    if failed is not None:
        job.cancel_quietly()
        failures.remove()
        raise failed
    end.check()


@contextlib.contextmanager
def _quiet_messages() -> Iterator[None]:
    """Hide tracebacks of Beam's thread that reads a job's messages: `_JobEnd` reports a broken connection."""
    previous = threading.excepthook

    def hook(arguments: threading.ExceptHookArgs) -> None:
        if arguments.thread is None or arguments.thread.name != MESSAGE_THREAD:
            previous(arguments)

    threading.excepthook = hook
    try:
        yield
    finally:
        threading.excepthook = previous


class _JobEnd:
    """Waits in a thread for the end of a job, because Beam's own wait cannot be interrupted with every runner.

    Beam's wait also ends when the connection to the job server is lost, although the job continues. If it were
    submitted again, it would run twice. So unless the job is known to have ended, the server is polled for its state
    until it has.
    """

    def __init__(self, job: RemoteJob):
        self.reached = threading.Event()
        self._job = job
        self._state: Any = None
        self._error: Exception | None = None
        threading.Thread(target=self._wait, name="job end", daemon=True).start()

    def _wait(self) -> None:
        try:
            self._state = self._job.result.wait_until_finish()
        except Exception as error:
            self._error = error

        try:
            if self._state not in ENDED_STATES:
                self._state = self._job.last_state()
        finally:
            self.reached.set()

    def check(self) -> None:
        """Raise EngineError unless the job was finished."""
        job = self._job
        if self._state in FINISHED_STATES:
            return

        error = self._error or RuntimeError(f"It ended in state {self._state}.")
        _raise_if_ours(error)
        if self._state not in ENDED_STATES:
            raise job.lost(error) from error

        explanation = explain(error)
        raise EngineError(
            f"{job} failed: {explanation.text} {FINISHED_PIECES} once the cause is removed.",
            explanation.may_pass,
        ) from error


def _wait(end: _JobEnd, failures: Failures) -> ClozelineError | None:
    """Wait until the job has ended or a step has reported an error, which is returned."""
    looked = monotonic()
    while not end.reached.wait(POLL_SECONDS):
        if monotonic() - looked < LOOK_SECONDS:
            continue

        with contextlib.suppress(StorageError):  # unreachable for a moment; the last call below reports it
            failed = failures.first()
            if failed is not None:
                return failed
        looked = monotonic()
    return failures.first()


def _raise_if_ours(error: Exception) -> None:
    """Raise one of our own errors again, unchanged. Log the traceback of any other at DEBUG."""
    if isinstance(error, ClozelineError) or is_carried(str(error)):
        raise error
    logging.getLogger("clozeline.engines").debug("What the engine's client raised", exc_info=error)
