"""Applies `--set section.key=value` to the content of a recipe.

The value is written as in TOML; a bare word is a string. `none` removes a key, so that its default holds, and
`phases=none` removes all phases.
"""

from __future__ import annotations

import tomllib
from typing import Any, Literal, get_args, get_origin

from schemas.errors import UsageError
from trainer.config.schema import Recipe


def apply_override(content: dict[str, Any], override: str) -> None:
    """Change the content of a recipe in place. Raises UsageError unless `override` has the form section.key=value.

    The one change of phases is `phases=none`, which removes them all. Example: `apply_override(content, "run.seed=7")`.
    """
    name, separator, value = override.partition("=")
    keys = name.split(".")

    if separator and keys[0] == "phases":
        if name != "phases" or value != "none":
            raise UsageError(
                f"--set {override}: --set cannot change single phases. Edit [[phases]] in a copy of the recipe, which "
                "`clozeline recipes NAME` prints, or remove all of them with --set phases=none."
            )
        content.pop("phases", None)
        return

    if not separator or len(keys) < 2:
        raise UsageError(f"--set {override}: expected section.key=value, as in --set run.seed=7.")

    table = content
    for key in keys[:-1]:
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            raise UsageError(f"--set {override}: {key} is a value, not a section.")

    # Unsets a key, unless it is one of the key's own values.
    if value == "none" and "none" not in choices_of(keys):
        table.pop(keys[-1], None)
    else:
        table[keys[-1]] = parse_value(keys, value)


def parse_value(keys: list[str], value: str) -> Any:
    """Return a value as TOML reads it, or the string itself if it is not TOML.

    A key that takes text gets text: `run.output=2026-11-21` names a folder, not a day.
    """
    try:
        parsed = tomllib.loads(f"value = {value}")
    except tomllib.TOMLDecodeError:
        return value

    # A value of several lines: TOML takes the further lines for keys.
    if set(parsed) != {"value"}:
        return value

    if takes_text(keys) and not isinstance(parsed["value"], str | list):
        return value
    return parsed["value"]


def takes_text(keys: list[str]) -> bool:
    """Return whether a key of the recipe may be any string."""
    annotation = annotation_of(keys)
    return annotation is str or str in get_args(annotation)


def choices_of(keys: list[str]) -> set[Any]:
    """Return the values that a key of the recipe is limited to, as far as they are listed."""
    annotation = annotation_of(keys)
    choices = set(get_args(annotation)) if get_origin(annotation) is Literal else set()
    for alternative in get_args(annotation):
        if get_origin(alternative) is Literal:
            choices |= set(get_args(alternative))
    return choices


def annotation_of(keys: list[str]) -> Any:
    """Return the type of a key of the recipe, None if there is no such key."""
    annotation: Any = Recipe
    for key in keys:
        fields = getattr(annotation, "model_fields", {})
        if key not in fields:
            return None
        annotation = fields[key].annotation
    return annotation
