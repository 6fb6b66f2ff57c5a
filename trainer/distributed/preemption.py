"""Handles signals that ask a run to save and end.

    SIGTERM, SIGUSR1   save the last complete step and exit with 75; a run of one process that does not train yet, and
                       so has nothing to save, exits at once
    SIGINT (Ctrl-C)    save, too, and exit with 75; if nothing trains, or a second time, exit at once with 130

Slurm (--signal), Kubernetes, spot instances and torchrun send one of the first two, to one rank or to all, often twice.
A terminal sends SIGINT to every process of the job, and launchers add a SIGTERM.

Two threads are involved. Python runs a signal handler in the main thread, between two bytecodes. The handler only notes
the request, which the training loop reads between micro-batches (see stop_agreement.py). That is too late for an
immediate exit, because the main thread may be blocked in a collective or compile an extension for minutes. So Python's
C handler also writes the signal's number to a pipe (signal.set_wakeup_fd), and a daemon thread reads the pipe. Only
that thread ends the process at once, with os._exit. Of several ranks, one that ends alone would leave others waiting.
"""

from __future__ import annotations

import contextlib
import os
import signal
from threading import Thread
from time import monotonic
from typing import Any, NoReturn

from schemas.errors import PreemptedError

PREEMPTED = PreemptedError.exit_code
INTERRUPTED = 130
"""Exit code of an interrupted command: 128 + SIGINT."""
STOPPING = (signal.SIGTERM, signal.SIGUSR1)
LISTENED = (*STOPPING, signal.SIGINT)
SAME_REQUEST = 0.5
"""Seconds within which a second SIGINT counts as the first, because some wrappers signal both process and group."""


class StopRequest:
    """Whether this process was asked to stop."""

    def __init__(self) -> None:
        self.asked = False
        self._is_alone = (
            os.environ.get("WORLD_SIZE", "1") == "1"
        )  # the only rank, as the launcher says, if there is one
        self._is_training = False
        self._has_trained = False
        self._interrupted_at: float | None = None
        self._pipe_writer: int | None = None

    def listen(self) -> StopRequest:
        """From now on, note the three signals instead of ending the process. Call it from the main thread."""
        reader, self._pipe_writer = os.pipe()
        os.set_blocking(self._pipe_writer, False)
        signal.set_wakeup_fd(self._pipe_writer, warn_on_full_buffer=False)
        for number in LISTENED:
            signal.signal(number, self._note)

        Thread(target=self._read_signals, args=(reader,), name="signals", daemon=True).start()
        return self

    def training_begins(self) -> None:
        """Note that there is now something to save, so the first SIGINT requests that instead of ending the process."""
        self._is_training = True
        self._has_trained = True

    def training_ends(self) -> None:
        """Note that everything is saved and the command continues with something other than training.

        Until training begins again, a SIGINT ends the process at once.
        """
        self._is_training = False

    def ignore(self) -> None:
        """From now on, ignore the signals, because a late one must not change the exit code of a run that saved."""
        for number in STOPPING:
            signal.signal(number, signal.SIG_IGN)
        # Not SIG_IGN, because child processes would inherit it and could not be interrupted.
        signal.signal(signal.SIGINT, _do_nothing)

        # Closing the writing end makes the reading thread end.
        if self._pipe_writer is not None:
            signal.set_wakeup_fd(-1)
            os.close(self._pipe_writer)
            self._pipe_writer = None

    def _note(self, number: int, frame: Any) -> None:
        self.asked = True

    def _read_signals(self, reader: int) -> None:
        """Read signal numbers, one byte each, until the pipe is closed, and act on those that end the process."""
        while True:
            numbers = os.read(reader, 64)
            if not numbers:
                break
            if not self._is_training and self._is_alone and any(number in numbers for number in STOPPING):
                _end(f"asked to stop {self._moment()}", PREEMPTED)
            for _ in range(numbers.count(signal.SIGINT)):
                self._interrupt()
        os.close(reader)

    def _interrupt(self) -> None:
        if not self._is_training:
            _end(f"interrupted {self._moment()}", INTERRUPTED)

        now = monotonic()
        if self._interrupted_at is None:
            self._interrupted_at = now
            _say("interrupted: saving the last complete step. Interrupt again to end at once without saving.")
        elif now - self._interrupted_at >= SAME_REQUEST:
            _end(
                "interrupted again, ended without saving. The same command resumes from the last checkpoint.",
                INTERRUPTED,
            )

    def _moment(self) -> str:
        if self._has_trained:
            return "between two trainings. Nothing was lost; the same command continues."
        return "before training began. Nothing was lost; the same command starts again."


def _do_nothing(number: int, frame: Any) -> None:
    """Handle a signal that no longer matters."""


def _say(message: str) -> None:
    """Write a line to stderr on rank 0. Not with the logger, whose lock the blocked main thread may hold."""
    if os.environ.get("RANK", "0") == "0":
        with contextlib.suppress(OSError):
            os.write(2, f"clozeline: {message}\n".encode())


def _end(message: str, code: int) -> NoReturn:
    """End the process. Checkpoints are published by a rename, so cutting a save short leaves the older ones intact."""
    _say(message)
    os._exit(code)
