"""Turns the content of a TOML file into a Recipe or another schema, or into one error that names every wrong key.

An unknown key is an error that suggests the nearest known name, because a typo that is silently ignored could waste a
whole training run. For a wrong value, the error quotes the key's description from the schema.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from schemas.errors import UsageError, nearest_name
from trainer.config.origin import Origin
from trainer.config.schema import PhaseSection, Recipe
from trainer.config.section import Section

Schema = TypeVar("Schema", bound=Section)


FIRST_SENTENCE = re.compile(r"(?<=\.) (?=[A-Z\"])")
"""Divides a description into sentences."""

CHOICE = re.compile(r"'([^']+)'")
"""A value that a message lists."""

EXPECTED = {
    "int_type": "expected a whole number",
    "int_parsing": "expected a whole number",
    "int_from_float": "expected a whole number",
    "float_type": "expected a number",
    "float_parsing": "expected a number",
    "bool_type": "expected true or false",
    "bool_parsing": "expected true or false",
    "string_type": "expected a text",
    "string_too_short": "expected a text that is not empty",
    "list_type": "expected a list",
    "tuple_type": "expected a list",
    "dict_type": "expected a table",
    "too_short": "too few elements",
    "too_long": "too many elements",
}
"""What to write in place of pydantic's message, by the type of its error."""


def parse_recipe(content: dict[str, Any], path: str, changes: Sequence[str] = ()) -> Recipe:
    """Return the recipe that TOML content describes. Raises UsageError that names each wrong key.

    path: names the recipe in the error. changes: those of --set, which are applied already; an error in one names it.
    """
    return parse_section(Recipe, content, Origin(path, changes))


def parse_section(schema: type[Schema], content: dict[str, Any], origin: Origin) -> Schema:
    """Return the content of a whole file as an instance of `schema`. Raises UsageError that names each wrong key.

    origin: names the file, or the change of it that made a key wrong.
    """
    try:
        return schema.model_validate(content)
    except ValidationError as error:
        # A key that accepts several types has a fault for each of them.
        faults: dict[_WrongKey, list[Any]] = {}
        for fault in error.errors():
            faults.setdefault(_locate(fault["loc"], schema), []).append(fault)

        # Elements that are wrong say more than that the key takes a single value, too.
        for wrong in [replace(wrong, element="") for wrong in faults if wrong.element]:
            faults.pop(wrong, None)

        explanations: dict[str, list[str]] = {}
        for wrong, of_key in faults.items():
            source = origin.of(f"{wrong.table}{wrong.key}") if not wrong.phase else origin.path
            explanations.setdefault(source, []).append(_explain(of_key, wrong))

        sentences = [f"{source}: {' '.join(faults)}" for source, faults in explanations.items()]
        raise UsageError(" ".join(sentences)) from error


@dataclass(frozen=True)
class _WrongKey:
    """A key that pydantic reports as wrong.

    phase: "phase 2: " for a key of the second phase, otherwise empty. table: "optimizer." for a key of that section;
    empty for a section itself. section: the class whose fields are the known keys. element: "[1]" for the second
    element of a list, otherwise empty.
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
        """The first sentence of the key's description, to be appended to the message; empty for an unknown key."""
        field = self.section.model_fields.get(self.key)
        return f" {FIRST_SENTENCE.split(field.description)[0]}" if field and field.description else ""


def _explain(faults: list[Any], wrong: _WrongKey) -> str:
    """Return pydantic's errors about one key as a sentence about the file."""
    fault = faults[0]
    if fault["type"] == "extra_forbidden":
        hint = nearest_name(wrong.key, wrong.section.model_fields).replace("mean ", f"mean {wrong.table}")
        if not hint:
            owner = f"[{wrong.table.removesuffix('.')}]" if wrong.table else "The file"
            hint = f" {owner} has {', '.join(wrong.section.model_fields)}."
        return f"{wrong.phase}unknown key {wrong.table}{wrong.key}.{hint}"

    if fault["type"] == "missing":
        return f"{wrong.name} is missing.{wrong.description}"

    first, *others = [_message(fault) for fault in faults]
    message = ", or ".join([first, *(other.removeprefix("expected ") for other in others)])
    hint = nearest_name(str(fault["input"]).lower(), CHOICE.findall(message))
    return f"{wrong.name}: {message}, found {fault['input']!r}.{hint}{wrong.description}"


def _message(fault: Any) -> str:
    """Return what is wrong with a value, such as "expected a whole number"."""
    if fault["type"] == "literal_error":
        return f"expected {fault['ctx']['expected']}"

    # Pydantic puts this prefix before the text of a ValueError that our own validators raise.
    sentence: str = fault["msg"].removeprefix("Value error, ")
    return EXPECTED.get(fault["type"], sentence[0].lower() + sentence[1:])


def _locate(location: tuple[Any, ...], schema: type[BaseModel]) -> _WrongKey:
    """Return the key at the location that pydantic gives for an error.

    ("optimizer", "lr") is a key of a section, and ("phases", 1, "steps") a key of the second phase. After the key may
    come a position in a list or, if the key accepts several types, the name of the type that was tried.
    """
    phase = ""
    key, *rest = location
    if schema is Recipe and key == "phases" and rest:
        phase = f"phase {rest.pop(0) + 1}: "
        if rest:
            schema = PhaseSection
            key = rest.pop(0)

    tables: list[str] = []
    inner = _section_of(schema, key)
    while rest and inner is not None:
        tables.append(f"{key}.")
        schema = inner
        key, *rest = rest
        inner = _section_of(schema, key)

    element = "".join(f"[{part}]" for part in rest if isinstance(part, int))
    return _WrongKey(phase, "".join(tables), key, schema, element)


def _section_of(schema: type[BaseModel], key: Any) -> type[BaseModel] | None:
    """Return the class of the table that a schema's key holds, or None if the key holds a value."""
    field = schema.model_fields.get(key)
    if field is None:
        return None

    for annotation in (field.annotation, *get_args(field.annotation)):
        if isinstance(annotation, type) and issubclass(annotation, Section):
            return annotation
    return None
