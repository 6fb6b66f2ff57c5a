"""The command line of `clozeline suite` and `python -m trainer.suite`."""

from __future__ import annotations

import argparse
from pathlib import Path

from schemas.urls import normal
from trainer.command_line import add_set_flag, command_parser, local_folder, run_until_stopped, whole_number_from
from trainer.distributed.stop import StopRequest

EPILOG = """\
examples:

  clozeline suite out/hf bert=models/bert-base --suite glue --data glue --output out/glue --seeds 5
  clozeline suite out/hf --suite blimp --data blimp/data --output out/blimp
  clozeline suite out/run --checkpoints all --suite my_suite.toml --output out/over_time
  clozeline suite out/hf --probe tags.toml --output out/probe

docs/suites.md explains suite files. The same command continues a suite that was stopped or killed.
"""


def main(
    arguments: list[str] | None = None, stop: StopRequest | None = None, prog: str = "python -m trainer.suite"
) -> int:
    """Run the command line and return the process's exit code.

    stop: records stop signals; None creates a StopRequest. prog: the program's name in help and errors.
    """
    return run_until_stopped(lambda stop: _run(parser(prog).parse_args(arguments), stop), stop)


def _run(options: argparse.Namespace, stop: StopRequest) -> None:
    # This import loads pydantic and the task schema, so it waits until the flags are known to be valid.
    from trainer.suite.run import run_suite

    run_suite(options, stop)


def parser(prog: str) -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    flags = command_parser(prog, "Compare encoders on many tasks, with several seeds each, in one table.", EPILOG)
    flags.add_argument(
        "folders", nargs="+", metavar="FOLDER", help="encoders in the Hugging Face format; NAME=FOLDER names a column"
    )
    what = "the name of a suite that ships (glue, superglue, ...), or a file SUITE.toml"
    flags.add_argument("--suite", type=normal, metavar="SUITE", help=what)
    what = "fit a linear classifier to the frozen vectors of each layer"
    flags.add_argument("--probe", type=normal, metavar="TASK.toml", help=what)
    flags.add_argument("--output", required=True, type=_local, metavar="DIR", help="local folder for all results")
    what = "folder of the tasks' files (default: that of the file that names them)"
    flags.add_argument("--data", type=normal, metavar="DIR", help=what)
    what = "seeds to train each task with (default: 5)"
    flags.add_argument("--seeds", type=whole_number_from(1), default=5, help=what)
    what = "jobs that run at a time (default: one for each GPU, or for each core)"
    flags.add_argument("--workers", type=whole_number_from(1), help=what)
    what = "run only these tasks of the suite"
    flags.add_argument("--only", nargs="+", action="extend", default=[], metavar="TASK", help=what)
    flags.add_argument("--skip_missing", action="store_true", help="leave out tasks without their files")
    what = (
        "change a value of every task, as in training.epochs=2, or of one, as in rte:training.epochs=2; may be repeated"
    )
    add_set_flag(flags, help=what)
    what = "FOLDER is a run: score these of its checkpoints (all, last, or steps: 1000,2000)"
    flags.add_argument("--checkpoints", metavar="STEPS", help=what)
    what = "add a column for the first folder's shape with random weights"
    flags.add_argument("--random_weights", action="store_true", help=what)
    return flags


def _local(text: str) -> Path:
    return Path(local_folder(text))
