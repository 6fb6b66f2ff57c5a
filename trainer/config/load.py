"""Loads and checks a recipe: a TOML file, or one of the recipes that ship with Clozeline.

`--config` names either, from any directory, and `--set section.key=value` changes values. The recipe is then checked
key by key (parse.py), and for keys that must fit each other (validate.py).
"""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from schemas.errors import StorageError, UsageError, nearest_name
from trainer.config.parse import apply_overrides, parse_recipe
from trainer.config.phases import phase_recipe
from trainer.config.schema import Recipe
from trainer.config.validate import DRAWN_STARTS, check_phases, check_recipe
from trainer.logs import rank_of_process

SUFFIX = ".toml"


def load_recipe(path: str, changes: list[str]) -> Recipe:
    """Return the recipe of a file, or of a name such as bert_base, after `--set` changes.

    changes: each as section.key=value. Raises UsageError that names the recipe and each wrong key, and StorageError if
    the file cannot be read.
    """
    try:
        content = tomllib.loads(read_recipe(path))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"--config {path} is not TOML: {error}.") from error

    apply_overrides(content, changes)
    drop_outranked_starts(content.get("model"), path, changes)

    recipe = parse_recipe(content, path, changes)
    check_phases(recipe, path)
    for index in range(len(recipe.phases)):
        check_recipe(phase_recipe(recipe, index, path), f"{path}: phase {index + 1}")
    check_recipe(recipe, path)
    return recipe


def drop_outranked_starts(model: Any, path: str, changes: list[str]) -> None:
    """Remove the file's model.initial_* if `--set` gives a folder of first weights, and say so on stderr.

    model: the content of [model]. Those that `--set` gives as well stay, and are refused (validate.py).
    """
    given = {change.partition("=")[0].strip() for change in changes}
    sources = [key for key in ("init_from", "tile_from") if f"model.{key}" in given]
    if not isinstance(model, dict) or not any(key in model for key in sources):
        return

    starts = [key for key in (*DRAWN_STARTS, "initial_embedding_std") if key in model and f"model.{key}" not in given]
    for key in starts:
        del model[key]
    if starts and rank_of_process() == 0:
        names = ", ".join(f"model.{key}" for key in starts)
        print(
            f"clozeline: model.{sources[0]} gives all first weights, so {names} of {path} are left out.",
            file=sys.stderr,
        )


def read_recipe(path: str, name: str = "--config") -> str:
    """Return the text of a recipe file, or of a shipped recipe.

    name: the flag or the key that `path` is the value of, for messages.
    A file takes precedence over a shipped recipe of the same name. Raises UsageError if neither exists, and
    StorageError if the file cannot be read.
    """
    if not os.path.isfile(path) and path in recipe_names():
        return recipe_text(path)

    try:
        return Path(path).read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(
            f"{name} {path} does not exist.{nearest_recipe(path)} Give a file, or the name of a recipe that "
            "`clozeline recipes` lists."
        ) from None
    except IsADirectoryError:
        raise UsageError(f"{name} {path} is a folder. Give the recipe file inside it.") from None
    except OSError as error:
        raise StorageError(f"{name} {path} cannot be read: {error.strerror}. Check its permissions.") from error


# Recipes that ship with Clozeline


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
