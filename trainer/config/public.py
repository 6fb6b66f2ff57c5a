"""Removes from a recipe what others must not see: secrets, and for a model card also file paths.

Tables of [deepspeed] that configure services may hold passwords ([deepspeed.comet] api_key). So only the keys of
[deepspeed] in deepspeed_keys.PUBLIC_KEYS are shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from trainer.config.changes import RecipeChange
from trainer.config.deepspeed_keys import PUBLIC_KEYS

PATH_KEYS = ("pairs", "vocab", "cache", "output", "local", "init_from", "tile_from", "statistics")
"""Keys of a recipe, in any table, that hold paths on the machine that it ran on."""

PERCENTAGES = re.compile(r"[\d.]+(/[\d.]+)+")
"""Such as "80/10/10", masking.replacement: not a path, although it has slashes."""


def without_secrets(content: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe's tables without the keys of [deepspeed] whose values may be secret."""
    deepspeed = content.get("deepspeed")
    if not isinstance(deepspeed, dict):
        return {name: value for name, value in content.items() if name != "deepspeed"}

    public = {name: value for name, value in deepspeed.items() if name in PUBLIC_KEYS}
    return content | {"deepspeed": public}


def without_secret_keys(values: dict[str, Any]) -> dict[str, Any]:
    """Return a flattened recipe (values by full key) without the values that may be secret."""
    return {key: value for key, value in values.items() if not is_secret(key)}


def without_paths(content: dict[str, Any]) -> dict[str, Any]:
    """Return nested tables without the keys that hold paths, and without all values that look like a path."""
    public: dict[str, Any] = {}
    for key, value in content.items():
        if key in PATH_KEYS or _is_path(value):
            continue

        if isinstance(value, dict):
            public[key] = without_paths(value)
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            public[key] = [without_paths(item) for item in value]
        else:
            public[key] = value

    return public


def changes_without_secrets(changes: Iterable[RecipeChange]) -> list[RecipeChange]:
    """Return the changes of keys whose values may be shown to others."""
    return [change for change in changes if not is_secret(change.key)]


def changes_without_paths(changes: Iterable[RecipeChange]) -> list[RecipeChange]:
    """Return the changes whose key and values hold no path."""
    return [change for change in changes if not _holds_path(change)]


def is_secret(key: str) -> bool:
    """Return whether the value of a key may be a secret. Example: `is_secret("deepspeed.comet.api_key")`."""
    section, _, key_in_section = key.partition(".")
    return section == "deepspeed" and key_in_section.split(".")[0] not in PUBLIC_KEYS


def _holds_path(change: RecipeChange) -> bool:
    last_name = change.key.rsplit(".", 1)[-1]
    return last_name in PATH_KEYS or _is_path(change.before) or _is_path(change.now)


def _is_path(value: Any) -> bool:
    """Return whether a value looks like a path or a URL, or is a list that holds one.

    The check is conservative: any text with a slash counts as a path, except the percentages of masking.replacement.
    """
    values = value if isinstance(value, list | tuple) else [value]
    return any(isinstance(item, str) and _looks_like_path(item) for item in values)


def _looks_like_path(text: str) -> bool:
    if PERCENTAGES.fullmatch(text):
        return False
    return "/" in text or "\\" in text or text.startswith("~")
