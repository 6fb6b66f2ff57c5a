"""Jobs on this machine: their worker processes end with the launcher, and the launcher notices when one is lost.

Beam does neither. Workers whose launcher was killed would wait for it forever. A launcher whose worker was killed (most
often by the system, when memory ran out) would wait for the worker forever, or end in a traceback from Beam.

A worker is `python -m pipeline.beam.local`: Beam's own, with less output on the user's terminal. Errors still reach the
user: Beam sends an exception's text to the launcher, which raises it.
"""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
import shlex
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.beam import internals, stop_signals
from pipeline.commit.failures import is_carried
from pipeline.environment import look_for_cycles_seldom
from schemas.errors import ClozelineError, StorageError, UsageError

if TYPE_CHECKING:
    import apache_beam as beam

LAUNCHER = "CLOZELINE_LAUNCHER"
"""Environment variable that gives a worker the launcher's process id."""

ATTEMPT = "CLOZELINE_ATTEMPT"
"""Environment variable that gives a worker the path of a file that exists as long as the worker's attempt runs."""

CHECK_SECONDS = 0.5  # how often a worker looks for its launcher and its attempt; two system calls
REACH_SECONDS = 60.0  # how long a worker tries to reach its launcher, for which Beam would wait forever
REPARENTED_SECONDS = 1.0  # how long a worker that met an error waits to see whether its launcher is gone
STOP_SECONDS = 0.5  # how long after a worker is lost the stop signal that ended it may take to arrive
ANSWER_SECONDS = 3.0  # how long workers have to end with their attempt before they are killed
GRACE_SECONDS = 3.0  # Beam usually notices a lost worker by itself within this time, which ends the job more cleanly

REFUSED_BY_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO)

WORKERS = "workers"
"""Name of the file, in the folder of an attempt's, to which each worker adds its process id."""

FINISHED_PIECES = "Finished pieces are kept: run the same command again"
"""Start of the advice in errors of jobs that may succeed when run again; it follows the cause."""


class WorkerLostError(ClozelineError):
    """A worker process ended before its work did."""

    may_pass = True


# In the launcher


def run_locally(pipeline: beam.Pipeline) -> Any:
    """Run a job on this machine to its end and return Beam's result.

    Raises WorkerLostError if a worker process is lost, and StorageError if a disk refuses Beam's temporary files.
    """
    try:
        with supervised() as attempt:
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


def _use_own_workers(pipeline: beam.Pipeline, attempt: str) -> None:
    """Make a local job with several processes run in our worker processes, which end with the attempt."""
    from apache_beam.options.pipeline_options import DirectOptions, StandardOptions

    direct = pipeline.options.view_as(DirectOptions)
    runner = pipeline.options.view_as(StandardOptions).runner
    in_processes = direct.direct_num_workers != 1 and direct.direct_running_mode != "multi_threading"
    if runner == internals.DEFAULT_RUNNER and in_processes:
        # In this mode Beam starts the runner's own environment once per worker.
        direct.direct_running_mode = "in_memory"
        pipeline.runner = internals.runner_with_workers(worker_command(attempt))


def worker_command(attempt: str) -> str:
    """Return the shell command of a worker; `attempt` is what `supervised` yields.

    `exec` makes the worker itself, not a shell, a child of the launcher. Ctrl-C in a terminal reaches all processes
    there, and so does SIGTERM from `timeout`, Slurm or systemd. The worker ignores these signals, because it ends with
    the launcher, and a worker that ends earlier counts as lost.
    """
    variables = f"{LAUNCHER}={os.getpid()} {ATTEMPT}={shlex.quote(attempt)}"
    note = f"echo $$ >> {shlex.quote(os.path.join(os.path.dirname(attempt), WORKERS))}"
    return f"trap '' INT TERM HUP; {note}; {variables} exec {shlex.quote(sys.executable)} -m pipeline.beam.local"


@contextmanager
def supervised() -> Iterator[str]:
    """Raise WorkerLostError if a worker process is lost while the block runs in the main thread.

    Yields the path of the file that stands for this attempt; workers started with it do not outlive the block.
    """
    folder = tempfile.mkdtemp(prefix="clozeline-attempt-")
    attempt = os.path.join(folder, "attempt")
    Path(attempt).touch()
    watch = _WorkerWatch(attempt)
    threading.excepthook = watch.on_thread_error
    try:
        with stop_signals.preceded_by(watch.stop):
            yield attempt
    except (KeyboardInterrupt, RuntimeError) as error:
        # Where work is done in this process, Beam makes a RuntimeError of the interrupt that the signal raised in it.
        if isinstance(error, RuntimeError) and watch.is_stopped:
            raise KeyboardInterrupt from error

        # One of our own errors is the cause, however the remaining workers end. And a user who stops the command does
        # not want another attempt, even if a worker was lost too.
        is_of_user = isinstance(error, KeyboardInterrupt) and not watch.interrupts
        if is_carried(str(error)) or is_of_user:
            raise

        # Beam may report the loss before the thread that waits for the worker has seen its end.
        if not watch.lost.is_set() and not internals.says_worker_is_lost(error):
            raise
        watch.raise_if_stopped()
        raise WorkerLostError(watch.loss()) from error
    finally:
        watch.done.set()
        if not watch.is_stopped:  # otherwise the command ends now, and threads of its last workers say nothing
            threading.excepthook = watch.previous_hook
        shutil.rmtree(folder, ignore_errors=True)


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def _environment_of(process: int) -> bytes:
    """Return the environment of a process; empty if it has ended, and on systems that do not tell."""
    try:
        return Path(f"/proc/{process}/environ").read_bytes()
    except OSError:
        return b""


class _WorkerWatch:
    """Notices that a worker is lost, and interrupts the main thread if Beam does not.

    Beam waits for each worker and reads from it in threads that raise when the worker is gone. No code catches these
    exceptions, so they arrive at threading.excepthook.
    """

    def __init__(self, attempt: str) -> None:
        self.attempt = attempt
        self.lost = threading.Event()
        self.done = threading.Event()
        self.interrupts = False
        self.is_stopped = False
        self.exit_code: int | None = None
        self.previous_hook = threading.excepthook

    def stop(self) -> None:
        """End all workers, because the command is asked to stop. At a second request they are killed at once.

        Beam would wait for them, and forever if one has not connected yet, or is frozen by a signal or a dead disk.
        """
        deadline = time.monotonic() + (0 if self.is_stopped else ANSWER_SECONDS)
        self.is_stopped = not self.interrupts  # that signal is this watch's own
        _remove(self.attempt)
        while self._workers() and time.monotonic() < deadline:
            time.sleep(0.02)
        for worker in self._workers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)

    def _workers(self) -> list[int]:
        """Return the processes of this attempt that run. The system may have given a number to another since."""
        with contextlib.suppress(OSError):
            noted = map(int, Path(self.attempt).with_name(WORKERS).read_text().split())
            return [worker for worker in noted if os.fsencode(self.attempt) in _environment_of(worker)]
        return []

    def raise_if_stopped(self) -> None:
        """Raise KeyboardInterrupt if the command is asked to stop: the same signal may have ended a worker first."""
        deadline = time.monotonic() + STOP_SECONDS
        while time.monotonic() < deadline and not self.is_stopped:
            time.sleep(0.02)  # the signal's handler raises here
        if self.is_stopped or stop_signals.is_requested():
            raise KeyboardInterrupt

    def on_thread_error(self, arguments: threading.ExceptHookArgs) -> None:
        thread = arguments.thread
        if thread is None or thread.name not in internals.WORKER_THREADS:
            self.previous_hook(arguments)
            return

        code = internals.exit_code_of_worker(arguments.exc_value)
        self.exit_code = code if self.exit_code is None else self.exit_code
        # Several threads raise for one lost worker; the first is enough.
        if not self.lost.is_set():
            self.lost.set()
            threading.Thread(target=self._interrupt_a_hang, daemon=True).start()

    def loss(self) -> str:
        """Return how the first worker ended and what to do. A process that a signal ended has a negative exit code."""
        if self.exit_code is not None and self.exit_code > 0:
            return (
                f"A worker process ended with exit code {self.exit_code}; what it printed stands above. "
                f"{FINISHED_PIECES}."
            )
        return (
            f"A worker process was killed; when memory runs out, the system does that. {FINISHED_PIECES}, with fewer "
            "--direct_num_workers if memory is short."
        )

    def _interrupt_a_hang(self) -> None:
        if not self.done.wait(STOP_SECONDS if self.is_stopped else GRACE_SECONDS):
            self.interrupts = not self.is_stopped
            _remove(self.attempt)  # ends the other workers too: Beam waits for them, and some may wait for Beam
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


# In a worker


def main() -> None:
    """Work until the launcher has no more work, then end the process."""
    if LAUNCHER not in os.environ:
        advice = "`clozeline shard` and the other jobs start their workers themselves"
        print(
            f"clozeline: pipeline.beam.local is a worker of a job and cannot be used alone; {advice}.", file=sys.stderr
        )
        raise SystemExit(UsageError.exit_code)

    threading.Thread(target=_end_with_launcher, name="launcher watch", daemon=True).start()
    look_for_cycles_seldom()
    sys.stderr = QuietErrors(sys.stderr.buffer, encoding="utf-8", errors="backslashreplace", line_buffering=True)
    threading.excepthook = _report_thread_error
    logging.getLogger().addHandler(logging.NullHandler())  # until Beam's handler takes the log to the launcher
    internals.import_beam()
    _reach_launcher()
    internals.run_worker(sys.argv)

    # All results have been sent. Tearing down the interpreter would keep the user waiting for half a second.
    os._exit(0)


def _end_with_launcher() -> None:
    launcher = int(os.environ[LAUNCHER])
    # An orphan gets another parent, so this is correct even if the launcher's process id is reused.
    while os.getppid() == launcher and os.path.exists(os.environ[ATTEMPT]):
        time.sleep(CHECK_SECONDS)
    os._exit(1)


def _reach_launcher() -> None:
    """End the process with a message if the launcher does not answer."""
    import grpc

    address = internals.launcher_address()
    with grpc.insecure_channel(address) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=REACH_SECONDS)
        except grpc.FutureTimeoutError:
            print(
                f"clozeline: a worker cannot reach its launcher at {address}. Look whether this machine can connect to "
                "itself: at its loopback interface, a firewall, a proxy.",
                file=sys.stderr,
            )
            raise SystemExit(ClozelineError.exit_code) from None


def _end_if_orphaned() -> None:
    """Called after an error: end this process silently if the cause is that its launcher is gone.

    Its connections break then, and several of Beam's threads would each print an error. The system closes a dying
    launcher's connections shortly before it gives the launcher's workers another parent, so this waits for up to
    REPARENTED_SECONDS.
    """
    launcher = int(os.environ[LAUNCHER])
    deadline = time.monotonic() + REPARENTED_SECONDS
    while os.getppid() == launcher:
        if time.monotonic() > deadline:
            return
        time.sleep(0.02)
    os._exit(1)


class QuietErrors(io.TextIOWrapper):
    """stderr without the tracebacks of errors that a user can act on.

    Beam prints the traceback of every exception before it sends it to the launcher. Tracebacks of bugs in the program
    still appear.
    """

    _after_traceback = False

    def write(self, text: str) -> int:
        if text.startswith(internals.LOST_LOG_CONNECTION):
            _end_if_orphaned()
        # print() writes a text and its line end separately, so the line end after a hidden traceback is hidden too.
        is_its_line_end = text == "\n" and self._after_traceback
        self._after_traceback = is_carried(text)
        if self._after_traceback or is_its_line_end:
            return len(text)
        return super().write(text)


def _report_thread_error(arguments: threading.ExceptHookArgs) -> None:
    _end_if_orphaned()
    threading.__excepthook__(arguments)


if __name__ == "__main__":
    main()
