"""The command line of `clozeline finetune` and `python -m trainer.finetune`."""

from __future__ import annotations

import argparse
from pathlib import Path

from schemas.command_line import (
    CommandParser,
    file_path,
    folder_path,
    positive,
    whole_number_from,
)
from schemas.errors import UsageError
from trainer.cli import check_launcher
from trainer.command_line import (
    EXIT_CODES,
    add_launcher_flag,
    add_set_flag,
    local_output,
    path_to_name,
    run_until_stopped,
)
from trainer.config.parse import Origin
from trainer.distributed.stop import StopRequest
from trainer.finetune.encoder_folder import check_encoder_files
from trainer.finetune.examples import TaskData
from trainer.finetune.files.sets import check_task_files
from trainer.finetune.task import Task
from trainer.finetune.task_file import data_folder, read_task
from trainer.logs import show_place

NOTES = """\
TASK.toml sets the kind of the task, its files and its training values, for example:

  name = "reviews"
  kind = "sentence"            # or pair, choice, tags, span

  [data]
  train = "train.jsonl"        # {"text": "A fine film.", "label": "good"}
  dev = "dev.jsonl"

  [training]                   # without `lr` and `epochs` both are chosen
  batch = 32

"Fine-tuning" in the documentation explains them, and this prints all keys:

  python -m trainer.finetune.document /dev/stdout

The same command continues a fine-tuning that was stopped or killed.
"""


def main(
    arguments: list[str] | None = None, stop: StopRequest | None = None, prog: str = "python -m trainer.finetune"
) -> int:
    """Run the command line and return the process's exit code.

    stop: records stop signals; None creates a StopRequest. prog: the program's name in help and errors.
    """
    return run_until_stopped(lambda stop: _run(parser(prog).parse_args(arguments), stop), stop)


def _run(options: argparse.Namespace, stop: StopRequest) -> None:
    from trainer.finetune.inputs import read_on_all_ranks  # not needed for --help

    check_launcher()
    check_flags(options)
    task, data, examples = read_on_all_ranks(lambda: _read_request(options), stop)
    if options.write_texts is not None:
        from trainer.finetune.texts import write_texts

        number = write_texts(examples.train, options.write_texts)
        print(f"clozeline: {options.write_texts} has the {number:,} texts of the training files of {task.name}.")
        return

    # This import loads DeepSpeed and transformers, which takes seconds, so it waits until the files are valid.
    show_place("loading torch and transformers")
    from trainer.finetune.job import Order
    from trainer.finetune.run import finetune

    first_seed = options.first_seed or 0
    seeds = range(first_seed, first_seed + (options.seeds or 1))
    output = Path(options.output)
    order = Order(options.folder, task, data, examples, output, list(seeds), options.random_weights, options.new_head)
    finetune(order, stop)


def check_flags(options: argparse.Namespace) -> None:
    """Raise UsageError if a flag is missing, or is not for --write_texts."""
    given = {"FOLDER": options.folder, "--task": options.task, "--output": options.output}
    if options.write_texts is None:
        missing = [name for name, value in given.items() if value is None]
        if missing:
            raise UsageError(f"Missing: {', '.join(missing)}. See `clozeline finetune --help`.")
        if options.folder.endswith(".toml") and Path(options.task).is_dir():
            raise UsageError(
                f"FOLDER {options.folder} is a task file, and --task {options.task} a folder. Swap them: `clozeline "
                f"finetune {options.task} --task {options.folder}`."
            )
        last = (options.first_seed or 0) + (options.seeds or 1) - 1
        if last >= 2**32:
            raise UsageError(f"--first_seed and --seeds: the last seed is {last:,}, expected at most {2**32 - 1:,}.")
        return

    if options.task is None:
        raise UsageError("--task is missing: --write_texts writes the texts of a task.")
    of_training = [options.folder, options.output, options.seeds, options.first_seed]
    if any(value is not None for value in of_training) or options.random_weights or options.new_head:
        raise UsageError("--write_texts trains nothing. Give only --task, --data and --set with it.")


def _read_request(options: argparse.Namespace) -> tuple[Task, str, TaskData]:
    """Return the task, the folder of its files, and the examples in them. Raises UsageError and DataError."""
    from trainer.finetune.files.read import read_task_data  # not needed for --help

    if options.write_texts is None:
        check_encoder_files(options.folder, options.random_weights)
    task = read_task(options.task, options.set)
    data = data_folder(options.task, options.data)
    check_task_files(task, data, Origin(options.task, options.set))
    return task, data, read_task_data(task, data)


def parser(prog: str) -> CommandParser:
    flags = CommandParser(
        prog,
        "Fine-tune an encoder on one task and measure it there.",
        [
            f"{prog} out/hf --task reviews.toml --output out/reviews --seeds 3",
            f"{prog} models/bert-base --task glue/rte --data glue --output out/rte --set training.lr=3e-5",
        ],
        EXIT_CODES,
        NOTES,
    )
    flags.usage = f"{prog} FOLDER --task TASK.toml --output DIR [options]"
    what = "encoder in the Hugging Face format: an export or a published model"
    flags.add_argument("folder", type=path_to_name, nargs="?", metavar="FOLDER", help=what)

    task = flags.add_argument_group("the task")
    what = "task file, or a shipped task such as glue/rte"
    task.add_argument("--task", type=file_path, metavar="TASK.toml", help=what)
    what = "folder of the task's files (default: the folder of TASK.toml)"
    task.add_argument("--data", type=folder_path, metavar="DIR", help=what)
    add_set_flag(task, help="override a value of the task file, such as training.lr=5e-5; may be repeated")

    training = flags.add_argument_group("the training")
    training.add_argument("--output", type=local_output, metavar="DIR", help="output folder")
    what = "number of seeds to train (default: 1)"
    training.add_argument("--seeds", type=positive, metavar="N", help=what)
    what = "the first seed (default: 0)"
    training.add_argument("--first_seed", type=whole_number_from(0), metavar="N", help=what)
    weights = training.add_mutually_exclusive_group()
    what = "start from random weights of the same shape, as a baseline"
    weights.add_argument("--random_weights", action="store_true", help=what)
    what = "start with a new head, even if the encoder has one for these labels"
    weights.add_argument("--new_head", action="store_true", help=what)

    texts = flags.add_argument_group("instead of training")
    what = "write the texts of the task's training files as JSON Lines for `clozeline shard`, and end"
    texts.add_argument("--write_texts", type=file_path, metavar="FILE", help=what)
    add_launcher_flag(flags)
    return flags
