"""The flags of `python -m trainer`. There are three; everything else is in the recipe."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import NoReturn

from schemas.errors import ClozelineError, UsageError
from trainer.config.load import load_recipe
from trainer.distributed.preemption import StopRequest
from trainer.models.host_memory import check_memory


class Parser(argparse.ArgumentParser):
    """argparse with our exit code and one line instead of the whole usage."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}. See `{self.prog} --help`.")


def main(arguments: list[str] | None = None, stop: StopRequest | None = None) -> int:
    """Train as a recipe says and return the process's exit code. stop: what listens to signals, if something does."""
    stop = stop or StopRequest().listen()
    try:
        options = parser().parse_args(arguments)
        recipe = load_recipe(options.config, options.set)
        if options.describe:
            from trainer.describe import describe_recipe

            print(json.dumps(describe_recipe(recipe), indent=2))
            return 0
        check_launcher()
        check_memory(recipe, options.config)
        from trainer.train import pretrain  # torch and DeepSpeed: only once the recipe is good

        pretrain(recipe, stop)
        return 0
    except ClozelineError as error:
        rank = os.environ.get("RANK") or os.environ.get("SLURM_PROCID", "0")
        if rank == "0" or not error.everywhere:
            prefix = "" if rank == "0" else f"rank {rank}: "
            print(f"clozeline: {prefix}{error}", file=sys.stderr, flush=True)
        return error.exit_code
    finally:
        stop.ignore()


def check_launcher() -> None:
    """Raises UsageError in a task of several of Slurm's that no launcher gave a rank: each would train by itself."""
    tasks = os.environ.get("SLURM_STEP_NUM_TASKS") or os.environ.get("SLURM_NTASKS", "1")
    if "RANK" not in os.environ and tasks.isdigit() and int(tasks) > 1:
        raise UsageError(
            f"srun started {tasks} tasks, but RANK is not set, so each of them would be a run of one rank. Start one "
            "task a node with torchrun or deepspeed, or set RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT "
            "in each task; for a run of one rank use srun --ntasks=1."
        )


def parser() -> argparse.ArgumentParser:
    top = Parser(prog="python -m trainer", description="Pretrain an encoder; resumes by itself.", allow_abbrev=False)
    top.add_argument("--config", required=True, metavar="RECIPE.toml", help="the recipe; some ship in trainer/recipes/")
    top.add_argument(
        "--set", action="append", default=[], metavar="section.key=value", help="change a value of the recipe"
    )
    top.add_argument("--describe", action="store_true", help="print the model's sizes as JSON and do nothing else")
    top.add_argument("--local_rank", type=int, help=argparse.SUPPRESS)  # the deepspeed launcher passes it; RANK decides
    return top
