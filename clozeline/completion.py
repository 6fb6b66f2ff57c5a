"""`clozeline completion SHELL`: prints a script that completes commands, flags, recipes and files.

The script is made from the parsers of all commands, and holds all that it needs. So the TAB key starts no Python, and
answers at once. Commands whose extra is not installed complete by their names alone.
"""

from __future__ import annotations

import argparse
from contextlib import suppress
from importlib import import_module

import shtab

from clozeline import cli
from schemas.command_line import CommandParser, run

SHELLS = ("bash", "zsh", "fish")

WHERE = {
    "bash": "~/.local/share/bash-completion/completions/clozeline",
    "zsh": "a folder of your $fpath, as _clozeline",
    "fish": "~/.config/fish/completions/clozeline.fish",
}

FOLDERS = ("DIR", "FOLDER")
FILES = ("FILE", "PATH", ".toml")
"""What the names of values contain that are paths."""

RECIPE = "RECIPE"

RECIPES_AND_FILES = {
    "bash": "_clozeline_recipe_files",
    "zsh": "_clozeline_recipe_files",
    "fish": "{names} (__fish_complete_path (commandline -ct))",
}

FUNCTIONS = {
    "bash": '_clozeline_recipe_files() {{ compgen -W "{names}" -- "$1"; compgen -f -- "$1"; }}\n',
    "zsh": "_clozeline_recipe_files() {{ compadd {names}; _files; }}\n",
}


def main(arguments: list[str] | None = None, prog: str = "clozeline completion") -> int:
    """Run the command line and return the process's exit code."""
    return run(lambda: _print(parser(prog).parse_args(arguments).shell))


def _print(shell: str) -> int:
    print(script(shell))
    return 0


def parser(prog: str) -> CommandParser:
    """Return the parser of the command line."""
    flags = CommandParser(
        prog,
        "Print a script with which the TAB key completes commands, flags, recipes and files.",
        [f"{prog} bash > {WHERE['bash']}", f'eval "$({prog} zsh)"'],
        "0 done, 2 usage or configuration",
        "\n".join(f"  {shell:<5} reads it from {place}" for shell, place in WHERE.items()),
    )
    flags.add_argument("shell", choices=SHELLS, help="the shell that will read the script")
    return flags


def script(shell: str) -> str:
    """Return the script for a shell."""
    names = ""
    with suppress(ImportError):
        names = " ".join(import_module("trainer.config.load").recipe_names())
    recipes = {name: text.format(names=names) for name, text in RECIPES_AND_FILES.items()}
    functions = {name: text.format(names=names) for name, text in FUNCTIONS.items()}

    whole = argparse.ArgumentParser(prog="clozeline")
    whole.add_argument("--version", action="store_true", help="print the version")
    commands = whole.add_subparsers()
    known = parsers()
    for name, command in cli.COMMANDS.items():
        added = commands.add_parser(name, help=command.help)
        flags = known.get(name, added)
        commands.choices[name] = flags
        for action in flags._actions:
            _complete(action, recipes)
    commands.add_parser("help", help="the help of a command").add_argument("command", choices=list(cli.COMMANDS))
    return shtab.complete(whole, shell, preamble=functions)  # type: ignore[arg-type]  # takes one for each shell


def parsers() -> dict[str, CommandParser]:
    """Return the parsers of all commands whose packages are installed."""
    found: dict[str, CommandParser] = {}
    for name, command in cli.COMMANDS.items():
        if name in found:
            continue
        with suppress(ImportError):
            made = import_module(command.program.partition(":")[0]).parser(f"clozeline {name}")
            found |= made.commands or {name: made}
    return found


def _complete(action: argparse.Action, recipes: dict[str, str]) -> None:
    value = action.metavar if isinstance(action.metavar, str) else ""
    if value == RECIPE:
        action.complete = recipes  # type: ignore[attr-defined]
    elif any(name in value for name in FOLDERS):
        action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    elif any(name in value for name in FILES):
        action.complete = shtab.FILE  # type: ignore[attr-defined]
