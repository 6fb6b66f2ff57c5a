"""`clozeline recipes`: lists the recipes that ship with Clozeline, or prints one of them."""

from __future__ import annotations

from schemas.command_line import CommandParser, run
from schemas.terminal import print_lines
from trainer.config.document import recipe_list
from trainer.config.load import recipe_text


def main(arguments: list[str] | None = None, prog: str = "clozeline recipes") -> int:
    """Run the command line and return the process's exit code."""
    return run(lambda: _print(parser(prog).parse_args(arguments).name))


def _print(name: str | None) -> int:
    print_lines(recipe_text(name).splitlines() if name else recipe_list())
    return 0


def parser(prog: str) -> CommandParser:
    """Return the parser of the command line."""
    flags = CommandParser(
        prog,
        "List the recipes that ship with Clozeline with their size, objective, data and hardware, or print one of "
        "them, to copy and change.",
        [prog, f"{prog} bert_base > my_recipe.toml"],
        "0 done, 2 usage or configuration",
    )
    flags.add_argument("name", nargs="?", metavar="RECIPE", help="the recipe to print; without it, all are listed")
    return flags
