"""Prints text and file names that may contain control characters to a terminal, safely."""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Iterable

from schemas.errors import StorageError

BIDI_CONTROLS = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
"""Characters that reorder the text after them, beyond the end of the string that contains them."""


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


def one_line(text: str) -> str:
    """Return text with line breaks and control characters escaped: file names may contain both."""
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def terminal_safe(text: str) -> str:
    """Return corpus text with its line breaks, but with every character that could control a terminal escaped.

    Letters, marks and spaces of all scripts stay. So do joiners, which some scripts and emoji need.
    """
    return "".join(_escaped(c) if _controls_terminal(c) else c for c in text)


def _controls_terminal(character: str) -> bool:
    if character == "\n":
        return False
    return unicodedata.category(character) in ("Cc", "Cs") or character in BIDI_CONTROLS


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode()
