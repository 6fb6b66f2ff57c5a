"""The flags of `python -m trainer`. There are three; everything else is in the recipe."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import NoReturn

from schemas.errors import ClozelineError, UsageError
from trainer.host_memory import check_memory
from trainer.recipe import load_recipe
from trainer.signals import StopRequest


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
            from trainer.describe import describe

            print(json.dumps(describe(recipe), indent=2))
            return 0
        check_memory(recipe, options.config)
        from trainer.training import pretrain  # torch and DeepSpeed: only once the recipe is good

        pretrain(recipe, stop)
        return 0
    except ClozelineError as error:
        rank = os.environ.get("RANK", "0")
        if rank == "0" or not error.everywhere:
            prefix = "" if rank == "0" else f"rank {rank}: "
            print(f"clozeline: {prefix}{error}", file=sys.stderr, flush=True)
        return error.exit_code
    finally:
        stop.ignore()


def parser() -> argparse.ArgumentParser:
    top = Parser(prog="python -m trainer", description="Pretrain an encoder; resumes by itself.", allow_abbrev=False)
    top.add_argument("--config", required=True, metavar="RECIPE.toml", help="the recipe; some ship in trainer/recipes/")
    top.add_argument(
        "--set", action="append", default=[], metavar="section.key=value", help="change a value of the recipe"
    )
    top.add_argument("--describe", action="store_true", help="print the model's sizes as JSON and do nothing else")
    top.add_argument("--local_rank", type=int, help=argparse.SUPPRESS)  # the deepspeed launcher passes it; RANK decides
    return top
