"""Other processes: run to their end, started, and waited for."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

SECONDS = 100
"""After which something counts as hung, on a busy machine too."""


def ran(command: Sequence[object], timeout: float = 240, **how: Any) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, and keep what it prints. how: what else `subprocess.run` takes."""
    words = list(map(str, command))
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=timeout, **how)


def started(command: Sequence[object], **how: Any) -> subprocess.Popen[str]:
    """Start a program. What it prints is read by `communicate`."""
    words = list(map(str, command))
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **how)


def wait_for(
    condition: Callable[[], object], what: str, *running: subprocess.Popen[str], seconds: float = SECONDS
) -> None:
    """Wait until a condition holds. `what` is the message if it does not, or what a process printed that has ended."""
    deadline = time.monotonic() + seconds
    while not condition():
        for process in running:
            assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
