"""Loads and checks a recipe: a TOML file, or one of the recipes that ship with Clozeline.

`--config` names either, from any directory, and `--set section.key=value` changes values. A recipe that names no shape
takes that of the folder model.init_from. The recipe is then checked key by key (parse.py), and for keys that must fit
each other (validate.py).
"""

from __future__ import annotations

import os
import sys
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

from schemas import storage
from schemas.errors import DataError, StorageError, UsageError, nearest_name
from schemas.urls import normal
from trainer.config.parse import Origin, apply_overrides, parse_recipe, parse_section
from trainer.config.phases import phase_recipe
from trainer.config.schema import Recipe
from trainer.config.sections import DRAWN_STARTS, START_KEYS, ModelSection
from trainer.config.validate import check_phases, check_recipe
from trainer.logs import rank_of_process

RECIPES = files("trainer").joinpath("recipes")
SUFFIX = ".toml"

SHAPE_KEYS = tuple(key for key, field in ModelSection.model_fields.items() if field.is_required())
"""Keys of [model] without which no model can be built."""

DROPOUT_KEYS = ("hidden_dropout_prob", "attention_probs_dropout_prob")


def load_recipe(path: str, changes: list[str]) -> Recipe:
    """Return the recipe of a file, or of a name such as bert_base, after `--set` changes.

    changes: each as section.key=value. Raises UsageError that names the recipe and each wrong key, StorageError if the
    file cannot be read, and UsageError or DataError if the folder whose shape it takes cannot be read.
    """
    try:
        content = tomllib.loads(read_recipe(path))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"--config {path} is not TOML: {error}.") from error

    if {"start", "shard", "train"} <= content.keys():
        raise UsageError(
            f"--config {path} is the plan of `clozeline start`, not a recipe. Repeat that command, or give the config "
            "of its [train], and the other keys there with --set."
        )
    apply_overrides(content, changes)
    drop_outranked_starts(content.get("model"), path, changes)
    content["model"] = with_shape(content)

    try:
        recipe = parse_recipe(content, path, changes)
    except UsageError as error:
        if names_shape(content["model"]):
            raise
        raise UsageError(
            f"{error} A recipe whose [model] has no {', '.join(SHAPE_KEYS)} takes its shape from a folder: continue a "
            "published encoder or an export with --set model.init_from=FOLDER, or name the shape."
        ) from error
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


# The shape of a folder


def names_shape(model: Any) -> bool:
    """Return whether the content of [model] names a shape, at least in part, or is no table that could."""
    return not isinstance(model, dict) or any(key in model for key in SHAPE_KEYS)


def with_shape(content: dict[str, Any]) -> Any:
    """Return the content of [model], which takes the shape of model.init_from if it names none. Other keys stay.

    Raises UsageError if there is no such folder, and DataError if its config.json is damaged.
    """
    model = content.get("model", {})
    if names_shape(model) or not isinstance(model.get("init_from"), str):  # the schema reports what is missing
        return model
    return _shape_of(normal(model["init_from"]), content.get("run")) | model


def _shape_of(folder: str, run: Any) -> dict[str, Any]:
    """Return the keys of [model] that a folder's config.json determines.

    run: the content of [run]. A run that resumes does not need the folder: if it is gone, the run's own record counts.
    """
    from trainer.models.hf_config import model_of_folder  # reads vocabularies, which few recipes need

    output = run.get("output") if isinstance(run, dict) else None
    if isinstance(output, str) and output and not os.path.exists(folder):
        record = storage.join(normal(output), "recipe.toml")
        if storage.exists(record):
            return _recorded_shape(record, folder)

    shape = model_of_folder(folder)
    parse_section(ModelSection, shape, Origin(storage.join(folder, "config.json")))
    return shape


def _recorded_shape(record: str, folder: str) -> dict[str, Any]:
    try:
        content = tomllib.loads(storage.read(record).decode("utf-8-sig"))
    except ValueError as error:
        raise DataError(
            f"{record} is damaged: {error}. Restore it, or {folder}, which model.init_from names."
        ) from error
    parse_recipe(content, record)
    return {key: value for key, value in content["model"].items() if key not in {*START_KEYS, *DROPOUT_KEYS}}


# Files


def read_recipe(path: str) -> str:
    """Return the text of a recipe file, or of a shipped recipe.

    A file takes precedence over a shipped recipe of the same name. Raises UsageError if neither exists, and
    StorageError if the file cannot be read.
    """
    if not os.path.isfile(path) and path in recipe_names():
        return recipe_text(path)

    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(
            f"--config {path} does not exist.{nearest_recipe(path)} Give a file, or the name of a recipe that "
            "`clozeline recipes` lists."
        ) from None
    except IsADirectoryError:
        raise UsageError(f"--config {path} is a folder. Give the recipe file inside it.") from None
    except OSError as error:
        raise StorageError(f"--config {path} cannot be read: {error.strerror}. Check its permissions.") from error


# Recipes that ship with Clozeline


def recipe_names() -> list[str]:
    """Return the names that `--config` takes, in alphabetical order."""
    return sorted(file.name.removesuffix(SUFFIX) for file in RECIPES.iterdir() if file.name.endswith(SUFFIX))


def recipe_text(name: str) -> str:
    """Return the TOML text of a shipped recipe. Raises UsageError with the nearest name if there is none."""
    if name in recipe_names():
        return RECIPES.joinpath(f"{name}{SUFFIX}").read_text(encoding="utf-8")
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
