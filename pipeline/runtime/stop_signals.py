"""Signals that ask a command to stop, all treated as Ctrl-C is."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOP_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class Terminated(KeyboardInterrupt):
    """Another program asks the command to stop, or its terminal is gone; no user is there to answer questions."""


@contextmanager
def as_interrupts() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise `Terminated` inside the block, a KeyboardInterrupt as SIGINT raises.

    A signal that is ignored stays ignored: `nohup` starts a command that way. Has no effect outside the main thread,
    where Python allows no signal handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    # None stands for a handler that was not installed from Python, which could not be put back.
    untouched = (signal.SIG_IGN, None)
    numbers = [number for number in STOP_SIGNALS if signal.getsignal(number) not in untouched]
    previous = {number: signal.signal(number, _interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise Terminated
