"""Printing to a terminal what a corpus or a file system chose: names and text may hold control characters."""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Iterable

from schemas.errors import StorageError

BIDI_CONTROLS = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
"""Characters that reorder the text after them, beyond the end of the string that holds them."""


def print_lines(lines: Iterable[str]) -> None:
    """Print to the end, or until the reader (`head`, for example) closes the pipe.

    Raises StorageError when stdout is a file that cannot be written.
    """
    for line in lines:
        if not _reaches_reader(terminal_safe(line) + "\n"):
            return
    _reaches_reader("", flush=True)


def _reaches_reader(text: str, flush: bool = False) -> bool:
    """Print the text and return True, or return False when the reader has closed the pipe."""
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
    """Send what is still buffered nowhere; the interpreter would otherwise fail to write it when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def can_ask() -> bool:
    """Whether a user is there who sees questions and can answer them."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


def ask(question: str) -> str:
    """Ask on stderr, where all that is no result goes, and return the answer. Raises EOFError when there is none."""
    print(f"\n{question}", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if not answer:
        raise EOFError
    return answer


def one_line(text: str) -> str:
    """Return text with line breaks and control characters escaped: names of files may hold both."""
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def terminal_safe(text: str) -> str:
    """Return text of a corpus with line breaks kept and every character that could control a terminal escaped.

    Letters, marks and spaces of all scripts stay. So do joiners, which some scripts and emoji need.
    """
    return "".join(_escaped(c) if _controls_terminal(c) else c for c in text)


def _controls_terminal(character: str) -> bool:
    if character == "\n":
        return False
    return unicodedata.category(character) in ("Cc", "Cs") or character in BIDI_CONTROLS


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode()
