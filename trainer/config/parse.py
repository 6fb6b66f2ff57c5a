"""Turns the content of a recipe file into a Recipe, or into one error that names every wrong key.

An unknown key is an error with the nearest known name: a typo that trains anyway would be the costliest mistake. For a
wrong value the error quotes the key's description from the schema.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from schemas.errors import UsageError, nearest_name
from trainer.config.schema import PhaseSection, Recipe


def parse_recipe(content: dict[str, Any], path: str) -> Recipe:
    """Return the recipe that TOML content describes. Raises UsageError that names each wrong key.

    path: what the error calls the recipe.
    """
    try:
        return Recipe.model_validate(content)
    except ValidationError as error:
        explanations = [_explain(fault) for fault in error.errors()]
        raise UsageError(f"{path}: {' '.join(explanations)}") from error


@dataclass(frozen=True)
class _WrongKey:
    """A key that pydantic complains about.

    phase: "phase 2: " for a key of the second phase, else empty. table: "optimizer." for a key of that section, empty
    for a section itself. section: the class whose fields are the known keys. element: "[1]" for the second element of a
    list, else empty.
    """

    phase: str
    table: str
    key: str
    section: type[BaseModel]
    element: str = ""

    @property
    def name(self) -> str:
        return f"{self.phase}{self.table}{self.key}{self.element}"

    @property
    def description(self) -> str:
        """The key's description as a further sentence, or an empty string for an unknown key."""
        field = self.section.model_fields.get(self.key)
        return f" {field.description}" if field else ""


def _explain(fault: Any) -> str:
    """Return one of pydantic's findings as a sentence about the recipe."""
    wrong = _locate(fault["loc"])

    if fault["type"] == "extra_forbidden":
        hint = nearest_name(wrong.key, wrong.section.model_fields).replace("mean ", f"mean {wrong.table}")
        return f"{wrong.phase}unknown key {wrong.table}{wrong.key}.{hint}"

    if fault["type"] == "missing":
        return f"{wrong.name} is missing.{wrong.description}"

    # Pydantic puts this before the text of a ValueError that a check of ours raised.
    sentence = fault["msg"].removeprefix("Value error, ")
    message = sentence[0].lower() + sentence[1:]
    return f"{wrong.name}: {message}, found {fault['input']!r}.{wrong.description}"


def _locate(location: tuple[Any, ...]) -> _WrongKey:
    """Return the key that pydantic's location of a fault leads to.

    ("optimizer", "lr") is a key of a section, ("phases", 1, "steps") one of the second phase. What comes after the key
    is the position in a list or, where a key takes several types, the name of the type that was tried.
    """
    first, *rest = location
    if not rest:
        return _WrongKey("", "", first, Recipe)

    if first == "phases":
        number = rest[0] + 1
        key = rest[1] if len(rest) > 1 else "phases"
        return _WrongKey(f"phase {number}: ", "", key, PhaseSection if len(rest) > 1 else Recipe)

    section: Any = Recipe.model_fields[first].annotation
    element = "".join(f"[{part}]" for part in rest[1:] if isinstance(part, int))
    return _WrongKey("", f"{first}.", rest[0], section, element)
