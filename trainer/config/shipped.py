"""The recipes that ship with Clozeline, found by name from any directory.

This imports only the standard library and schemas.errors, so that `clozeline recipes NAME` answers at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable

from schemas.errors import UsageError, nearest_name

SUFFIX = ".toml"


def recipe_names() -> list[str]:
    """Return the names that `--config` takes, in alphabetical order."""
    return sorted(name for name, _ in _recipe_files())


def recipe_text(name: str) -> str:
    """Return the TOML text of a shipped recipe. Raises UsageError with the nearest name if there is none."""
    for known_name, file in _recipe_files():
        if known_name == name:
            return file.read_text(encoding="utf-8")

    raise UsageError(
        f"There is no recipe {name}.{nearest_recipe(name)} `clozeline recipes` lists those that ship with Clozeline."
    )


def recipe_description(name: str) -> str:
    """Return the first line of a shipped recipe, which is a comment that describes it."""
    return recipe_text(name).splitlines()[0].removeprefix("#").strip()


def recipe_comment(name: str, label: str) -> str:
    """Return the rest of a shipped recipe's comment line "# LABEL: ...", or "" if there is none.

    Example: `recipe_comment("bert_base", "Hardware")` -> `"1 H100, 11 hours"`.
    """
    beginning = f"# {label}:"
    for line in recipe_text(name).splitlines():
        if line.startswith(beginning):
            return line.removeprefix(beginning).strip()
    return ""


def nearest_recipe(path: str) -> str:
    """Return a hint that names the shipped recipe that a path or a name may mean, or an empty string.

    Example: `nearest_recipe("recipes/bert-base.toml")` -> `" Did you mean bert_base?"`.
    """
    name = path.rsplit("/", 1)[-1].removesuffix(SUFFIX)
    return nearest_name(name, recipe_names())


def _recipe_files() -> Iterator[tuple[str, Traversable]]:
    for file in files("trainer").joinpath("recipes").iterdir():
        if file.name.endswith(SUFFIX):
            yield file.name.removesuffix(SUFFIX), file
