"""The command line of `clozeline start`."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from contextlib import suppress

from clozeline.installation import missing_extras
from clozeline.start import DEFAULT_HOURS
from pipeline import cli as pipeline_cli
from pipeline.shard.detection import AUTO
from pipeline.shard.languages import find_language
from schemas.command_line import CommandParser, file_path, flag_hint, folder_path, run
from schemas.errors import UsageError
from trainer import cli as trainer_cli
from trainer.command_line import EXIT_CODES
from trainer.config.parse import keys_called
from trainer.export import cli as export_cli


def main(arguments: list[str] | None = None, prog: str = "clozeline start") -> int:
    """Run the command line and return the process's exit code."""
    return run(lambda: _run(parser(prog).parse_args(arguments), prog))


def _run(options: argparse.Namespace, prog: str) -> int:
    missing = missing_extras("pipeline", "trainer", "export")
    if missing is not None:
        raise UsageError(missing)
    from clozeline.start.start import start  # needs these packages

    return start(options, prog)


class Parser(CommandParser):
    """The parser of `start`, which has the flags of no step: they are lines of clozeline.toml."""

    def _unexpected(self, others: list[str]) -> UsageError:
        if any(word.startswith("-") for word in others):
            return super()._unexpected(others)
        return UsageError(
            f"start takes one FOLDER, and {1 + len(others):,} were given. Give a folder that holds all, or quote a "
            "pattern, so that the shell does not expand it: 'folder/*.txt'."
        )


def _flag_hint(flag: str, known: Iterable[str]) -> str:
    name = flag.removeprefix("--").replace("-", "_")
    if name == "set":
        return " Keys of the recipe stand under [train] in clozeline.toml, which --plan_only writes into DIR."
    flags = {job: pipeline_cli.parser("clozeline").commands[job].known_flags for job in ("shard", "vocab", "pairs")}
    flags["export"] = export_cli.parser("clozeline export").known_flags
    section = next((step for step, names in flags.items() if f"--{name}" in names), "")
    key = trainer_cli.ALIASES.get(name, name)
    if name in ("config", "recipe"):
        section, name = "train", "config"
    elif not section and keys_called(key):
        section, name = "train", keys_called(key)[0]
    if not section:
        return flag_hint(flag, known)
    return f" Set {name} under [{section}] in clozeline.toml, which --plan_only writes into DIR."


def parser(prog: str) -> CommandParser:
    """Return the parser of the command line."""
    top = Parser(
        prog,
        "From a folder of text to an encoder: look at the files, say what will be done and why, write that to "
        "DIR/clozeline.toml, and do it; the same command continues after any interruption.",
        [f"{prog} my_texts --output out/mine --hours 2", f'{prog} "corpus/*.jsonl.gz" --language de --plan_only'],
        EXIT_CODES,
        "Flags of shard, vocab, pairs and export, and keys of a recipe, are lines of DIR/clozeline.toml.",
    )
    top.hint = _flag_hint
    what = "a folder, a file or a pattern, with text in any format of `shard`"
    top.add_argument("input", type=file_path, metavar="FOLDER", help=what)

    model = top.add_argument_group("the model")
    what = f"about how long to train, at the speed of the first steps (default: {DEFAULT_HOURS}, ten minutes)"
    model.add_argument("--hours", type=_hours, metavar="H", help=what)
    what = "language of the text (default: detected); auto if there are several"
    model.add_argument("--language", type=_language, metavar="CODE", help=what)

    runs = top.add_argument_group("how it runs")
    runs.add_argument("--output", type=folder_path, default="out", metavar="DIR", help="folder for everything")
    runs.add_argument("--yes", action="store_true", help="do not ask before the first step")
    what = "write clozeline.toml and stop, to change it first"
    runs.add_argument("--plan_only", action="store_true", help=what)
    return top


def _hours(text: str) -> float:
    with suppress(ValueError):
        if 0 < float(text) < float("inf"):
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of hours above 0, such as 0.5 or 12")


def _language(text: str) -> str:
    return AUTO if text.strip().lower() == AUTO else find_language(text).code
