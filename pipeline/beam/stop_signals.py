"""Signals that ask a command to stop, all treated like Ctrl-C.

They often reach a whole process group, and twice: `timeout` signals the command and then its group. So workers ignore
them and end with their launcher, and a signal within REPEAT_SECONDS of another counts as the same request.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from types import FrameType

from schemas.terminal import tell

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Windows has no SIGHUP."""

REPEAT_SECONDS = 5.0
"""For this long a repeated signal is ignored, so that it does not interrupt the cleanup that the first one started."""

Handler = Callable[[int, FrameType | None], object]


class _Requests:
    """When SIGTERM or SIGHUP last asked this process to stop; None if neither has."""

    last: float | None = None


def is_requested() -> bool:
    """Whether SIGTERM or SIGHUP has arrived since the command began, even if its exception was lost on the way."""
    return _Requests.last is not None


@contextmanager
def as_interrupts() -> Iterator[None]:
    """Make SIGTERM and SIGHUP raise KeyboardInterrupt inside the block, as SIGINT does.

    A signal that is ignored stays ignored: `nohup` starts a command that way.
    """
    # None stands for a handler that was not installed from Python, which could not be put back.
    numbers = [number for number in SIGNALS if signal.getsignal(number) not in (signal.SIG_IGN, None)]
    handlers: dict[int, Handler] = dict.fromkeys(numbers, _interrupt)
    if signal.SIGINT in handlers:
        handlers[signal.SIGINT] = signal.default_int_handler
    _Requests.last = None
    try:
        with _handled_by(handlers):
            yield
    finally:
        _Requests.last = None


def _interrupt(number: int, frame: FrameType | None) -> None:
    now = monotonic()
    is_repeated = _Requests.last is not None and now - _Requests.last < REPEAT_SECONDS
    if not is_repeated:
        _Requests.last = now
        raise KeyboardInterrupt


@contextmanager
def preceded_by(action: Callable[[], None]) -> Iterator[None]:
    """Have Ctrl-C, SIGTERM and SIGHUP call `action` before they interrupt the block."""
    previous = _handlers()

    def handle(number: int, frame: FrameType | None) -> None:
        action()
        previous[number](number, frame)

    with _handled_by(dict.fromkeys(previous, handle)):
        yield


@contextmanager
def deferred(notice: str) -> Iterator[list[int]]:
    """Defer Ctrl-C, SIGTERM and SIGHUP while the block does what must not be interrupted.

    A second Ctrl-C interrupts it.

    notice: printed when a signal arrives. Yields a list, which holds an item once a signal has arrived.
    """
    arrived: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if arrived and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not arrived:
            tell(notice)
        if number != signal.SIGINT:
            _Requests.last = monotonic()
        arrived.append(number)

    with _handled_by(dict.fromkeys(_handlers(), handle)):
        yield arrived


def _handlers() -> dict[int, Handler]:
    """Return the handlers of all stop signals that have one in Python."""
    found = {int(number): signal.getsignal(number) for number in SIGNALS}
    return {number: handler for number, handler in found.items() if callable(handler)}


@contextmanager
def _handled_by(handlers: dict[int, Handler]) -> Iterator[None]:
    """Handle signals so while the block runs. No effect outside the main thread, where Python allows no handlers."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    previous = {number: signal.signal(number, handlers[number]) for number in handlers if in_main_thread}
    try:
        yield
    finally:
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
