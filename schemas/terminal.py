"""The terminal: texts that are safe to print, stdout that may fail, and command lines with one-line errors.

stdout of every command may be a pipe that closes, a full disk, or a terminal that lacks letters.

closed pipe (`clozeline recipes | head -1`)   the rest is dropped silently, and the command continues
full disk                                     StorageError, at once and again at the end
letters that the encoding lacks               escapes such as \\u2581
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn, TextIO

from schemas import progress
from schemas.errors import StorageError, UsageError, nearest_name

# Text

BIDI_CONTROLS = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
"""Characters that reorder the text after them, beyond the end of the string that contains them."""


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


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode()


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


# Command lines


class OneLineParser(argparse.ArgumentParser):
    """A parser that raises UsageError where argparse would print its usage and exit."""

    values_of_flags: dict[str, Any]
    """The values of the flags that have been parsed so far."""

    _given: list[str]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        for name in (None, "store"):
            self.register("action", name, StoreOnce)

    @property
    def known_flags(self) -> list[str]:
        """Every flag of this parser, as written on the command line."""
        return list(self._option_string_actions)

    def parse_known_args(self, args=None, namespace=None):
        self._given = sys.argv[1:] if args is None else list(args)
        self.values_of_flags = {}
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}.{self._misspelled_flags(message)} See `{self.prog} --help`.")

    def _misspelled_flags(self, message: str) -> str:
        """Return hints for the unknown flags that resemble one that `message` asks for, or any if it refuses flags."""
        if "arguments are required" in message:
            candidates = re.findall(r"--\w+", message)
        elif "unrecognized arguments" in message:
            candidates = self.known_flags
        else:
            return ""

        given = [argument.partition("=")[0] for argument in self._given if argument.startswith("--")]
        hints = []
        for flag in given:
            if flag in self._option_string_actions:
                continue

            hint = flag_hint(flag, candidates)
            if hint:
                hints.append(f" Unknown flag {flag}.{hint}")
        return "".join(hints)


class StoreOnce(argparse.Action):
    """Stores a flag's value as argparse does by default, and raises UsageError for a second value that differs."""

    def __call__(self, parser, namespace, values, option_string=None) -> None:
        if option_string is not None and isinstance(parser, OneLineParser):
            first = parser.values_of_flags.setdefault(self.dest, values)
            if first != values:
                raise UsageError(f"{option_string} is given twice, as {first} and as {values}. Give it once.")
        setattr(namespace, self.dest, values)


def flag_hint(flag: str, known: Iterable[str]) -> str:
    """Return what was probably meant by an unknown flag, or an empty string."""
    if flag.startswith("--resume"):
        return " It is not needed: the same command continues what it began."
    # Without dashes, in which all flags are alike.
    hint = nearest_name(flag.removeprefix("--"), [name.removeprefix("--") for name in known if name.startswith("--")])
    return hint.replace("mean ", "mean --", 1)
