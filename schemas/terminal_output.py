"""stdout of every command: it may be a pipe that closes, a full disk, or a terminal that lacks letters.

closed pipe (`clozeline recipes | head -1`)   the rest is dropped silently, and the command continues
full disk                                     StorageError, at once and again at the end
letters that the encoding lacks               escapes such as \\u2581
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TextIO

from schemas.errors import StorageError
from schemas.terminal_text import terminal_safe


class Output:
    """A text stream that drops what a closed pipe does not take, and raises StorageError for what a disk refuses."""

    def __init__(self, stream: TextIO):
        self.is_open = True
        self.error: StorageError | None = None
        self._stream = stream

    def write(self, text: str) -> int:
        """Write like a file does."""
        self._attempt(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        """Flush like a file does."""
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
        stream.reconfigure(errors="backslashreplace")  # pyright: ignore[reportAttributeAccessIssue]
    output = Output(stream)
    sys.stdout = output  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        sys.stdout = stream
        output.flush()
    if output.error is not None:
        raise output.error


def print_lines(lines: Iterable[str]) -> None:
    """Print lines, or stop when the reader (`head`, for example) closes the pipe."""
    for line in lines:
        print(terminal_safe(line))
        if not getattr(sys.stdout, "is_open", True):
            return
    if sys.stdout is not None:
        sys.stdout.flush()
