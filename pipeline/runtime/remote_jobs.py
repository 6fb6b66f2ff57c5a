"""A job that runs in another process or on other machines: submitted, followed to its end, or canceled by the user."""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions, PortableOptions

from pipeline.runtime.beam_internals import ENDED_STATES, FINISHED_STATES, MESSAGE_THREAD, job_identifier
from pipeline.runtime.carried_errors import is_carried
from pipeline.runtime.engine_errors import explain
from pipeline.runtime.engines import cluster_address, is_this_machine, workers_place
from pipeline.runtime.failures import Failures
from pipeline.runtime.local_workers import FINISHED_PIECES
from schemas.errors import ClozelineError, StorageError, UsageError

POLL_SECONDS = 0.5  # how often the launcher looks whether a remote job has ended; costs nothing
LOOK_SECONDS = 2.0  # how often it looks for errors that steps have reported; one request to an object store
CANCEL_SECONDS = 10.0  # how long the launcher waits for an engine to cancel a job that has failed
CONNECT_SECONDS = 10.0
RECONNECT_SECONDS = 120.0  # how long a job server may be out of reach, while it is restarted for example


class EngineError(ClozelineError):
    """An engine refused a job, lost it or could not be reached, for a reason outside this program.

    may_pass: the same job may succeed when it is submitted again.
    still_runs: the engine may go on with the job.
    """

    def __init__(self, message: str, may_pass: bool = False, still_runs: bool = False):
        super().__init__(message)
        self.may_pass = may_pass
        self.still_runs = still_runs


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
    _check_answers("--job_endpoint", endpoint, "Start the job server there, or give the HOST:PORT of one that runs.")
    _check_pool(pipeline.options)
    if not endpoint:
        _check_answers(*cluster_address(pipeline.options), "Start the cluster, or give the HOST:PORT of one that runs.")

    try:
        with _own_interrupts():
            return pipeline.run()
    except KeyboardInterrupt:
        message = (
            f"stopped while {job} was submitted to {runner}. It has no id yet and may still run: look for {job} at "
            f"{endpoint or 'the engine'} or on the engine's own page, and cancel it there."
        )
        raise JobStoppedError(message, still_runs=True) from None
    except Exception as error:
        _raise_if_ours(error)
        raise EngineError(f"{runner} did not take {job}. {explain(error).text}") from error


def _check_pool(options: PipelineOptions) -> None:
    """Raise EngineError when workers should come from a pool on this machine and there is none."""
    portable = options.view_as(PortableOptions)
    address = portable.environment_config
    if portable.environment_type == "EXTERNAL" and address and is_this_machine(address):
        port = address.rpartition(":")[2]
        _check_answers("--environment_config", address, f"Start `python -m pipeline.worker --pool --port {port}`.")


def _check_answers(flag: str, address: str | None, advice: str) -> None:
    """Raise EngineError when nothing listens at an address. Beam would wait for minutes."""
    if not address or address == "embed":
        return

    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdecimal():
        raise UsageError(f"{flag} {address} has no port. Give HOST:PORT.")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise EngineError(f"Nothing answers at {flag} {address} ({reason}). {advice}") from error


@contextlib.contextmanager
def _own_interrupts() -> Iterator[None]:
    """Put the handler of Ctrl-C back after the block.

    A runner that starts a job server installs one that stops the server, and then no job can be canceled any more. The
    server is stopped when the launcher exits in any case.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT) if in_main_thread else None
    try:
        yield
    finally:
        if handler is not None:
            signal.signal(signal.SIGINT, handler)


def follow(result: Any, runner: str, options: PipelineOptions, failures: Failures) -> None:
    """Wait for a submitted job; `result` is what `submit` returned.

    Raises the error that a step has reported, as soon as it is found and the job is canceled; EngineError when the job
    fails for a reason outside this program; and JobStoppedError on Ctrl-C, once the job is canceled.
    """
    job = RemoteJob(result, runner, options)
    print(f"clozeline: {job} has been submitted.", file=sys.stderr, flush=True)
    try:
        with _quiet_messages():
            end = _JobEnd(job)
            failed = _wait(end, failures)
    except KeyboardInterrupt:
        stopped = job.cancel()
        if not stopped.still_runs:
            failures.report(UsageError(f"{job} was stopped by its user."))  # for engines that cancel in name only
        raise stopped from None

    if failed is not None:
        job.cancel_quietly()
        failures.remove()
        raise failed
    end.check()


@contextlib.contextmanager
def _quiet_messages() -> Iterator[None]:
    """Show no traceback of Beam's thread that reads a job's messages when the connection breaks: the wait reports it."""
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
    """The end of a job, which a thread waits for: Beam's wait cannot be interrupted everywhere.

    Beam's wait also ends when the connection to the job server is lost, and then the job goes on. Submitted again, it
    would run twice. So unless the job is known to have ended, the server is asked for its state until it has.
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

        with contextlib.suppress(StorageError):  # out of reach for a moment; the last look below reports it
            failed = failures.first()
            if failed is not None:
                return failed
        looked = monotonic()
    return failures.first()


def _raise_if_ours(error: Exception) -> None:
    """Raise an error of ours again, unchanged. Log the traceback of any other, at a level that shows on request."""
    if isinstance(error, ClozelineError) or is_carried(str(error)):
        raise error
    logging.getLogger("clozeline.engines").debug("What the engine's client raised", exc_info=error)


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

    def cancel_quietly(self) -> None:
        """Cancel a job that has failed. One that cannot be canceled does nothing more, and publishes nothing."""
        thread = threading.Thread(target=self._try_to_cancel, name="job cancel", daemon=True)
        thread.start()
        thread.join(CANCEL_SECONDS)

    def _try_to_cancel(self) -> None:
        with contextlib.suppress(Exception):  # whatever a client raises; the job's own error is reported
            self.result.cancel()

    def last_state(self) -> Any:
        """Wait until the job has ended and return its state; None when its server stays out of reach for too long."""
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
        """Return the error to raise when the job server has been out of reach for too long."""
        reason = (
            f"{self} cannot be followed: its job server has not answered for {RECONNECT_SECONDS:.0f} s "
            f"({explain(error).text.rstrip('.')})."
        )
        if workers_place(self.options) == "here":
            advice = f"Its workers end with this command. {FINISHED_PIECES} once the server answers."
            return EngineError(f"{reason} {advice}")

        advice = "It may still run, and then publishes on its own. Run the same command again once it has ended."
        return EngineError(f"{reason} {advice} {self.how_to_cancel()}", still_runs=True)

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
