"""The flags of `clozeline finetune` that add steps before fine-tuning, and their checks."""

from __future__ import annotations

import argparse

from schemas.errors import UsageError
from schemas.urls import normal
from trainer.finetune.steps.schema import FinetuneSection, Steps
from trainer.finetune.steps.steps_file import continued_steps, read_steps

IN_STEPS_FILE = ("task", "data", "seeds", "first_seed", "set")
"""Flags that are keys of [finetune] in a steps file."""


def add_step_flags(flags: argparse.ArgumentParser) -> None:
    """Add --continue_pretraining, --set_pretraining and --steps."""
    flags.add_argument(
        "--continue_pretraining",
        type=normal,
        metavar="RECIPE",
        help="first continue FOLDER's pretraining on the task's own training text, without labels; if RECIPE names "
        "data.pairs, on those before that (docs/adapt.md)",
    )
    flags.add_argument(
        "--set_pretraining",
        action="append",
        default=[],
        metavar="section.key=value",
        help="override a value of the RECIPE of --continue_pretraining, such as engine.precision=fp32; may be repeated",
    )
    flags.add_argument(
        "--steps",
        type=normal,
        metavar="STEPS.toml",
        help="run the steps of a file: general, domain, task, finetune (docs/adapt.md)",
    )


def steps_of(options: argparse.Namespace) -> Steps | None:
    """Return the steps that a command line asks for, or None if it asks only for fine-tuning.

    Raises UsageError if flags conflict or one is missing.
    """
    if options.steps is not None:
        given = [f"--{name}" for name in IN_STEPS_FILE if getattr(options, name) not in (None, [])]
        if given:
            raise UsageError(f"{', '.join(given)} and --steps: set it in [finetune] of {options.steps} instead.")
        if options.continue_pretraining is not None:
            raise UsageError("--continue_pretraining and --steps: add [task] to the steps file instead.")
        if options.set_pretraining:
            raise UsageError(f"--set_pretraining and --steps: give `set` in the steps of {options.steps} instead.")
        if options.random_weights:
            raise UsageError("--random_weights and --steps: the steps would have no effect. Leave one of them out.")
        return read_steps(options.steps, options.folder)

    for name in ("folder", "task"):
        if getattr(options, name) is None:
            what = "FOLDER" if name == "folder" else f"--{name}"
            raise UsageError(f"{what} is missing. Give it, or --steps with a file. See `clozeline finetune --help`.")
    if options.continue_pretraining is None:
        if options.set_pretraining:
            raise UsageError("--set_pretraining changes the recipe of --continue_pretraining. Give that as well.")
        return None

    if options.random_weights:
        raise UsageError("--random_weights and --continue_pretraining contradict each other. Leave one of them out.")
    fine_tuning = FinetuneSection(
        task=options.task,
        data=options.data,
        seeds=options.seeds or 1,
        first_seed=options.first_seed or 0,
        set=options.set,
    )
    return continued_steps(options.folder, options.continue_pretraining, options.set_pretraining, fine_tuning)
