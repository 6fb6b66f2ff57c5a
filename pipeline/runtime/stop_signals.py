"""Signals that ask a command to stop, all treated like Ctrl-C.

They often reach a whole process group, and twice: `timeout` signals the command and then its group. So workers ignore
them and end with their launcher, and a signal within REPEAT_SECONDS of another counts as the same request.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from types import FrameType

STOP_SIGNALS = (signal.SIGTERM, signal.SIGHUP)

REPEAT_SECONDS = 5.0
"""For this long a repeated signal is ignored, so that it does not interrupt the cleanup that the first one started."""


class Terminated(KeyboardInterrupt):
    """Raised if another program stops the command, or its terminal is gone: no user is there to answer questions."""


class _Requests:
    """When this process was last asked to stop by one of STOP_SIGNALS; None while nobody has asked."""

    last: float | None = None


def is_requested() -> bool:
    """Whether one of STOP_SIGNALS has arrived since the command began, even if its exception was lost on the way."""
    return _Requests.last is not None


@contextmanager
def as_interrupts() -> Iterator[None]:
    """Make SIGTERM and SIGHUP raise `Terminated` inside the block, and SIGINT the KeyboardInterrupt that it is.

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
    if signal.getsignal(signal.SIGINT) not in untouched:
        previous[signal.SIGINT] = signal.signal(signal.SIGINT, signal.default_int_handler)
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


@contextmanager
def preceded_by(action: Callable[[], None]) -> Iterator[None]:
    """Have Ctrl-C, SIGTERM and SIGHUP call `action` before they interrupt the block."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    handlers = {int(number): signal.getsignal(number) for number in (signal.SIGINT, *STOP_SIGNALS)}
    previous = {number: handler for number, handler in handlers.items() if callable(handler)}

    def handle(number: int, frame: FrameType | None) -> None:
        action()
        previous[number](number, frame)

    for number in previous:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class Deferral:
    """Defers signals: the first is recorded, and a second Ctrl-C or the end of the time raises its exception."""

    def __init__(self, seconds: float, notice: str):
        self.asked: KeyboardInterrupt | None = None
        self._seconds = seconds
        self._notice = notice
        self._is_over = threading.Event()

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Record the first signal; raise its exception at a second Ctrl-C or when the time is over."""
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
        """End the deferral, so that the timer does nothing."""
        self._is_over.set()

    def _end(self, number: int) -> None:
        if not self._is_over.is_set():
            self._is_over.set()
            signal.pthread_kill(threading.main_thread().ident or 0, number)


@contextmanager
def deferred(seconds: float, notice: str) -> Iterator[Deferral]:
    """Defer Ctrl-C, SIGTERM and SIGHUP, for `seconds` at most, while the block does what must not be interrupted.

    notice: printed when a signal arrives. Yields a Deferral, whose `asked` is the exception of that signal. Signals
    without a handler in Python are left as they are.
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
def reported_as_finished(output: str) -> Iterator[None]:
    """If the block is interrupted, raise a KeyboardInterrupt that says that the result in `output` is in place."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        message = (
            f"stopped once {output} was finished: its manifest.json is in place. The same command does only what is "
            "left to do."
        )
        raise KeyboardInterrupt(message) from interrupt
