"""The recipe: everything that decides a run, as strict tables of a TOML file.

A key that nobody knows is an error with the nearest name, for a typo that trains is the costliest kind. Values may be
changed on the command line with `--set section.key=value`, value in TOML's spelling; a bare word is a string, and so is
anything but a list for a key that takes text. `none` takes a key out.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from schemas import randomness
from schemas.errors import UsageError, nearest_name
from trainer.config.schema import PhaseSection, Recipe
from trainer.config.validate import check_phases, check_recipe


def load_recipe(path: str, changes: list[str]) -> Recipe:
    """Read a recipe and apply `--set` changes. Raises UsageError naming the file and each wrong key."""
    try:
        content = tomllib.loads(Path(path).read_text())
    except FileNotFoundError:
        raise UsageError(f"--config {path} does not exist. Recipes ship in trainer/recipes/.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"--config {path} is not TOML: {error}.") from error
    for change in changes:
        apply_change(content, change)
    recipe = validated(content, path)
    check_phases(recipe, path)
    for number in range(len(recipe.phases)):
        check_recipe(phase_recipe(recipe, number, path), f"{path}: phase {number + 1}")
    check_recipe(recipe, path)
    return recipe


def validated(content: dict[str, Any], path: str) -> Recipe:
    """Raises UsageError naming each wrong key."""
    try:
        return Recipe.model_validate(content)
    except ValidationError as error:
        faults = "; ".join(_fault(fault) for fault in error.errors())
        end = "" if faults.endswith("?") else "."
        raise UsageError(f"{path}: {faults}{end}") from error


def phase_recipe(recipe: Recipe, number: int, path: str = "") -> Recipe:
    """The recipe of one phase: its keys in the place of the run's, a [phases.batch] in the place of the whole [batch].

    run.max_steps is the phase's own. A later phase has a seed of its own, so that it meets rows it shares with an
    earlier one in another order and under other masks.
    """
    phase, content = recipe.phases[number], recipe.model_dump()
    for name in ("data", "masking", "optimizer", "schedule"):
        content[name] |= getattr(phase, name)
    content["batch"] = phase.batch or content["batch"]
    content["run"] |= {"max_steps": phase.steps}
    if number:
        content["run"] |= {"seed": randomness.key(recipe.run.seed, "phase", number) >> 1}
    if not phase.schedule:
        content["schedule"] = {}  # the run's schedule goes on; it is checked once
    return validated(content | {"phases": []}, f"{path}: phase {number + 1}")


def apply_change(content: dict[str, Any], change: str) -> None:
    """Apply one `--set` to the content of a recipe file. Raises UsageError unless it has the form section.key=value.

    Example: `apply_change(recipe, "run.seed=7")`; the value `none` takes a key out of the recipe.
    """
    name, separator, value = change.partition("=")
    keys = name.split(".")
    if not separator or len(keys) < 2:
        raise UsageError(f"--set {change}: expected section.key=value, as in --set run.seed=7.")

    table = content
    for key in keys[:-1]:
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            raise UsageError(f"--set {change}: {key} is a value, not a section.")

    if value == "none":
        table.pop(keys[-1], None)
    else:
        table[keys[-1]] = parsed_value(keys, value)


def parsed_value(keys: list[str], value: str) -> Any:
    """Return the value of a `--set` as TOML reads it, or as it is where it is not TOML.

    A key that takes text gets text: `run.output=2026-11-21` names a folder, not a day.
    """
    try:
        parsed = tomllib.loads(f"value = {value}")
    except tomllib.TOMLDecodeError:
        return value
    if set(parsed) != {"value"}:  # lines below it, which TOML takes for further keys
        return value
    if takes_text(keys) and not isinstance(parsed["value"], str | list):
        return value
    return parsed["value"]


def takes_text(keys: list[str]) -> bool:
    """Return whether a key of the recipe may be a string of any content."""
    section: Any = Recipe
    for key in keys:
        field = getattr(section, "model_fields", {}).get(key)
        if field is None:
            return False
        section = field.annotation
    return section is str or str in get_args(section)


def _fault(fault: Any) -> str:
    """One of pydantic's findings in the words of a recipe, with the nearest name for an unknown key."""
    path = [str(part) for part in fault["loc"]]
    name = ".".join(path)
    if fault["type"] != "extra_forbidden":
        return (
            f"{name}: {fault['msg']}, found {fault['input']!r}" if fault["type"] != "missing" else f"{name} is missing"
        )
    section: Any = Recipe
    for part in path[:-1]:
        section = PhaseSection if part.isdigit() else section.model_fields[part].annotation
    known = section.model_fields
    hint = nearest_name(path[-1], known).replace("mean ", "mean " + "".join(part + "." for part in path[:-1]))
    return f"unknown key {name}.{hint}"
