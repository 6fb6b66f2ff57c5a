"""The command `clozeline COMMAND ...`: starts the program of `pipeline` or `trainer` that the command names.

Each command runs exactly the same program as its longer form, such as `python -m pipeline shard` for `clozeline shard`.
A program is imported only when its command is given, so that `clozeline --help` answers at once.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from clozeline import __version__
from clozeline.installation import USAGE_ERROR, end, run_explained

if TYPE_CHECKING:
    from schemas.command_line import CommandParser

EXIT_CODES = """
  0    done
  1    a run that cannot continue
  2    usage or configuration
  3    bad data
  4    bad checkpoint
  5    storage: full disk, permission, unreachable bucket
  75   preempted or interrupted (Ctrl-C) during training, and saved; the same command resumes
  130  interrupted before training, in another command, or twice
"""


PIPELINE = "pipeline.cli:main"
"""The program of several commands, which are its own commands, too."""


class Command(NamedTuple):
    """One command.

    help: its line in --help.
    program: "module:function", called with the arguments and `prog`, its name in help and errors.
    extra: the extra that the program needs.
    takes_stop: whether it also gets a StopRequest, which has listened since before the program's imports.
    """

    help: str
    program: str
    extra: str
    takes_stop: bool = False


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return the process's exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    words = ["--help" if word == "-help" else word for word in words]
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]
    elif words[1:] == ["help"] and not os.path.exists("help"):
        words = [words[0], "--help"]
    if not words or words[0] not in COMMANDS:
        return run_explained(lambda: explain_usage(words), "")

    command = COMMANDS[words[0]]
    code = run_explained(lambda: _start(command, words), command.extra)
    if command.program == PIPELINE:
        end(code)  # after Ctrl-C, the process must end without waiting for the threads of a remote engine
    return code


def _start(command: Command, words: list[str]) -> int:
    """Import the program of a command and run it. words: the command's name and its arguments."""
    name, *arguments = words
    prog = f"clozeline {name}"
    if command.program == PIPELINE:
        from pipeline.environment import look_for_cycles_seldom

        look_for_cycles_seldom()
        arguments = words
        prog = "clozeline"

    stop = []
    if command.takes_stop:  # the imports take seconds, and a signal during them must not be lost
        from trainer.distributed.stop import StopRequest

        stop = [StopRequest().listen()]

    module, _, function = command.program.partition(":")
    return getattr(import_module(module), function)(arguments, *stop, prog=prog)


def explain_usage(words: list[str]) -> int:
    """Answer --help and --version, or print what is wrong with a command line without a known command.

    Returns the exit code. Raises SystemExit for --help and --version.
    """
    from schemas.command_line import run
    from schemas.errors import UsageError, nearest_name

    parser = usage_parser()
    if not words:
        parser.print_help(sys.stderr)
        return USAGE_ERROR

    first = words[0]

    def refuse() -> int:
        command = next((word for word in words if word in COMMANDS), "")
        if first.startswith("-") and command:
            raise UsageError(f"{first} stands before the command. Write clozeline {command} ... {first} ...")
        if first.startswith("-"):
            parser.parse_args([first])
        hint = " Did you mean --version?" if first == "version" else nearest_name(first, COMMANDS)
        raise UsageError(f"there is no command {first}.{hint} See `clozeline --help`.")

    return run(refuse)


def usage_parser() -> CommandParser:
    """Return the parser of `clozeline` itself, whose help lists all commands."""
    from schemas.command_line import CommandParser  # loads more slowly than this whole module

    parser = CommandParser(
        "clozeline",
        "Raw text to a pretrained encoder: BERT, RoBERTa, ELECTRA, ModernBERT and others.",
        ["clozeline start my_texts --output out/mine", "clozeline train --help"],
        EXIT_CODES,
    )
    parser.usage = "clozeline COMMAND ..."
    for title, commands in GROUPS.items():
        group = parser.add_argument_group(title)
        for name, command in commands.items():
            group.add_argument(name, nargs="?", help=command.help)
    parser.add_argument("--version", action="version", version=f"clozeline {__version__}", help="print the version")
    return parser


GROUPS = {
    "from text to encoder": {
        "start": Command("a folder of text -> an encoder, by the commands below", "clozeline.start.cli:main", "all"),
        "demo": Command("all of them on Python's documentation, in 2 to 3 minutes", "clozeline.demo.cli:main", "demo"),
        "shard": Command("corpora -> text shards", PIPELINE, "pipeline"),
        "vocab": Command("text shards -> vocabulary", PIPELINE, "pipeline"),
        "pairs": Command("text shards -> pair shards", PIPELINE, "pipeline"),
        "statistics": Command("pair shards -> counts of tokens and co-occurrences", PIPELINE, "pipeline"),
        "train": Command(
            "pair shards -> checkpoints; resumes automatically", "trainer.cli:main", "trainer", takes_stop=True
        ),
    },
    "use it": {
        "export": Command("checkpoint -> Hugging Face folder", "trainer.export.cli:main", "export"),
        "finetune": Command(
            "encoder and task -> scores, predictions and a fine-tuned folder",
            "trainer.finetune.cli:main",
            "finetune",
            takes_stop=True,
        ),
        "suite": Command("encoders and many tasks -> one table with intervals", "trainer.suite.cli:main", "finetune"),
    },
    "look and check": {
        "report": Command("one run or several on one page, also while they train", "trainer.report:main", "trainer"),
        "inspect": Command("say what a folder or a file is, what is in it, and what to do next", PIPELINE, "pipeline"),
        "verify": Command("check every shard of a folder against its manifest", PIPELINE, "pipeline"),
        "recipes": Command(
            "list the training recipes that `--config` takes by name", "clozeline.recipes:main", "trainer"
        ),
        "doctor": Command(
            "check this machine for training, and say how to fix what is wrong", "trainer.doctor:main", "trainer"
        ),
    },
    "around it": {
        "completion": Command("print a script for the TAB key of bash, zsh or fish", "clozeline.completion:main", ""),
        "worker": Command(
            "a worker, or a pool of workers, of an engine such as Flink", "pipeline.beam.workers:main", "pipeline"
        ),
    },
}
"""All commands, as `--help` groups them."""

COMMANDS = {name: command for commands in GROUPS.values() for name, command in commands.items()}
