"""The command line of `clozeline suite` and `python -m trainer.suite`."""

from __future__ import annotations

import argparse
from pathlib import Path

from schemas.command_line import CommandParser, file_path, folder_path, positive
from trainer.command_line import add_set_flag, local_output, run_until_stopped
from trainer.distributed.stop import StopRequest

EXIT_CODES = (
    "0 done, 1 a job failed, 2 usage or configuration, 3 bad data, 4 bad checkpoint, 5 storage, 75 stopped and saved, "
    "130 the same by Ctrl-C"
)

NOTES = (
    '"Suites" in the documentation explains suite files. The same command continues a suite that was stopped or killed.'
)


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


def parser(prog: str) -> CommandParser:
    flags = CommandParser(
        prog,
        "Compare encoders on many tasks, with several seeds each, in one table.",
        [
            f"{prog} out/hf bert=models/bert-base --suite glue --data glue --output out/glue",
            f"{prog} out/run --checkpoints all --suite my_suite.toml --output out/over_time",
        ],
        EXIT_CODES,
        NOTES,
    )
    what = "encoders in the Hugging Face format; NAME=FOLDER names a column"
    flags.add_argument("folders", nargs="+", type=_folder, metavar="FOLDER", help=what)

    tasks = flags.add_argument_group("the tasks")
    what = "the name of a suite that ships (glue, superglue, ...), or a file SUITE.toml"
    tasks.add_argument("--suite", type=file_path, metavar="SUITE.toml", help=what)
    what = "fit a linear classifier to the frozen vectors of each layer"
    tasks.add_argument("--probe", type=file_path, metavar="TASK.toml", help=what)
    what = "folder of the tasks' files (default: that of the file that names them)"
    tasks.add_argument("--data", type=folder_path, metavar="DIR", help=what)
    what = "run only these tasks of the suite"
    tasks.add_argument("--only", nargs="+", action="extend", default=[], metavar="TASK", help=what)
    tasks.add_argument("--skip_missing", action="store_true", help="leave out tasks without their files")
    what = "change a value of every task, as in training.epochs=2, or of one, as in rte:training.epochs=2; "
    add_set_flag(tasks, help=what + "may be repeated")

    columns = flags.add_argument_group("the encoders")
    what = "FOLDER is a run: score these of its checkpoints (all, last, or steps: 1000,2000)"
    columns.add_argument("--checkpoints", metavar="STEPS", help=what)
    what = "add a column for the first folder's shape with random weights"
    columns.add_argument("--random_weights", action="store_true", help=what)

    runs = flags.add_argument_group("how it runs")
    runs.add_argument("--output", required=True, type=_local, metavar="DIR", help="local folder for all results")
    runs.add_argument("--seeds", type=positive, default=5, metavar="N", help="seeds to train each task with")
    what = "jobs that run at a time (default: one for each GPU, or for each core that has 3 GB of memory)"
    runs.add_argument("--workers", type=positive, metavar="N", help=what)
    return flags


def _folder(text: str) -> str:
    from trainer.suite.encoders import split_name  # loads pydantic, which --help does not need

    split_name(text)
    return text


def _local(text: str) -> Path:
    return Path(local_output(text))
