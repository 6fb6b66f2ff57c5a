"""The terminal: texts that are safe to print, and a stdout that may fail.

stdout of every command may be a pipe that closes, a full disk, or a terminal that lacks letters.

closed pipe (`clozeline recipes | head -1`)   the rest is dropped silently, and the command continues
full disk                                     StorageError, at once and again at the end
letters that the encoding lacks               escapes such as \\u2581
"""

from __future__ import annotations

import contextlib
import os
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TextIO

from schemas import progress
from schemas.errors import StorageError

# Text

BIDI_CONTROLS = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
"""Characters that reorder the text after them, beyond the end of the string that contains them."""

LABEL_WIDTH = 12  # of the name before a line's content


def one_line(text: str) -> str:
    """Return text with line breaks and control characters escaped: file names may contain both."""
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def terminal_safe(text: str) -> str:
    """Return text with its line breaks, but with every other character that could control a terminal escaped.

    Letters, marks and spaces of all scripts stay. So do joiners, which some scripts and emoji need.
    """
    return "".join(_escaped(c) if _controls_terminal(c) else c for c in text)


def _controls_terminal(character: str) -> bool:
    if character == "\n":
        return False
    return unicodedata.category(character) in ("Cc", "Cs") or character in BIDI_CONTROLS


def in_hours(hours: float) -> str:
    """Return a number of hours in words. Example: `in_hours(1.0)` -> `"1 hour"`."""
    return f"{hours:g} hour" + "s" * (hours != 1)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun. Example: `counted(1, "tag")` -> `"1 tag"`, and 2 gives "2 tags"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def megabytes(size: int) -> str:
    """Return a size in bytes as people read it. Example: `megabytes(2_884_000)` -> `"2.9 MB"`."""
    if size < 100_000:
        return f"{size:,} bytes"
    return f"{size / 1e6:,.1f} MB" if size < 1e10 else f"{size / 1e9:,.1f} GB"


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode()


def columns(text: str) -> int:
    """Return how many columns of a terminal a text takes: two for an ideograph, none for a mark."""
    widths = (2 if unicodedata.east_asian_width(c) in "WF" else int(not unicodedata.combining(c)) for c in text)
    return sum(widths)


def padded(text: str, width: int) -> str:
    """Return text with spaces behind it, up to `width` columns."""
    return text + " " * (width - columns(text))


def labeled(name: str, text: object) -> str:
    """Return a name and its text, which starts at the same column in every line."""
    return f"{padded(name, LABEL_WIDTH - 1)} {text}"


def next_is(*commands: str) -> Iterator[str]:
    """Yield lines with what to type next."""
    for number, command in enumerate(commands):
        yield labeled("" if number else "next", command)


def print_note(note: str) -> None:
    """Print a line to stderr, above the line of progress if there is one."""
    with progress.above():
        print(note, file=sys.stderr, flush=True)


def tell(message: str) -> None:
    """Print `clozeline: MESSAGE` as `print_note` does. message: safe to print."""
    print_note(f"clozeline: {message}")


def tell_warning(message: str) -> None:
    """As `tell`, for what may not be as the user believes."""
    tell(f"{progress.colored('warning:', progress.YELLOW, sys.stderr)} {message}")


def tell_error(message: str) -> None:
    """As `tell`, for what ends the command."""
    progress.end()
    with contextlib.suppress(OSError):  # the terminal was closed
        print(progress.colored("clozeline:", progress.RED, sys.stderr), message, file=sys.stderr, flush=True)


# Output


class Output:
    """A text stream that drops what a closed pipe does not take, and raises StorageError for what a disk refuses."""

    def __init__(self, stream: TextIO):
        self.is_open = True
        self.error: StorageError | None = None
        self._stream = stream

    def write(self, text: str) -> int:
        self._attempt(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._attempt(self._stream.flush)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _attempt(self, action: Callable[[], object]) -> None:
        try:
            action()
        except OSError as error:
            # Otherwise the interpreter would try to write the rest at exit, and print a traceback.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            self.is_open = False
            if not isinstance(error, BrokenPipeError):
                reason = error.strerror or error
                self.error = StorageError(
                    f"The output cannot be written: {reason}. Check the disk that stdout goes to."
                )
                raise self.error from error


@contextlib.contextmanager
def checked_stdout() -> Iterator[None]:
    """Make stdout an `Output` inside the block, and raise its error at the end if the block went on after it."""
    stream = sys.stdout
    if stream is None:  # the command was started with stdout closed
        yield
        return

    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="backslashreplace")
    output = Output(stream)
    sys.stdout = output
    try:
        yield
    finally:
        sys.stdout = stream
        output.flush()
    if output.error is not None:
        raise output.error


def print_lines(lines: Iterable[str]) -> None:
    """Print lines, or stop when the reader (`head`, for example) closes the pipe. Ends the progress."""
    progress.end()
    for line in lines:
        print(terminal_safe(line))
        if not getattr(sys.stdout, "is_open", True):
            return
    if sys.stdout is not None:
        sys.stdout.flush()
