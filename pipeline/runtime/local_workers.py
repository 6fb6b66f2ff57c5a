"""The worker processes of a local job: they end with the process that started them, and it learns when one is lost.

Without this, workers whose launcher was killed wait for it forever, and a launcher whose worker was killed (by the
system when memory ran out, most often) waits for it forever or ends in a traceback of Beam's.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from schemas.errors import ClozelineError, UsageError

LAUNCHER = "CLOZELINE_LAUNCHER"
"""The environment variable that gives a worker the launcher's process id."""

WORKER_THREADS = ("run_worker", "read_grpc_client_inputs", "beam_control_read")
"""Names of Beam's threads that wait for a worker process or read from it."""

CHECK_SECONDS = 0.5  # how often a worker looks for its launcher; one system call
GRACE_SECONDS = 3.0  # Beam usually notices a lost worker by itself within this time, which ends the job more cleanly


class WorkerLostError(ClozelineError):
    """A worker process ended before its work did."""


def worker_command() -> str:
    """Return the shell command of a worker. `exec` makes the worker itself, not a shell, a child of the launcher."""
    return f"{LAUNCHER}={os.getpid()} exec {shlex.quote(sys.executable)} -m pipeline.runtime.worker"


def end_with_launcher() -> None:
    """Called in a worker: end this process as soon as the process that started it is gone.

    Raises UsageError when no launcher has started this process.
    """
    value = os.environ.get(LAUNCHER, "")
    if not value.isdecimal():
        raise UsageError(
            "pipeline.runtime.worker is started by a job and cannot be used alone. Start a job, for example "
            "`python -m pipeline shard --help`, which starts its workers itself."
        )

    launcher = int(value)

    def watch() -> None:
        # An orphan gets another parent, whatever happens to the launcher's process id later.
        while os.getppid() == launcher:
            time.sleep(CHECK_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="launcher watch", daemon=True).start()


@contextmanager
def supervised() -> Iterator[None]:
    """Raise WorkerLostError if a worker process is lost while the block runs in the main thread.

    Beam waits for each worker and reads from it in threads that raise when the worker is gone. Nobody catches these
    exceptions, so they arrive at threading.excepthook.
    """
    lost = threading.Event()
    done = threading.Event()
    previous_hook = threading.excepthook

    def interrupt_a_hang() -> None:
        if not done.wait(GRACE_SECONDS):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def on_thread_error(arguments: threading.ExceptHookArgs) -> None:
        thread = arguments.thread
        if thread is None or thread.name not in WORKER_THREADS:
            previous_hook(arguments)
        elif not lost.is_set():
            lost.set()
            threading.Thread(target=interrupt_a_hang, daemon=True).start()

    threading.excepthook = on_thread_error
    try:
        yield
    except (KeyboardInterrupt, RuntimeError) as error:
        if "Channel closed prematurely" in str(error):
            lost.set()  # the thread that waits for the worker may not have seen its end yet
        if not lost.is_set():
            raise
        raise WorkerLostError(
            "A worker process was killed; when memory runs out, the system does that. Finished pieces are kept: run "
            "the same command again, with fewer --direct_num_workers if memory is short."
        ) from error
    finally:
        done.set()
        threading.excepthook = previous_hook
