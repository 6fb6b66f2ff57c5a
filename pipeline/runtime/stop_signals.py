"""Signals that ask a command to stop, all treated as Ctrl-C is.

They often reach a whole process group, twice over: `timeout` signals the command and then its group. So workers ignore
them and end with their launcher, and a signal that follows another within REPEAT_SECONDS is the same request.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from types import FrameType

STOP_SIGNALS = (signal.SIGTERM, signal.SIGHUP)

REPEAT_SECONDS = 5.0
"""How long a further signal changes nothing, so that it does not interrupt what the first has begun to clean up."""


class Terminated(KeyboardInterrupt):
    """Another program asks the command to stop, or its terminal is gone; no user is there to answer questions."""


class _Requests:
    """When this process was last asked to stop by one of STOP_SIGNALS; None while nobody has asked."""

    last: float | None = None


def is_requested() -> bool:
    """Whether one of STOP_SIGNALS has come since the command began. An exception may be lost on its way."""
    return _Requests.last is not None


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
    _Requests.last = None
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        _Requests.last = None


def _interrupt(number: int, frame: FrameType | None) -> None:
    now = monotonic()
    is_repeated = _Requests.last is not None and now - _Requests.last < REPEAT_SECONDS
    if not is_repeated:
        _Requests.last = now
        raise Terminated


class Deferral:
    """Signals that wait: the first is noted, and a second Ctrl-C or the end of the time raises."""

    def __init__(self, seconds: float, notice: str):
        self.asked: KeyboardInterrupt | None = None
        self._seconds = seconds
        self._notice = notice
        self._is_over = threading.Event()

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Take a signal."""
        if self.asked is not None:
            if self._is_over.is_set() or number == signal.SIGINT:
                raise self.asked
            return

        if number == signal.SIGINT:
            self.asked = KeyboardInterrupt()
        else:
            _Requests.last = monotonic()
            self.asked = Terminated()
        print(f"clozeline: {self._notice}", file=sys.stderr, flush=True)
        timer = threading.Timer(self._seconds, self._end, [number])
        timer.daemon = True
        timer.start()

    def close(self) -> None:
        """End the time, so that the timer does nothing any more."""
        self._is_over.set()

    def _end(self, number: int) -> None:
        if not self._is_over.is_set():
            self._is_over.set()
            signal.pthread_kill(threading.main_thread().ident or 0, number)


@contextmanager
def deferred(seconds: float, notice: str) -> Iterator[Deferral]:
    """Put off Ctrl-C, SIGTERM and SIGHUP while the block does what must not be torn, for `seconds` at most.

    notice: what is printed when one comes. Gives what was asked for meanwhile, as `asked`. Signals that nothing in this
    program handles stay as they are.
    """
    deferral = Deferral(seconds, notice)
    if threading.current_thread() is not threading.main_thread():
        yield deferral
        return

    numbers = [number for number in (signal.SIGINT, *STOP_SIGNALS) if callable(signal.getsignal(number))]
    previous = {number: signal.signal(number, deferral.handle) for number in numbers}
    try:
        yield deferral
    finally:
        deferral.close()
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def told_as_finished(output: str) -> Iterator[None]:
    """Have a stop inside the block say that the result in `output` is in place, and not that it has to be made."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        message = (
            f"stopped once {output} was finished: its manifest.json is in place. The same command does only what is "
            "left to do."
        )
        raise KeyboardInterrupt(message) from interrupt
