"""Records the signals that ask a suite to stop: SIGTERM, SIGUSR1 and Ctrl-C.

The scheduler checks several times a second. It asks all processes to save and end, and waits for them. The command then
exits with 75, or with 130 after Ctrl-C. A second Ctrl-C kills the processes.
"""

from __future__ import annotations

import signal
from time import monotonic
from typing import Any

from schemas.errors import PreemptedError
from trainer.distributed.stop import INTERRUPTED, LISTENED, SAME_REQUEST


class SuiteStoppedError(PreemptedError):
    """A signal asked the suite to stop, and its processes have saved. `exit_code` depends on the signal."""

    def __init__(self, message: str, exit_code: int):
        super().__init__(message)
        self.exit_code = exit_code


class Stop:
    """Records stop requests.

    asked: whether any signal asked this process to stop. at_once: whether a second Ctrl-C asked to kill the jobs.
    """

    def __init__(self) -> None:
        self.asked = False
        self.at_once = False
        self._interrupted_at: float | None = None

    def listen(self) -> Stop:
        """Record signals from now on instead of ending the process. Must be called from the main thread."""
        for number in LISTENED:
            signal.signal(number, self._note)
        return self

    def error(self, message: str) -> SuiteStoppedError:
        """Return the error that the command ends with. Its exit code is 130 after Ctrl-C, otherwise 75."""
        was_interrupted = self._interrupted_at is not None
        return SuiteStoppedError(message, INTERRUPTED if was_interrupted else PreemptedError.exit_code)

    def _note(self, number: int, frame: Any) -> None:
        self.asked = True
        if number != signal.SIGINT:
            return
        if self._interrupted_at is None:
            self._interrupted_at = monotonic()
        # A wrapper may deliver one Ctrl-C twice, so a signal within SAME_REQUEST seconds belongs to the first.
        elif monotonic() - self._interrupted_at >= SAME_REQUEST:
            self.at_once = True
