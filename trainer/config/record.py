"""How a recipe is recorded and shown: as TOML, as changes at resumes, and without the paths of the machine.

Nothing in a recipe is secret: [deepspeed] takes no keys for passwords and tokens.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from trainer.config.schema import Recipe

RECIPE = "recipe.toml"
"""The file of a run's folder with the recipe of its steps."""

HISTORY = "recipe_history.jsonl"
"""The file of a run's folder with how that changed, a RecipeChange as JSON on each line."""

UNRECORDED = ("run.output", "run.local", "run.stop_at", "data.cache", "data.cache_gigabytes")
"""Keys that say where a run's files are and where it pauses. Nothing that a run computes depends on them."""

PATH_KEYS = ("pairs", "vocab", "cache", "output", "local", "init_from", "tile_from", "statistics", "output_path")
"""Keys of a recipe, in any table, that hold paths on the machine that it ran on."""


def dump_recipe(recipe: Recipe) -> str:
    """Return the recipe as TOML with every default written out."""
    import tomli_w  # not needed for --help

    content = recipe.model_dump(exclude_none=True)
    if not recipe.phases:
        del content["phases"]  # an empty array would be written above all sections
    return tomli_w.dumps(content)


class RecipeChange(BaseModel):
    """A changed key: steps after `step` use the value `now` instead of `before`. None means that the key is not set."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    step: int
    key: str
    before: Any = None
    now: Any = None


def flatten(content: Any, prefix: str = "") -> dict[str, Any]:
    """Return the values of nested tables by their full names. Tables in a list are numbered from 1.

    Example: `flatten({"a": {"b": 1}, "phases": [{"c": 2}]})` -> `{"a.b": 1, "phases.1.c": 2}`.
    """
    if isinstance(content, tuple):
        return {prefix: list(content)}  # JSON turns tuples into lists

    if isinstance(content, dict):
        items = list(content.items())
    elif _is_list_of_tables(content):
        items = list(enumerate(content, start=1))
    else:
        return {prefix: content}

    values: dict[str, Any] = {}
    for name, value in items:
        full_name = f"{prefix}.{name}" if prefix else str(name)
        values |= flatten(value, full_name)
    return values


def _is_list_of_tables(content: Any) -> bool:
    return isinstance(content, list) and bool(content) and all(isinstance(item, dict) for item in content)


def changes_between(before: dict[str, Any], now: dict[str, Any], step: int) -> list[RecipeChange]:
    """Return the differences between two flattened recipes, sorted by key, for a run that resumes after `step`."""
    keys = sorted({*before, *now} - {*UNRECORDED})
    changed_keys = [key for key in keys if before.get(key) != now.get(key)]
    return [RecipeChange(step=step, key=key, before=before.get(key), now=now.get(key)) for key in changed_keys]


def shown_value(value: Any) -> str:
    """Return a value as text for messages. Example: `shown_value(None)` -> `"unset"`."""
    return "unset" if value is None else f"{value}"


# Without paths, for a model card


def public_recipe(recipe: Recipe) -> str:
    """Return the recipe as TOML without paths, and without [deepspeed], which names accounts and trains nothing."""
    import tomli_w

    content = _without_paths(recipe.model_dump(exclude_none=True, exclude={"deepspeed"}))
    return tomli_w.dumps(content).strip()


def public_changes(changes: list[RecipeChange]) -> list[RecipeChange]:
    """Return the changes of keys that `public_recipe` shows."""

    shown = [change for change in changes if not change.key.startswith("deepspeed.")]
    return [change for change in shown if change.key.rpartition(".")[2] not in PATH_KEYS]


def _without_paths(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _without_paths(value) for key, value in content.items() if key not in PATH_KEYS}
    if _is_list_of_tables(content):
        return [_without_paths(table) for table in content]
    return content
