"""Progress on a terminal: one line on stderr, which is a bar or says what is waited for. Elsewhere nothing is drawn.

Colors are here, too, because the line has one.

    with progress.Bar("shard", total=8_000_000, unit="B") as bar:
        bar.advance(1_000_000)
    progress.doing("loading torch")

A process has one such line at a time, so bars do not nest: whatever begins one ends the one before. A thread draws it
once a second, so that the time also moves in a long step, and `advance` draws it ten times a second at most.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any, TextIO

DRAW_EVERY = 1.0  # seconds
JOIN_SECONDS = 1.0  # a terminal that was halted with Ctrl-S takes nothing, and must not keep a command from ending

_shown: Bar | None = None
"""The line that the terminal has now."""


class Bar:
    """A bar with tqdm's rate and the time left; without a total, a count and the rate.

    what: what the bar is of. total: None if it is not known. unit: of what is counted; "B" for bytes. done: what was
    done before, which counts in no rate. stays: the last state of the bar stays on the terminal.
    """

    def __init__(self, what: str, total: int | None, unit: str, done: int = 0, stays: bool = False):
        global _shown
        end()
        self._what = what
        self._doing = ""
        self._bar: Any = None
        if not is_terminal(sys.stderr):
            return

        from tqdm import tqdm  # not in commands that draw nothing

        self._bar = tqdm(
            total=total,
            desc=what,
            initial=done,
            unit=unit,
            unit_scale=unit == "B",
            leave=stays,
            delay=0 if unit else DRAW_EVERY,
            bar_format=None if unit else "{desc} [{elapsed}]",
            colour="green" if takes_color(sys.stderr) else None,
            **_size_on_screen(),
        )
        if self._bar.disable:  # by TQDM_DISABLE
            self._bar = None
            return
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._draw_regularly, name="progress", daemon=True)
        self._thread.start()
        _shown = self

    @property
    def is_drawn(self) -> bool:
        return self._bar is not None and not self._bar.disable

    def advance(self, number: int = 1) -> None:
        """Count more that is done."""
        if self._bar is not None:
            self._bar.update(number)

    def reach(self, done: int) -> None:
        """Set how much is done in all."""
        if self._bar is not None:
            self._bar.update(done - self._bar.n)

    def set_total(self, total: int) -> None:
        if self._bar is not None:
            self._bar.total = total

    def note(self, text: str) -> None:
        """Show a text behind the rate, such as the loss."""
        if self._bar is not None:
            self._bar.set_postfix_str(text, refresh=False)

    def close(self) -> None:
        """Take the bar off the terminal, or end its line if it stays."""
        global _shown
        if self._bar is None or self._ended.is_set():
            return
        self._ended.set()
        self._thread.join(JOIN_SECONDS)
        if self._what:
            self._describe("")
        self._bar.close()
        if _shown is self:
            _shown = None

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def doing(self, what: str) -> None:
        """Say what is done at present; empty for what the bar counts. Drawn by the thread."""
        if what or self._what:
            self._doing = what

    def _draw_regularly(self) -> None:
        while not self._ended.wait(DRAW_EVERY):
            self._describe(self._doing)
            self._bar.delay = 0  # tqdm takes a bar with a delay for one that was never drawn
            self._bar.refresh()

    def _describe(self, doing: str) -> None:
        self._bar.set_description_str(", ".join(filter(None, (self._what, doing))), refresh=False)


def _size_on_screen() -> dict[str, Any]:
    """Return tqdm's arguments for the size of the terminal, which may change; some terminals know none."""
    with contextlib.suppress(OSError, ValueError):
        columns, lines = os.get_terminal_size(sys.stderr.fileno())
        if columns == 0 or lines == 0:
            return {"ncols": columns or 80, "nrows": lines or 24}
    return {"dynamic_ncols": True}


def doing(what: str) -> None:
    """Say what the process does at present: next to the bar, or on a line with the time until there is a bar.

    Drawn within a second, so what takes less is not seen. what: empty for what the bar counts.
    """
    if _shown is not None:
        _shown.doing(what)
    elif what:
        Bar("", None, "").doing(what)


def end() -> None:
    """Take away the line, whatever it is."""
    if _shown is not None:
        _shown.close()


def is_drawn() -> bool:
    """Whether the terminal has a line of this process, which other output would be appended to."""
    return _shown is not None


@contextlib.contextmanager
def above() -> Iterator[None]:
    """Have lines that the block prints appear above the bar, if there is one."""
    if _shown is None:
        yield
        return

    from tqdm import tqdm

    with tqdm.external_write_mode():
        yield


# Colors

RED, YELLOW = 31, 33


def takes_color(stream: TextIO | None) -> bool:
    """Return whether a stream is a terminal with colors that the user wants: https://no-color.org."""
    is_wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return is_wanted and is_terminal(stream)


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a stream is a terminal. A process may lack one: `>&-` closes stdout."""
    return stream is not None and stream.isatty()


def colored(text: str, color: int, stream: TextIO | None) -> str:
    """Return text in a color (RED, YELLOW) for a terminal that takes it, and unchanged for other streams."""
    return f"\x1b[{color}m{text}\x1b[0m" if takes_color(stream) else text
