"""Runs Clozeline's commands as a user would, each in its own process, and raises their one-line errors here.

The trainer does not import the pipeline. A job ends when this process ends. On Linux this holds even if this process is
killed, so that a restart never meets a job of the previous start.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from threading import Thread
from typing import IO

from schemas.errors import CheckpointError, ClozelineError, DataError, PreemptedError, StorageError, UsageError
from trainer.distributed.stop import INTERRUPTED, StopRequest

PREFIX = "clozeline: "
POLL_SECONDS = 0.5
SECONDS_TO_END = 30.0

ERRORS = {error.exit_code: error for error in (UsageError, DataError, CheckpointError, StorageError, PreemptedError)}

ENDS_WITH_PARENT = """\
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
    if os.getppid() != int(sys.argv[1]):
        sys.exit(1)
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""
"""A program that asks the kernel for SIGTERM when its parent dies (PR_SET_PDEATHSIG of prctl(2)), and then becomes
Python with the arguments from the second on. The first argument is the parent's process id: if the parent died before
the request, its child has another parent and exits at once."""


class JobFailedError(ClozelineError):
    """A job ended with an exit code that is not one of Clozeline's errors: it has a bug or was killed."""


def run_job(words: list[str], stop: StopRequest, progress: Callable[[], None]) -> None:
    """Run `python WORDS` and wait for it.

    progress: called every half second while the job runs.
    Raises the error that the job reported. If this process is asked to stop, ends the job and raises PreemptedError.
    """
    command = [sys.executable, "-c", ENDS_WITH_PARENT, str(os.getpid()), *words]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, encoding="utf-8")
    assert process.stderr is not None
    messages: list[str] = []
    reader = Thread(target=_read_errors, args=(process.stderr, messages), daemon=True)
    reader.start()

    try:
        while not _has_ended(process):
            progress()
            if stop.asked:
                raise PreemptedError(f"stopped during `{_shown(words)}`. The same command continues.")
    finally:
        _end(process)
    reader.join(SECONDS_TO_END)
    if process.returncode != 0:
        raise _error_of(process.returncode, words, messages)


def _has_ended(process: subprocess.Popen[str]) -> bool:
    try:
        process.wait(POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return True


def _end(process: subprocess.Popen[str]) -> None:
    """End a process if it still runs: with SIGTERM, and after 30 seconds with SIGKILL."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(SECONDS_TO_END)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _read_errors(stream: IO[str], messages: list[str]) -> None:
    """Copy a job's stderr to this process's, except its one-line error, which `run_job` raises."""
    for line in stream:
        if line.startswith(PREFIX):
            messages.append(line.removeprefix(PREFIX).strip())
        else:
            sys.stderr.write(line)


def _error_of(code: int, words: list[str], messages: list[str]) -> ClozelineError:
    """Return the error that a job ended with."""
    if code == INTERRUPTED:
        return PreemptedError(f"interrupted during `{_shown(words)}`. The same command continues.")

    if code in ERRORS and messages:
        return ERRORS[code](" ".join(messages))

    reason = f"exit code {code}" if code >= 0 else f"{signal.Signals(-code).name}"
    return JobFailedError(f"`{_shown(words)}` ended with {reason}. {' '.join(messages)}".strip())


def _shown(words: list[str]) -> str:
    return " ".join(["python", *words])
