"""Turns the content of a TOML file, changed by `--set`, into a Recipe or another schema.

`--set section.key=value` is written as in TOML; a bare word is a string. `none` removes a key, so that its default
applies, and `section=none` all keys of a section, or all phases.

All wrong keys are named in one error. An unknown key is an error that suggests the nearest known name, because a typo
that is silently ignored could waste a whole training run. For a wrong value, the error quotes the key's description
from the schema.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from schemas.errors import UsageError, nearest_name
from trainer.config.schema import PhaseSection, Recipe
from trainer.config.sections import Section

Schema = TypeVar("Schema", bound=Section)


FIRST_SENTENCE = re.compile(r"(?<=\.) (?=[A-Z\"])")
"""Divides a description into sentences."""

CHOICE = re.compile(r"'([^']+)'")
"""A value that a message lists."""

EXPECTED = {
    "int_type": "expected a whole number",
    "int_parsing": "expected a whole number",
    "int_parsing_size": "expected a whole number",
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
    "model_type": "expected a table",
    "too_short": "too few elements",
    "too_long": "too many elements",
}
"""What to write in place of pydantic's message, by the type of its error."""


@dataclass(frozen=True)
class Origin:
    """The sources of a file's values, for messages about wrong ones.

    path: the file. changes: each as section.key=value, in the order in which they were applied. flag: the flag or the
    key that has the changes.
    """

    path: str
    changes: Sequence[str] = ()
    flag: str = "--set"

    def of(self, *keys: str) -> str:
        """Return what messages about keys begin with: the last change of the first key that has one, or the file.

        keys: the most likely culprit first. A change of a key is also one of a key inside it, or of the table that
        holds it. Example: with the change "training.epochs=x", `of("training.epochs")` -> "--set training.epochs=x".
        """
        for key in keys:
            for change in reversed(self.changes):
                changed = change.partition("=")[0].strip()
                if f"{changed}.".startswith(f"{key}.") or f"{key}.".startswith(f"{changed}."):
                    return f"{self.flag} {change}"
        return self.path


# Changes by --set


def apply_overrides(content: dict[str, Any], overrides: Iterable[str], schema: type[Section] = Recipe) -> None:
    """Change the content of a file in place. Raises UsageError unless each override has the form section.key=value.

    schema: of the whole file. A top-level key that is not a table may be set without a section. Tables are removed with
    `none`, before others of their keys are set. There is no other change of phases.
    """
    for override in sorted(overrides, key=lambda override: "." in override.partition("=")[0]):
        _apply(content, override, schema)


def _apply(content: dict[str, Any], override: str, schema: type[Section]) -> None:
    path, separator, value = (part.strip() for part in override.partition("="))
    keys = path.split(".")

    if len(keys) == 1 and value == "none" and section_in(annotation_of(keys, schema)) is not None:
        content.pop(path, None)
        return

    if schema is Recipe and separator and keys[0] == "phases":
        raise UsageError(
            f"--set {override}: single phases cannot be set. Edit [[phases]] in a copy of the recipe, which "
            "`clozeline recipes NAME` prints, or remove all of them with phases=none."
        )

    # A top-level key that holds a value is set without a section.
    annotation = annotation_of(keys[:1], schema)
    is_value = annotation is not None and section_in(annotation) is None and get_origin(annotation) is not dict
    if not separator or (len(keys) < 2 and not is_value):
        example = "run.seed=7" if schema is Recipe else "training.epochs=3"
        likely = keys_called(path, schema)
        hint = f" Did you mean {' or '.join(likely)}?" if likely else ""
        raise UsageError(f"--set {override}: expected section.key=value, as in {example}.{hint}")

    table = content
    for key in keys[:-1]:
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            raise UsageError(f"--set {override}: {key} is a value, not a section.")

    # "none" removes a key, unless it is one of the key's own values, as in engine.offload.
    if value == "none" and "none" not in choices_of(keys, schema):
        table.pop(keys[-1], None)
    else:
        table[keys[-1]] = parse_value(keys, value, schema)


def keys_called(key: str, schema: type[Section] = Recipe) -> list[str]:
    """Return the full names of the keys with this name in any section. Example: "lr" -> ["optimizer.lr"]."""
    sections = [name for name in schema.model_fields if name != "phases"]  # of which single keys cannot be set
    return [f"{name}.{key}" for name in sections if annotation_of([name, key], schema) is not None]


def parse_value(keys: list[str], value: str, schema: type[Section]) -> Any:
    """Return a value as TOML reads it, or the string itself if it is not valid TOML.

    keys: the parts of the key's full name. A key that takes text gets text: `run.output=2026-11-21` names a folder, not
    a date. Raises UsageError for a list of texts without quotes, and for a quote without a partner.
    """
    try:
        parsed = tomllib.loads(f"value = {value}")
    except tomllib.TOMLDecodeError:
        check_bare(".".join(keys), value, may_be_list=str in elements_in(annotation_of(keys, schema)))
        return value

    # In a value with several lines, TOML may read the later lines as further keys.
    if set(parsed) != {"value"}:
        return value

    if takes_text(keys, schema) and not isinstance(parsed["value"], str | list):
        return value
    return parsed["value"]


def check_bare(key: str, value: str, may_be_list: bool) -> None:
    """Raise UsageError for a value that is no TOML but looks like a list, where the key takes one, or like a text."""
    if may_be_list and value.startswith("[") and value.endswith("]"):
        parts = [part.strip() for part in re.split("[,'\"]", value[1:-1]) if part.strip()]
        raise UsageError(
            f"{key}={value} is no list: quote each text inside it, and the whole for the shell, as in "
            f"'{key}={json.dumps(parts, ensure_ascii=False, separators=(',', ':'))}'."
        )

    if value.startswith(("'", '"')):
        raise UsageError(
            f"{key}={value} begins with a quote but is no text in quotes. Leave the quotes out, or quote all of it, "
            f"and the whole for the shell, as in '{key}=\"a name\"'."
        )


def takes_text(keys: list[str], schema: type[Section]) -> bool:
    """Return whether a key accepts any string and does not accept a number."""
    kinds = kinds_in(annotation_of(keys, schema))
    return str in kinds and int not in kinds


def choices_of(keys: list[str], schema: type[Section]) -> set[Any]:
    """Return the literal values that the schema lists for a key, or an empty set."""
    literals = [kind for kind in kinds_in(annotation_of(keys, schema)) if get_origin(kind) is Literal]
    return {choice for literal in literals for choice in get_args(literal)}


def annotation_of(keys: list[str], schema: type[Section]) -> Any:
    """Return the type annotation of a schema's key, or None if there is no such key."""
    annotation: Any = schema
    for key in keys:
        section = section_in(annotation)
        if section is None or key not in section.model_fields:
            return None
        annotation = section.model_fields[key].annotation
    return annotation


def kinds_in(annotation: Any) -> list[Any]:
    """Return the types that an annotation allows, such as str and list[str], without rules for their values."""
    if get_origin(annotation) is Annotated:
        return kinds_in(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [kind for alternative in get_args(annotation) for kind in kinds_in(alternative)]
    return [annotation]


def elements_in(annotation: Any) -> list[Any]:
    """Return the types of the elements of the lists that an annotation allows; none if it allows no list."""
    lists = [kind for kind in kinds_in(annotation) if get_origin(kind) in (list, tuple)]
    return [kind for one in lists for element in get_args(one) for kind in kinds_in(element)]


def section_in(annotation: Any) -> type[Section] | None:
    """Return the class of the table that an annotation allows, alone or in a list; None if it allows only values."""
    for kind in (*kinds_in(annotation), *elements_in(annotation)):
        if isinstance(kind, type) and issubclass(kind, Section):
            return kind
    return None


# From content to a schema


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
    fault = faults[0]
    if fault["type"] == "extra_forbidden":
        hint = nearest_name(wrong.key, wrong.section.model_fields).replace("mean ", f"mean {wrong.table}")
        if not hint:
            owner = f"[{wrong.table.removesuffix('.')}]" if wrong.table else "The file"
            hint = f" {owner} has {', '.join(wrong.section.model_fields)}."
            if wrong.table.startswith("deepspeed."):
                hint += " Everything else in DeepSpeed's configuration comes from the recipe's other sections."
        return f"{wrong.phase}unknown key {wrong.table}{wrong.key}.{hint}"

    if fault["type"] == "missing":
        return f"{wrong.name} is missing.{wrong.description}"

    first, *others = [_message(fault) for fault in faults]
    message = ", or ".join([first, *(other.removeprefix("expected ") for other in others)])
    hint = nearest_name(str(fault["input"]).lower(), CHOICE.findall(message))
    return f"{wrong.name}: {message}, found {fault['input']!r}.{hint}{wrong.description}"


def _message(fault: Any) -> str:
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

    tables = ""
    while rest and key in schema.model_fields:
        inner = section_in(schema.model_fields[key].annotation)
        if inner is None:
            break
        tables += f"{key}."
        schema = inner
        key, *rest = rest

    element = "".join(f"[{part}]" for part in rest if isinstance(part, int))
    return _WrongKey(phase, tables, key, schema, element)
