"""The command line of `python -m trainer`: a recipe, overrides of its values, `--describe` and `--profile`."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable
from importlib.util import find_spec
from time import perf_counter

from schemas import storage
from schemas.command_line import CommandParser, file_path, flag_hint
from schemas.errors import DataError, UsageError
from schemas.folder_kinds import is_pipeline_folder
from schemas.manifest import read_root
from schemas.row_checks import read_pairs_vocabulary
from schemas.terminal import print_lines
from trainer.command_line import EXIT_CODES, add_launcher_flag, add_set_flag, run_until_stopped
from trainer.config.load import load_recipe
from trainer.config.parse import keys_called
from trainer.config.phases import phases_of
from trainer.config.schema import Recipe
from trainer.data.fit import check_model_vocabulary, check_rows
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
    elif options.profile_after != WARM_UP_STEPS:
        raise UsageError("--profile_after is for --profile N, which is not given.")
    check_folders(recipe)

    # This import loads torch and DeepSpeed, which takes seconds, so it waits until the recipe is known to be valid.
    show_place("loading torch and DeepSpeed")
    from trainer.train import pretrain

    pretrain(recipe, stop, recording, started)


def check_folders(recipe: Recipe) -> None:
    """Raise DataError at once, before torch is loaded, if a new run of one process has no pairs for its model."""
    if find_spec("torch") is None or os.environ.get("WORLD_SIZE", "1") != "1":  # a missing torch is said first
        return
    if storage.names(storage.join(recipe.run.output, "checkpoints")):
        return

    first, *later = [phase.recipe for phase in phases_of(recipe)]
    folders = [(first, folder) for folder in first.data.folders]
    # Those of later phases may not be there yet.
    folders += [(one, folder) for one in later for folder in one.data.folders if is_pipeline_folder(folder)]
    vocabularies: dict[str, str] = {}
    for of_phase, folder in folders:
        manifest = read_root(folder, "pairs")
        vocabulary = read_pairs_vocabulary(folder, manifest)
        check_model_vocabulary(of_phase, vocabulary, folder)
        check_rows(of_phase, manifest, folder)
        vocabularies.setdefault(vocabulary.fingerprint, folder)
        if len(vocabularies) > 1:
            one, other = vocabularies.values()
            raise DataError(f"{other} has another vocabulary than {one}. Rebuild one with the other's vocabulary.")
    if first.evaluation.pairs is not None:
        read_root(first.evaluation.pairs, "pairs")


ALIASES = {
    "batch_size": "global_batch",
    "learning_rate": "lr",
    "output_dir": "output",
    "data": "pairs",
    "steps": "max_steps",
    "warmup": "warmup_steps",
    "hours": "max_hours",
    "epochs": "max_epochs",
}
"""Flags of other trainers, and the recipe's keys for them."""

RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_SIZE", "MASTER_PORT")
"""What a launcher sets in each process; torch and DeepSpeed read them as numbers."""

COUNTS = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_SIZE")


def check_launcher() -> None:
    """Raise UsageError if the variables of the launcher are no numbers, or missing where srun starts several tasks.

    Without them each task would train its own run. In the script of sbatch itself, which is one process whatever
    SLURM_NTASKS is, srun's variable is not set.
    """
    for name in RANK_VARIABLES:
        value = os.environ.get(name, "0")
        if not value.isdecimal() or (name in COUNTS and os.environ.get(name) and int(value) == 0):
            raise UsageError(
                f"The environment variable {name} is {value!r}, not a whole number{' above 0' * (name in COUNTS)}. A "
                "launcher such as torchrun sets it. For a run of one rank, unset it."
            )

    tasks = os.environ.get("SLURM_STEP_NUM_TASKS", "1")
    has_several_tasks = tasks.isdigit() and int(tasks) > 1

    if has_several_tasks and "RANK" not in os.environ:
        raise UsageError(
            f"srun started {tasks} tasks, but RANK is not set, so each of them would train alone as a run of one rank. "
            "Start one task per node with torchrun or deepspeed, or set RANK, LOCAL_RANK, WORLD_SIZE, "
            "LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT in each task. For a run of one rank use srun --ntasks=1."
        )


def parser(prog: str = "python -m trainer") -> CommandParser:
    flags = CommandParser(
        prog,
        "Pretrain an encoder; a run whose folder holds a checkpoint resumes from it.",
        [
            f"{prog} --config tiny --set data.pairs=out/pairs --set run.output=out/run",
            "torchrun --nproc_per_node 8 -m trainer --config bert_base --set data.pairs=out/pairs",
        ],
        EXIT_CODES,
        "All keys of a recipe with their defaults: docs/recipes.md, and RUN/recipe.toml of any run.",
    )
    recipe = flags.add_argument_group("the recipe")
    what = "recipe file, or the name of one that ships (`clozeline recipes` lists them), such as bert_base"
    recipe.add_argument("--config", type=file_path, required=True, metavar="RECIPE", help=what)
    add_set_flag(recipe, "section.key=value", "override one value of the recipe; may be repeated")

    look = flags.add_argument_group("look and measure")
    what = "print parameters, steps, memory and FLOPs as JSON, and exit without training"
    look.add_argument("--describe", action="store_true", help=what)
    what = "record N steps after the first few with torch.profiler, and write traces to RUN/profile"
    look.add_argument("--profile", type=int, metavar="N", help=what)
    what = "steps of this start that come before those of --profile"
    look.add_argument("--profile_after", type=int, default=WARM_UP_STEPS, metavar="STEPS", help=what)
    add_launcher_flag(flags)
    flags.hint = recipe_hint
    return flags


def recipe_hint(flag: str, known: Iterable[str]) -> str:
    """Return what was probably meant by an unknown flag: a key of the recipe, a launcher's flag, or one of ours."""
    name = flag.lstrip("-").replace("-", "_")
    keys = keys_called(ALIASES.get(name, name))
    if name in Recipe.model_fields and name != "phases" and not keys:
        return f" Keys of the recipe are set with --set: --set {name}.KEY=VALUE."
    if keys:
        return f" Keys of the recipe are set with --set: --set {' or '.join(keys)}=VALUE."
    if name in keys_called(name.rpartition(".")[2]):
        return f" Did you mean --set {name}=VALUE?"
    if "gpu" in name or "nproc" in name:
        return (
            " A launcher starts a process for each GPU: deepspeed --num_gpus N --module trainer, or torchrun "
            "--nproc_per_node N -m trainer, and then --config ..."
        )
    return flag_hint(flag, known)
