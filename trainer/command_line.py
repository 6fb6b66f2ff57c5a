"""What the trainer's commands share: the parser, some flags, and how errors become exit codes.

This module imports nothing slow, because flags are checked before torch is loaded.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from schemas import progress
from schemas.errors import ClozelineError
from schemas.terminal import OneLineParser, tell_error, terminal_safe
from schemas.urls import normal
from trainer.distributed.stop import StopRequest
from trainer.logs import log_file, rank_of_process


def command_parser(prog: str, description: str, epilog: str | None = None) -> OneLineParser:
    """Return the parser of a command that people type. epilog: printed as it is, line breaks included."""
    return OneLineParser(
        prog=prog,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        # An abbreviation that works today would stop working when another flag begins with the same letters.
        allow_abbrev=False,
    )


def add_set_flag(flags: argparse.ArgumentParser, metavar: str = "KEY=VALUE", help: str | None = None) -> None:
    """Add --set, which may be repeated: `options.set` is a list of texts."""
    flags.add_argument("--set", action=AddKey, default=[], metavar=metavar, help=help)


class AddKey(argparse.Action):
    """Appends KEY=VALUE to a list. A later value of a key replaces an earlier one, as scripts rely on, and says so."""

    def __call__(self, parser, namespace, values, option_string=None) -> None:
        given: list[str] = getattr(namespace, self.dest)
        key = str(values).partition("=")[0].strip()
        same = [earlier for earlier in given if earlier.partition("=")[0].strip() == key]
        if same and same != [values] and rank_of_process() == 0:
            print(f"clozeline: {option_string} {values} replaces {same[0]}.", file=sys.stderr)
        setattr(namespace, self.dest, [*(earlier for earlier in given if earlier not in same), values])


def add_launcher_flag(flags: argparse.ArgumentParser) -> None:
    """Accept --local_rank, which the deepspeed launcher passes, and ignore it: the environment's LOCAL_RANK counts."""
    flags.add_argument("--local_rank", type=int, help=argparse.SUPPRESS)


def whole_number_from(lowest: int) -> Callable[[str], int]:
    """Return an argparse type that accepts whole numbers of at least `lowest`."""

    def whole_number(text: str) -> int:
        if not text.isdecimal() or int(text) < lowest:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of {lowest} or more")
        return int(text)

    return whole_number


def local_folder(text: str) -> str:
    """Return a flag's folder. A URL is an error, because as a path it would be a local folder such as "s3:"."""
    folder = normal(text)
    if "://" in folder:
        raise argparse.ArgumentTypeError(
            f"{text} is a URL. The command resumes from what it saved on this machine, so it needs a local folder; "
            "copy that folder afterwards"
        )
    return folder


def exit_code_of(command: Callable[[], None]) -> int:
    """Run a command and return its exit code: 0, or that of its error, which is printed."""
    try:
        command()
    except ClozelineError as error:
        print_error(error)
        return error.exit_code
    finally:
        progress.end()
    return 0


def run_until_stopped(command: Callable[[StopRequest], None], stop: StopRequest | None) -> int:
    """Run a command that saves and ends when a signal asks it to, and return its exit code.

    `stop` listens to signals; if None, a new StopRequest does.
    """
    request = StopRequest().listen() if stop is None else stop
    try:
        return exit_code_of(lambda: command(request))
    finally:
        request.ignore()


def print_error(error: ClozelineError) -> None:
    """Print an error to stderr: once if every rank raises it, otherwise with the number of the rank."""
    rank = rank_of_process()
    message = terminal_safe(str(error))
    if rank == 0:
        log_file.add(f"clozeline: {message}")
        tell_error(message)
    elif not error.everywhere:
        tell_error(f"rank {rank}: {message}")
