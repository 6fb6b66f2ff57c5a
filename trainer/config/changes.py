"""How a run's recipe changed at its resumes: which key, from which value to which, and after which step."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

UNRECORDED = ("run.output", "run.local", "run.stop_at", "data.cache", "data.cache_gigabytes")
"""Where a run lies and where it pauses: nothing that it computes depends on these."""


class RecipeChange(BaseModel):
    """Steps after `step` were taken with `now` in the place of `before`; None: the key was not set."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    step: int
    key: str
    before: Any = None
    now: Any = None

    def __str__(self) -> str:
        """Example: `optimizer.lr 0.004 -> 0.001`."""
        return f"{self.key} {shown(self.before)} -> {shown(self.now)}"


def flatten(content: Any, prefix: str = "") -> dict[str, Any]:
    """Return the values of nested tables by their full names. Lists of tables are counted from 1.

    Example: `flatten({"a": {"b": 1}, "phases": [{"c": 2}]})` -> `{"a.b": 1, "phases.1.c": 2}`.
    """
    if isinstance(content, dict):
        items = list(content.items())
    elif isinstance(content, list) and content and all(isinstance(item, dict) for item in content):
        items = list(enumerate(content, start=1))
    elif isinstance(content, tuple):
        return {prefix: list(content)}  # as JSON gives it back
    else:
        return {prefix: content}

    found: dict[str, Any] = {}
    for name, value in items:
        found |= flatten(value, f"{prefix}.{name}" if prefix else str(name))
    return found


def changes_between(before: dict[str, Any], now: dict[str, Any], step: int) -> list[RecipeChange]:
    """Return what differs between two flattened recipes, by key, for a run that resumes after `step`."""
    keys = sorted({*before, *now} - {*UNRECORDED})
    return [
        RecipeChange(step=step, key=key, before=before.get(key), now=now.get(key))
        for key in keys
        if before.get(key) != now.get(key)
    ]


def shown(value: Any) -> str:
    """Return a value as a person writes it. Example: `shown(None)` -> `"unset"`."""
    return "unset" if value is None else f"{value}"
