"""A recipe as TOML text, so that a run's folder tells how to repeat it."""

from __future__ import annotations

from typing import Any

from trainer.recipe_sections import Recipe


def dump_recipe(recipe: Recipe) -> str:
    """The recipe with every default spelt out, as TOML."""
    lines: list[str] = []
    for section, content in recipe.model_dump(exclude_none=True).items():
        many = section == "phases"
        for values in content if many else [content]:
            head = f"[[{section}]]" if many else f"[{section}]"
            lines += [head, *(f"{key} = {_toml(value)}" for key, value in values.items()), ""]
    return "\n".join(lines)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return repr(value)
