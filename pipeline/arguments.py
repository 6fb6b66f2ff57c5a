"""The flags that control how a job is launched, and the error for unknown flags."""

from __future__ import annotations

import argparse

from pipeline.flags import yes_or_no
from schemas.errors import UsageError
from schemas.terminal import flag_hint


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


def unknown_flags(unknown: list[str], known: list[str]) -> UsageError:
    """Return the error for unknown flags, each with the nearest known one. Leaves out their values."""
    flags = [word for word in unknown if word.startswith("-")]
    if not flags:
        first = " ".join(unknown[:3]) + " ..." * (len(unknown) > 3)
        return UsageError(
            f"unexpected arguments: {first}. If they come from a name with spaces or a pattern, quote it, so that the "
            "shell does not split or expand it: 'folder/*.txt'."
        )
    hints = [f"Unknown flag {flag}.{flag_hint(flag.split('=')[0], known)}" for flag in flags]
    return UsageError("; ".join(hints))
