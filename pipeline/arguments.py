"""argparse with one-line errors that name what is wrong and the nearest flag, instead of printing the whole usage."""

from __future__ import annotations

import argparse
import re
import sys
from typing import NoReturn

from pipeline.flags import yes_or_no
from schemas.errors import UsageError, nearest_name


class JobParser(argparse.ArgumentParser):
    """A parser that raises UsageError where argparse would print its usage and exit."""

    _given: list[str]

    @property
    def known_flags(self) -> list[str]:
        """Every flag of this parser, as written on the command line."""
        return list(self._option_string_actions)

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[override]
        self._given = sys.argv[1:] if args is None else list(args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}.{self._misspelled_flags(message)} See `{self.prog} --help`.")

    def _misspelled_flags(self, message: str) -> str:
        """Return hints for unknown flags that resemble a flag that `message` reports as missing."""
        if "arguments are required" not in message:
            return ""

        missing = re.findall(r"--\w+", message)
        given = [argument.partition("=")[0] for argument in self._given if argument.startswith("--")]

        hints = []
        for flag in given:
            if flag in self._option_string_actions:
                continue

            hint = nearest_name(flag, missing)
            if hint:
                hints.append(f" Unknown flag {flag}.{hint}")
        return "".join(hints)


def add_launch_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that control how a job is launched."""
    parser.add_argument(
        "--dry_run",
        nargs="?",
        type=yes_or_no,
        const=True,
        default=False,
        help="check the job, print its size and an estimate of its work, and touch nothing",
    )
    parser.add_argument(
        "--no_wait",
        action="store_true",
        help="submit the job to its engine, print its id and exit; it publishes on its own",
    )


def launch_flags(parsed: argparse.Namespace) -> list[str]:
    """Return the given flags of `add_launch_flags`, in the form in which jobs accept them among Beam's flags."""
    flags = ["--dry_run=True"] if getattr(parsed, "dry_run", False) else []
    if getattr(parsed, "no_wait", False):
        flags.append("--no_wait")
    return flags


def unknown_flags(unknown: list[str], known: list[str], what: str = "flag") -> UsageError:
    """Return the error for unknown flags, each with the nearest known one. Leaves out their values."""
    hints = []
    for flag in [word for word in unknown if word.startswith("-")] or unknown:
        name = flag.split("=")[0]
        hints.append(f"Unknown {what} {flag}.{nearest_name(name, known)}")
    return UsageError("; ".join(hints))
