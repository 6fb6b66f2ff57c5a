"""Prints results to stdout, which may be a closed pipe or a full disk, and asks questions on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

from schemas.errors import StorageError
from schemas.terminal_text import terminal_safe


def print_lines(lines: Iterable[str]) -> None:
    """Print all lines, or stop when the reader (`head`, for example) closes the pipe.

    Raises StorageError if stdout is a file that cannot be written.
    """
    for line in lines:
        if not _reaches_reader(terminal_safe(line) + "\n"):
            return
    _reaches_reader("", flush=True)


def _reaches_reader(text: str, flush: bool = False) -> bool:
    """Print the text and return True, or return False if the reader has closed the pipe."""
    try:
        print(text, end="", flush=flush)
    except BrokenPipeError:
        _discard_stdout()
        return False
    except OSError as error:
        _discard_stdout()
        reason = error.strerror or error
        raise StorageError(f"The output cannot be written: {reason}. Check the disk that stdout goes to.") from error
    return True


def _discard_stdout() -> None:
    """Redirect buffered output to nowhere; otherwise the interpreter would fail to write it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def can_ask() -> bool:
    """Whether there is a user who can see questions and answer them."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


def ask(question: str) -> str:
    """Ask on stderr, where everything but results goes, and return the answer. Raises EOFError if there is none."""
    print(f"\n{question}", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if not answer:
        raise EOFError
    return answer
