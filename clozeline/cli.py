"""The command `clozeline COMMAND ...`: starts the program of `pipeline` or `trainer` that the command names.

Each command runs exactly the same program as its longer form, such as `python -m pipeline shard` for `clozeline shard`.
A program is imported only when its command is given, so that `clozeline --help` answers at once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from clozeline import __version__
from clozeline.installation import USAGE_ERROR, end, run_explained

if TYPE_CHECKING:
    import argparse

EXIT_CODES = """\
exit codes:
  0    done
  1    a run that cannot continue
  2    usage or configuration
  3    bad data
  4    bad checkpoint
  5    storage: full disk, permission, unreachable bucket
  75   preempted or interrupted (Ctrl-C) during training, and saved; the same command resumes
  130  interrupted before training, in another command, or twice
"""


class Command(NamedTuple):
    """One command: its line in --help, the extra that it needs, and the program that gets its arguments."""

    help: str
    extra: str
    program: Callable[[list[str]], int]


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return the process's exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]
    if not words or words[0] not in COMMANDS:
        return explain_usage(words)

    name, *rest = words
    command = COMMANDS[name]
    if command.program is start_pipeline:
        rest = words  # the pipeline's own command line has the same commands
    code = run_explained(lambda: command.program(rest), command.extra)
    if command.program is start_pipeline:
        end(code)  # after Ctrl-C, the process must end without waiting for the threads of a remote engine
    return code


def explain_usage(words: list[str]) -> int:
    """Answer --help and --version, or print what is wrong with a command line without a known command.

    Returns the exit code. Raises SystemExit for --help, --version and unknown flags.
    """
    parser = usage_parser()
    if not words:
        parser.print_help(sys.stderr)
        return USAGE_ERROR

    first = words[0]
    if first.startswith("-"):
        parser.parse_args([first])  # exits on --help, --version and unknown flags

    import difflib  # imported here because it loads more slowly than this whole module

    close = difflib.get_close_matches(first, COMMANDS, n=1)
    hint = f" Did you mean {close[0]}?" if close else ""
    print(f"clozeline: there is no command {first}.{hint} See `clozeline --help`.", file=sys.stderr)
    return USAGE_ERROR


def usage_parser() -> argparse.ArgumentParser:
    """Return the parser for the options before a command, whose help lists all commands."""
    import argparse  # loads more slowly than this whole module

    width = max(len(name) for name in COMMANDS)
    lines = [f"  {name:<{width}} {command.help}" for name, command in COMMANDS.items()]
    parser = argparse.ArgumentParser(
        prog="clozeline",
        usage="clozeline COMMAND ...",
        description="Raw text to a pretrained encoder: BERT, RoBERTa, ELECTRA, ModernBERT and others.",
        epilog="\n".join(["commands (`clozeline COMMAND --help` lists the flags of each):", *lines, "", EXIT_CODES]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"clozeline {__version__}")
    return parser


def start_pipeline(words: list[str]) -> int:
    """Run `python -m pipeline`."""
    from pipeline.environment import look_for_cycles_seldom

    look_for_cycles_seldom()
    from pipeline.cli import main as pipeline_main

    return pipeline_main(words, prog="clozeline")


def start_worker(words: list[str]) -> int:
    """Run a worker of an engine, or a pool of workers."""
    from pipeline.beam.workers import main as worker_main

    return worker_main(words, prog="clozeline worker")


def start_trainer(arguments: list[str]) -> int:
    """Run `python -m trainer`."""
    from trainer.distributed.stop import StopRequest

    # The imports below take seconds, and a signal during them must not be lost.
    stop = StopRequest().listen()

    from trainer.cli import main as trainer_main

    return trainer_main(arguments, stop, prog="clozeline train")


def start_export(arguments: list[str]) -> int:
    """Run `python -m trainer.export`."""
    from trainer.export.cli import main as export_main

    return export_main(arguments, prog="clozeline export")


def start_finetune(arguments: list[str]) -> int:
    """Run `python -m trainer.finetune`."""
    from trainer.distributed.stop import StopRequest

    # The imports below take seconds, and a signal during them must not be lost.
    stop = StopRequest().listen()

    from trainer.finetune.cli import main as finetune_main

    return finetune_main(arguments, stop, prog="clozeline finetune")


def start_suite(arguments: list[str]) -> int:
    """Run `python -m trainer.suite`."""
    from trainer.suite.cli import main as suite_main

    return suite_main(arguments, prog="clozeline suite")


def start_doctor(arguments: list[str]) -> int:
    """Run `python -m trainer.doctor`."""
    from trainer.doctor import main as doctor_main

    return doctor_main(arguments, prog="clozeline doctor")


def run_recipes(arguments: list[str]) -> int:
    """List the recipes that ship with Clozeline, or print one of them."""
    import argparse

    parser = argparse.ArgumentParser(
        prog="clozeline recipes",
        description="List the recipes that ship with Clozeline with their size, objective, data and hardware, or "
        "print one of them, to copy and change.",
    )
    parser.add_argument("name", nargs="?", help="the recipe to print; without it, all are listed")
    name = parser.parse_args(arguments).name

    from schemas.errors import ClozelineError
    from schemas.terminal import print_lines
    from trainer.config.document import recipe_list
    from trainer.config.load import recipe_text

    try:
        lines = recipe_text(name).splitlines() if name else recipe_list()
    except ClozelineError as error:
        print(f"clozeline: {error}", file=sys.stderr)
        return error.exit_code

    print_lines(lines)
    return 0


COMMANDS = {
    "shard": Command("corpora -> text shards", "pipeline", start_pipeline),
    "vocab": Command("text shards -> vocabulary", "pipeline", start_pipeline),
    "pairs": Command("text shards -> pair shards", "pipeline", start_pipeline),
    "statistics": Command("pair shards -> counts of tokens and co-occurrences", "pipeline", start_pipeline),
    "inspect": Command("show what is in a shard or a folder, decoded and readable", "pipeline", start_pipeline),
    "verify": Command("check every shard of a folder against its manifest", "pipeline", start_pipeline),
    "worker": Command("a worker, or a pool of workers, of an engine such as Flink", "pipeline", start_worker),
    "train": Command("pair shards -> checkpoints; resumes automatically", "trainer", start_trainer),
    "export": Command("checkpoint -> Hugging Face folder", "export", start_export),
    "finetune": Command("encoder and task -> scores, predictions and a fine-tuned folder", "finetune", start_finetune),
    "suite": Command("encoders and many tasks -> one table with intervals", "finetune", start_suite),
    "doctor": Command("check this machine for training, and say how to fix what is wrong", "trainer", start_doctor),
    "recipes": Command("list the training recipes that `--config` takes by name", "trainer", run_recipes),
}
