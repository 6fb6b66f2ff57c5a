"""Applies `--set section.key=value` to the content of a recipe, or of another file with a schema.

The value is written as in TOML; a bare word is a string. `none` removes a key, so that its default applies, and
`phases=none` removes all phases.
"""

from __future__ import annotations

import json
import re
import tomllib
from typing import Annotated, Any, Literal, get_args, get_origin

from schemas.errors import UsageError
from trainer.config.schema import Recipe
from trainer.config.section import Section


def apply_override(content: dict[str, Any], override: str, schema: type[Section] = Recipe, name: str = "--set") -> None:
    """Change the content of a file in place. Raises UsageError unless `override` has the form section.key=value.

    schema: of the whole file. name: the flag or the key that has the override, for messages.
    A top-level key that is not a table may be set without a section. The only supported change of phases is
    `phases=none`, which removes them all. Example: `apply_override(content, "run.seed=7")`.
    """
    path, separator, value = (part.strip() for part in override.partition("="))
    keys = path.split(".")

    if schema is Recipe and separator and keys[0] == "phases":
        if path != "phases" or value != "none":
            raise UsageError(
                f"{name} {override}: single phases cannot be set. Edit [[phases]] in a copy of the recipe, which "
                "`clozeline recipes NAME` prints, or remove all of them with phases=none."
            )
        content.pop("phases", None)
        return

    if not separator or (len(keys) < 2 and not _is_value(keys[0], schema)):
        example = "run.seed=7" if schema is Recipe else "training.epochs=3"
        raise UsageError(f"{name} {override}: expected section.key=value, as in {example}.{_sections_of(path, schema)}")

    table = content
    for key in keys[:-1]:
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            raise UsageError(f"{name} {override}: {key} is a value, not a section.")

    # "none" removes a key, unless it is one of the key's own values, as in engine.offload.
    if value == "none" and "none" not in choices_of(keys, schema):
        table.pop(keys[-1], None)
    else:
        table[keys[-1]] = parse_value(keys, value, schema)


def _sections_of(key: str, schema: type[Section]) -> str:
    """Return a hint at the sections that have a key which was given without one."""
    full_names = [f"{name}.{key}" for name in schema.model_fields if annotation_of([name, key], schema) is not None]
    return f" Did you mean {' or '.join(full_names)}?" if full_names else ""


def _is_value(key: str, schema: type[Section]) -> bool:
    """Return whether a top-level key of a file holds a value and not a table."""
    annotation = annotation_of([key], schema)
    is_section = isinstance(annotation, type) and issubclass(annotation, Section)
    return annotation is not None and not is_section and get_origin(annotation) is not dict


def parse_value(keys: list[str], value: str, schema: type[Section] = Recipe) -> Any:
    """Return a value as TOML reads it, or the string itself if it is not valid TOML.

    keys: the parts of the key's full name. A key that takes text gets text: `run.output=2026-11-21` names a folder, not
    a date. Raises UsageError for a list of texts without quotes, and for a quote without a partner.
    """
    try:
        parsed = tomllib.loads(f"value = {value}")
    except tomllib.TOMLDecodeError:
        check_bare(".".join(keys), value, takes_texts(keys, schema))
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


def takes_text(keys: list[str], schema: type[Section] = Recipe) -> bool:
    """Return whether a key accepts any string and does not accept a number."""
    annotation = annotation_of(keys, schema)
    # The annotation of a place is a text with a rule (section.py).
    alternatives = [get_args(kind)[0] if get_origin(kind) is Annotated else kind for kind in get_args(annotation)]
    return annotation is str or (str in alternatives and int not in alternatives)


def takes_texts(keys: list[str], schema: type[Section] = Recipe) -> bool:
    """Return whether a key accepts a list of texts."""
    annotation = annotation_of(keys, schema)
    kinds = [kind for kind in (annotation, *get_args(annotation)) if get_origin(kind) in (list, tuple)]
    return any(not {int, float} & set(get_args(kind)) for kind in kinds)


def choices_of(keys: list[str], schema: type[Section] = Recipe) -> set[Any]:
    """Return the literal values that the schema lists for a key, or an empty set."""
    annotation = annotation_of(keys, schema)
    choices = set(get_args(annotation)) if get_origin(annotation) is Literal else set()
    for alternative in get_args(annotation):
        if get_origin(alternative) is Literal:
            choices |= set(get_args(alternative))
    return choices


def annotation_of(keys: list[str], schema: type[Section] = Recipe) -> Any:
    """Return the type annotation of a schema's key, or None if there is no such key."""
    annotation: Any = schema
    for key in keys:
        fields = getattr(annotation, "model_fields", {})
        if key not in fields:
            return None
        annotation = fields[key].annotation
    return annotation
