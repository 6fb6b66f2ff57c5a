"""What the trainer's commands have in common: one-line errors for wrong flags, exit codes, and types of flags.

Imports nothing that takes time, because flags are checked before torch is loaded.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import NoReturn

from schemas.errors import ClozelineError, UsageError
from trainer.logs import rank_of_process


class CommandParser(argparse.ArgumentParser):
    """An argparse parser that reports a wrong flag as a UsageError, in one line, instead of printing the usage."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}. See `{self.prog} --help`.")


def exit_code_of(act: Callable[[], None]) -> int:
    """Run a command, print the error that it ends with, and return the process's exit code."""
    try:
        act()
    except ClozelineError as error:
        print_error(error)
        return error.exit_code
    return 0


def print_error(error: ClozelineError) -> None:
    """Print an error to stderr: once if every rank raises it, otherwise with the number of the rank."""
    rank = rank_of_process()
    if rank == 0:
        print(f"clozeline: {error}", file=sys.stderr, flush=True)
    elif not error.everywhere:
        print(f"clozeline: rank {rank}: {error}", file=sys.stderr, flush=True)


def positive(text: str) -> int:
    """Return a whole number above 0, as a type of argparse's flags."""
    return _whole_number(text, lowest=1)


def not_negative(text: str) -> int:
    """Return a whole number from 0 on, as a type of argparse's flags."""
    return _whole_number(text, lowest=0)


def _whole_number(text: str, lowest: int) -> int:
    if not text.isdecimal() or int(text) < lowest:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of {lowest} or more")
    return int(text)
