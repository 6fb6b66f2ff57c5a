"""Loads and checks a recipe, the TOML file that determines a run.

`--config` names a file or one of the recipes that ship with Clozeline, and `--set section.key=value` changes values
(overrides.py). The recipe is then checked key by key (parse.py), and for keys that must fit each other (validate.py).
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

from schemas.errors import StorageError, UsageError
from trainer.config.overrides import apply_override
from trainer.config.parse import parse_recipe
from trainer.config.phases import phase_recipe
from trainer.config.schema import Recipe
from trainer.config.shipped import nearest_recipe, recipe_names, recipe_text
from trainer.config.validate import check_phases, check_recipe


def load_recipe(path: str, changes: list[str]) -> Recipe:
    """Return the recipe of a file, or of a name such as bert_base, after `--set` changes.

    changes: each as section.key=value. Raises UsageError that names the recipe and each wrong key, and StorageError if
    the file cannot be read.
    """
    try:
        content = tomllib.loads(read_recipe(path))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"--config {path} is not TOML: {error}.") from error

    for change in changes:
        apply_override(content, change)

    recipe = parse_recipe(content, path, changes)
    check_phases(recipe, path)
    for index in range(len(recipe.phases)):
        check_recipe(phase_recipe(recipe, index, path), f"{path}: phase {index + 1}")
    check_recipe(recipe, path)
    return recipe


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
