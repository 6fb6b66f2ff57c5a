"""SIGTERM and SIGUSR1 ask a run to save and end. The handler only notes it; ranks agree on it when they next count.

Slurm (--signal), Kubernetes, spot instances and torchrun send one of the two, to one rank or to all, often twice.
"""

from __future__ import annotations

import signal
from typing import Any

STOPPING = (signal.SIGTERM, signal.SIGUSR1)


class StopRequest:
    """Whether somebody asked this process to stop."""

    def __init__(self) -> None:
        self.asked = False

    def listen(self) -> StopRequest:
        """From now on the two signals are noted and no longer end the process. Only in a main thread."""
        for number in STOPPING:
            signal.signal(number, self._note)
        return self

    def ignore(self) -> None:
        """From now on the two signals do nothing: a second one must not change the exit code of a run that saved."""
        for number in STOPPING:
            signal.signal(number, signal.SIG_IGN)

    def _note(self, number: int, frame: Any) -> None:
        self.asked = True
