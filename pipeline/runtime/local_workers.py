"""The worker processes of a local job: they end with their launcher, and the launcher notices when one is lost.

Beam does neither. Workers whose launcher was killed would wait for it forever. A launcher whose worker was killed (most
often by the system, when memory ran out) would wait for the worker forever, or end in a traceback from Beam.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.runtime import beam_internals, stop_signals
from pipeline.runtime.carried_errors import is_carried
from schemas.errors import ClozelineError, UsageError

LAUNCHER = "CLOZELINE_LAUNCHER"
"""Environment variable that gives a worker the launcher's process id."""

ATTEMPT = "CLOZELINE_ATTEMPT"
"""Environment variable that gives a worker the path of a file that exists as long as the worker's attempt runs."""

CHECK_SECONDS = 0.5  # how often a worker looks for its launcher and its attempt; two system calls
REPARENTED_SECONDS = 1.0  # how long a worker that met an error waits to see whether its launcher is gone
STOP_SECONDS = 0.5  # how long after a worker is lost the stop signal that ended it may take to arrive
GRACE_SECONDS = 3.0  # Beam usually notices a lost worker by itself within this time, which ends the job more cleanly


FINISHED_PIECES = "Finished pieces are kept: run the same command again"
"""Start of the advice in errors of jobs that may succeed when run again; it follows the cause."""


class WorkerLostError(ClozelineError):
    """A worker process ended before its work did."""

    may_pass = True


def worker_command(attempt: str) -> str:
    """Return the shell command of a worker; `attempt` is what `supervised` yields.

    `exec` makes the worker itself, not a shell, a child of the launcher. Ctrl-C in a terminal reaches all processes
    there, and so does SIGTERM from `timeout`, Slurm or systemd. The worker ignores these signals, because it ends with
    the launcher, and a worker that ends earlier counts as lost.
    """
    variables = f"{LAUNCHER}={os.getpid()} {ATTEMPT}={shlex.quote(attempt)}"
    return f"trap '' INT TERM HUP; {variables} exec {shlex.quote(sys.executable)} -m pipeline.runtime.worker"


def end_with_launcher() -> None:
    """Called in a worker: end this process as soon as the launcher that started it, or its attempt, is gone.

    Raises UsageError if no launcher started this process.
    """
    value = os.environ.get(LAUNCHER, "")
    if not value.isdecimal():
        raise UsageError(
            "pipeline.runtime.worker is started by a job and cannot be used alone. Start a job, which starts its "
            "workers itself; `clozeline shard --help` says how."
        )

    arguments = (int(value), os.environ.get(ATTEMPT))
    threading.Thread(target=end_without, args=arguments, name="launcher watch", daemon=True).start()


def end_if_orphaned() -> None:
    """Called in a worker after an error: end it silently if the cause is that its launcher is gone.

    The system closes a dying launcher's connections shortly before it gives the launcher's workers another parent, so
    this waits for up to REPARENTED_SECONDS.
    """
    launcher = int(os.environ[LAUNCHER])
    deadline = time.monotonic() + REPARENTED_SECONDS
    while os.getppid() == launcher:
        if time.monotonic() > deadline:
            return
        time.sleep(0.02)
    os._exit(1)


def end_without(parent: int, attempt: str | None = None) -> None:
    """End this process as soon as `parent`, the process that started it, or the file `attempt` is gone."""
    # An orphan gets another parent, so this is correct even if the parent's process id is reused.
    while os.getppid() == parent and (attempt is None or os.path.exists(attempt)):
        time.sleep(CHECK_SECONDS)
    os._exit(1)


@contextmanager
def supervised() -> Iterator[str]:
    """Raise WorkerLostError if a worker process is lost while the block runs in the main thread.

    Yields the path of the file that stands for this attempt; workers started with it do not outlive the block.
    """
    handle, attempt = tempfile.mkstemp(prefix="clozeline-attempt-")
    os.close(handle)
    watch = _WorkerWatch(attempt)
    threading.excepthook = watch.on_thread_error
    try:
        with stop_signals.preceded_by(watch.stop):
            yield attempt
    except (KeyboardInterrupt, RuntimeError) as error:
        # One of our own errors is the cause, however the remaining workers end. And a user who stops the command does
        # not want another attempt, even if a worker was lost meanwhile.
        is_of_user = isinstance(error, KeyboardInterrupt) and not watch.interrupts
        if is_carried(str(error)) or is_of_user:
            raise

        # Beam may report the loss before the thread that waits for the worker has seen its end.
        if not watch.lost.is_set() and not beam_internals.says_worker_is_lost(error):
            raise
        _raise_if_stopped(watch)
        raise WorkerLostError(watch.loss()) from error
    finally:
        watch.done.set()
        if not watch.is_stopped:  # otherwise the command ends now, and threads of its last workers say nothing
            threading.excepthook = watch.previous_hook
        _remove(attempt)


def _raise_if_stopped(watch: _WorkerWatch) -> None:
    """Raise KeyboardInterrupt if the command is asked to stop: the same signal may have ended a worker first."""
    deadline = time.monotonic() + STOP_SECONDS
    while time.monotonic() < deadline and not watch.is_stopped:
        time.sleep(0.02)  # the signal's handler raises here
    if stop_signals.is_requested():
        raise stop_signals.Terminated
    if watch.is_stopped:
        raise KeyboardInterrupt


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


class _WorkerWatch:
    """Notices that a worker is lost, and interrupts the main thread if Beam does not.

    Beam waits for each worker and reads from it in threads that raise when the worker is gone. Nobody catches these
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
        """End all workers, because the command is asked to stop.

        Beam would wait for them, and forever if one has not connected yet: Beam then never tells it to end.
        """
        self.is_stopped = not self.interrupts  # that signal is this watch's own
        _remove(self.attempt)

    def on_thread_error(self, arguments: threading.ExceptHookArgs) -> None:
        thread = arguments.thread
        if thread is None or thread.name not in beam_internals.WORKER_THREADS:
            self.previous_hook(arguments)
            return

        code = beam_internals.exit_code_of_worker(arguments.exc_value)
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
