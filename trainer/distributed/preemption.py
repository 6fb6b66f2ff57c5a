"""Signals that ask a run to save and end.

    SIGTERM, SIGUSR1   save the last complete step and exit with 75
    SIGINT (Ctrl-C)    the same once training has begun; before that, or a second time, end at once with 130

Slurm (--signal), Kubernetes, spot instances and torchrun send one of the first two, to one rank or to all, often twice.
A terminal sends SIGINT to every process of the job, and launchers add a SIGTERM.

A handler only runs when the main thread is between two bytecodes. That is too late for ending at once: the main thread
may wait in a collective call, or compile an extension for minutes. So a thread reads the signals from a pipe.
"""

from __future__ import annotations

import contextlib
import os
import signal
from threading import Thread
from time import monotonic
from typing import Any

INTERRUPTED = 130
STOPPING = (signal.SIGTERM, signal.SIGUSR1)
LISTENED = (*STOPPING, signal.SIGINT)
SAME_REQUEST = 0.5
"""Seconds within which a second SIGINT belongs to the first: some wrappers signal both the process and its group."""


class StopRequest:
    """Whether this process was asked to stop."""

    def __init__(self) -> None:
        self.asked = False
        self._training = False
        self._interrupted_at: float | None = None
        self._pipe: tuple[int, int] | None = None

    def listen(self) -> StopRequest:
        """Note the three signals from now on instead of ending the process. Call it from the main thread."""
        self._pipe = os.pipe()
        reader, writer = self._pipe
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in LISTENED:
            signal.signal(number, self._note)

        Thread(target=self._watch, args=(reader,), name="signals", daemon=True).start()
        return self

    def training_begins(self) -> None:
        """From now on there is something to save, so the first SIGINT asks for that instead of ending the process."""
        self._training = True

    def ignore(self) -> None:
        """Ignore the signals from now on: a late one must not change the exit code of a run that saved."""
        for number in STOPPING:
            signal.signal(number, signal.SIG_IGN)
        # Not SIG_IGN: child processes would inherit it and could not be interrupted.
        signal.signal(signal.SIGINT, _do_nothing)

        if self._pipe is not None:
            signal.set_wakeup_fd(-1)
            os.close(self._pipe[1])
            self._pipe = None

    def _note(self, number: int, frame: Any) -> None:
        self.asked = True

    def _watch(self, reader: int) -> None:
        """Read signal numbers until the pipe is closed; each SIGINT is acted on here, the others by the handler."""
        while numbers := os.read(reader, 64):
            for _ in range(numbers.count(signal.SIGINT)):
                self._interrupt()
        os.close(reader)

    def _interrupt(self) -> None:
        now = monotonic()
        if not self._training:
            _end("interrupted before training began. Nothing was lost; the same command starts again.")

        if self._interrupted_at is None:
            self._interrupted_at = now
            _say("interrupted: saving the last complete step. Interrupt again to end at once without saving.")
        elif now - self._interrupted_at >= SAME_REQUEST:
            _end("interrupted again, ended without saving. The same command resumes from the last checkpoint.")


def _do_nothing(number: int, frame: Any) -> None:
    """Handle a signal that no longer matters."""


def _say(message: str) -> None:
    """Write a line from rank 0, past any lock that the main thread may hold."""
    if os.environ.get("RANK", "0") == "0":
        with contextlib.suppress(OSError):
            os.write(2, f"clozeline: {message}\n".encode())


def _end(message: str) -> None:
    """End the process. Checkpoints are published by a rename, so a save that is cut here leaves the older ones."""
    _say(message)
    os._exit(INTERRUPTED)
