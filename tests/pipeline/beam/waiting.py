"""Waiting for other processes."""

from __future__ import annotations

import time
from collections.abc import Callable

SECONDS = 100
"""After which something counts as hung, on a busy machine too."""


def wait_for(condition: Callable[[], object], what: str) -> None:
    """Wait until a condition holds. `what` is the message if it does not."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
