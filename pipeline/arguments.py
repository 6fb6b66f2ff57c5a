"""The flags that control how a job is launched, and the error for unknown flags."""

from __future__ import annotations

import argparse

from pipeline.flags import yes_or_no
from schemas.errors import UsageError
from schemas.one_line_parser import flag_hint


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
    if len(unknown) > 1 and not any(word.startswith("-") for word in unknown):
        return UsageError(
            f"{len(unknown)} unexpected arguments, the first: {unknown[0]}. If they come from a pattern, quote it so "
            "that the shell does not expand it: 'folder/*.txt'."
        )
    hints = []
    for flag in [word for word in unknown if word.startswith("-")] or unknown:
        name = flag.split("=")[0]
        hints.append(f"Unknown {what} {flag}.{flag_hint(name, known)}")
    return UsageError("; ".join(hints))
