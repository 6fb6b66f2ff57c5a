"""What the trainer's commands share: some flags, and how errors become exit codes.

This module imports nothing slow, because flags are checked before torch is loaded.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable

from schemas import progress
from schemas.command_line import Flags, file_path, local_folder
from schemas.errors import ClozelineError
from schemas.terminal import tell_error, terminal_safe
from trainer.distributed.stop import StopRequest
from trainer.logs import log_file, rank_of_process

EXIT_CODES = (
    "0 done, 1 cannot continue, 2 usage or configuration, 3 bad data, 4 bad checkpoint, 5 storage, 75 interrupted and "
    "saved, 130 interrupted before there was something to save"
)
"""Those of the commands that train."""


def add_set_flag(flags: Flags, metavar: str = "KEY=VALUE", help: str | None = None) -> None:
    """Add --set, which may be repeated: `options.set` is a list of texts."""
    flags.add_argument("--set", action=AddKey, default=[], metavar=metavar, help=help)


def path_to_name(text: str) -> str:
    """Check an argument that names a run, an encoder or an output. Raises UsageError for a path that is not UTF-8."""
    from schemas.urls import utf8_path  # loads fsspec, which --help does not need

    return utf8_path(file_path(text))


def local_output(text: str) -> str:
    """Check an argument that names a local folder to write, as `path_to_name`."""
    return path_to_name(local_folder(text))


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


def exit_code_of(command: Callable[[], None], rank: int = 0) -> int:
    """Run a command and return its exit code: 0, or that of its error, which is printed.

    rank: of commands that a launcher may start several times. Others have none, whatever a scheduler calls its tasks.
    """
    try:
        command()
    except ClozelineError as error:
        print_error(error, rank)
        return error.exit_code
    finally:
        progress.end()
        log_file.end()
    return 0


def run_until_stopped(command: Callable[[StopRequest], None], stop: StopRequest | None) -> int:
    """Run a command that saves and ends when a signal asks it to, and return its exit code.

    `stop` listens to signals; if None, a new StopRequest does.
    """
    request = StopRequest().listen() if stop is None else stop
    try:
        return exit_code_of(lambda: command(request), rank_of_process())
    finally:
        request.ignore()


def raise_at_ctrl_c() -> None:
    """Let SIGINT raise KeyboardInterrupt unless it is ignored, as in the background of a script."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def print_error(error: ClozelineError, rank: int) -> None:
    """Print an error to stderr: once if every rank raises it, otherwise with the number of the rank."""
    message = terminal_safe(str(error))
    if rank == 0:
        log_file.add(f"clozeline: {message}")
        tell_error(message)
    elif not error.everywhere:
        tell_error(f"rank {rank}: {message}")
