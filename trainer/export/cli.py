"""The command line of `clozeline export` and `python -m trainer.export`."""

from __future__ import annotations

import argparse
import signal
import sys

from schemas.errors import INTERRUPTED, UsageError
from schemas.urls import normal
from trainer.command_line import command_parser, exit_code_of, whole_number_from
from trainer.logs import logger, show_place


def main(arguments: list[str] | None = None, prog: str = "python -m trainer.export") -> int:
    """Export and return the process's exit code. prog: the command's name in help and in errors."""
    try:
        return exit_code_of(lambda: _export(parser(prog).parse_args(arguments)))
    except KeyboardInterrupt:
        print("clozeline: interrupted. The run was not changed; run the same command again.", file=sys.stderr)
        return INTERRUPTED


def _export(options: argparse.Namespace) -> None:
    if options.best and options.average > 1:
        raise UsageError("--average takes the last checkpoints, not the best one. Leave --best out.")

    # This import loads torch, which takes seconds, so it waits until the flags are known to be valid.
    show_place(f"exporting {options.run}")
    from trainer.export.convert import Writing, export

    signal.signal(signal.SIGINT, signal.default_int_handler)
    writing = Writing(options.overwrite, int(options.max_shard_gigabytes * 10**9), options.average)
    logger.info("%s", export(options.run, options.output, options.step, options.best, writing))


def parser(prog: str = "python -m trainer.export") -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = command_parser(prog, "Write a checkpoint as a Hugging Face folder.")
    top.add_argument("run", type=normal, metavar="RUN_DIR", help="run.output of the recipe: a folder or a URL")
    top.add_argument("--output", type=normal, required=True, metavar="HF_DIR", help="folder or URL to write")

    which = top.add_mutually_exclusive_group()
    which.add_argument("--step", type=int, help="export the checkpoint of this step; the newest by default")
    which.add_argument("--best", action="store_true", help="export the checkpoint with the lowest held-out loss")

    top.add_argument(
        "--average",
        type=whole_number_from(1),
        default=1,
        metavar="K",
        help="export the mean weights of the last K checkpoints, with --step of the last K up to that one",
    )
    top.add_argument(
        "--overwrite",
        action="store_true",
        help="replace the files of an earlier export in HF_DIR; other files are kept",
    )
    top.add_argument(
        "--max_shard_gigabytes",
        type=_gigabytes,
        default=5.0,
        metavar="GB",
        help="cut larger weights into several files of at most this size (default: %(default)g)",
    )
    return top


def _gigabytes(text: str) -> float:
    """Return a positive number of gigabytes. argparse turns the error into its own."""
    gigabytes = float(text)
    if not 0 < gigabytes < 1e9:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number of gigabytes")
    return gigabytes
