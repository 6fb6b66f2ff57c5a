"""The command line of `python -m trainer`: a recipe, overrides of its values, `--describe` and `--profile`."""

from __future__ import annotations

import argparse
import json
import os
from time import perf_counter

from schemas.errors import UsageError
from schemas.terminal import print_lines
from schemas.urls import normal
from trainer.command_line import add_launcher_flag, add_set_flag, command_parser, run_until_stopped
from trainer.config.load import load_recipe
from trainer.distributed.stop import StopRequest
from trainer.logs import show_place
from trainer.models.families import check_memory
from trainer.profile import NOTHING, WARM_UP_STEPS, Recording, check_recording


def main(arguments: list[str] | None = None, stop: StopRequest | None = None, prog: str = "python -m trainer") -> int:
    """Run the command line and return the process's exit code.

    `stop` listens to signals; by default a new StopRequest does. `prog` is the program's name in help and errors.
    """
    return run_until_stopped(lambda stop: _run(parser(prog).parse_args(arguments), stop), stop)


def _run(options: argparse.Namespace, stop: StopRequest) -> None:
    """Describe the recipe or train it."""
    started = perf_counter()
    recipe = load_recipe(options.config, options.set)

    if options.describe:
        from trainer.describe import describe_recipe

        print_lines(json.dumps(describe_recipe(recipe), indent=2).splitlines())
        return

    check_launcher()
    check_memory(recipe, options.config)
    recording = NOTHING
    if options.profile is not None:
        recording = Recording(options.profile, options.profile_after)
        check_recording(recording, recipe.run)

    # This import loads torch and DeepSpeed, which takes seconds, so it waits until the recipe is known to be valid.
    show_place("loading torch and DeepSpeed")
    from trainer.train import pretrain

    pretrain(recipe, stop, recording, started)


RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_SIZE")
"""What a launcher sets in each process; torch and DeepSpeed read them as numbers."""


def check_launcher() -> None:
    """Raise UsageError if the variables of the launcher are no numbers, or missing in a Slurm job of several tasks.

    Without them each task would train its own run.
    """
    for name in RANK_VARIABLES:
        value = os.environ.get(name, "0")
        if not value.isdecimal():
            raise UsageError(
                f"The environment variable {name} is {value!r}, not a whole number. A launcher such as torchrun sets "
                "it. For a run of one rank, unset it."
            )

    tasks = os.environ.get("SLURM_STEP_NUM_TASKS") or os.environ.get("SLURM_NTASKS", "1")
    has_several_tasks = tasks.isdigit() and int(tasks) > 1

    if has_several_tasks and "RANK" not in os.environ:
        raise UsageError(
            f"srun started {tasks} tasks, but RANK is not set, so each of them would train alone as a run of one rank. "
            "Start one task per node with torchrun or deepspeed, or set RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and "
            "MASTER_PORT in each task. For a run of one rank use srun --ntasks=1."
        )


def parser(prog: str = "python -m trainer") -> argparse.ArgumentParser:
    """Return the parser of the trainer's flags."""
    flags = command_parser(prog, "Pretrain an encoder. A run whose folder holds a checkpoint resumes from it.")
    flags.add_argument(
        "--config",
        type=normal,
        required=True,
        metavar="RECIPE",
        help="recipe file, or the name of one that ships, such as bert_base",
    )
    add_set_flag(flags, "section.key=value", "override one value of the recipe; may be repeated")
    flags.add_argument(
        "--describe",
        action="store_true",
        help="print parameter counts, memory and FLOPs estimates as JSON, and exit without training",
    )
    flags.add_argument(
        "--profile",
        type=int,
        metavar="N",
        help="record N steps after the first few with torch.profiler, and write traces to RUN/profile",
    )
    flags.add_argument(
        "--profile_after",
        type=int,
        default=WARM_UP_STEPS,
        metavar="STEPS",
        help=f"steps of this start that come before those of --profile ({WARM_UP_STEPS})",
    )
    add_launcher_flag(flags)
    return flags
