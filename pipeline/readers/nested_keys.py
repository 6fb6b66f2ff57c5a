"""Keys of --text_key that lead into the objects and lists of JSON, and into columns of tables with such values.

`a.b` is what is under `b` in the object under `a`. A list under `a` stands for its elements: `a.b` is then the texts
under `b` in all of them. The key `*` is each value of an object whose keys are names, and each element of a list.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from pipeline.readers.record import joined, names_in

EACH = "*"
_NOT_IN_NAMES = frozenset(".,|*")
_MAP_SIZE = 3  # with fewer values the keys of an object are taken for those of fields

Path = tuple[str, ...]
"""The keys of a dotted one."""


def is_text(value: Any) -> bool:
    """Return whether a value of JSON is a text: a string, or a list of strings, which are its paragraphs."""
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(part, str) for part in value))


@lru_cache
def paths_of(text_key: str) -> tuple[Path, ...]:
    """Return the keys of --text_key that lead into other values."""
    return tuple(tuple(name.split(".")) for name in names_in(text_key) if "." in name or name == EACH)


def with_nested(value: Any, text_key: str, walked: Path = ()) -> Any:
    """Return a value of JSON; an object with the texts to which dotted keys lead under these keys, too.

    walked: the first keys of the path on which the value was found. What is no object there becomes one.
    """
    found = {}
    for path in paths_of(text_key):
        name = ".".join(path)
        if path[: len(walked)] != walked or (isinstance(value, dict) and name in value):
            continue
        text = joined_at(value, path[len(walked) :])
        if text is not None:
            found[name] = text
    if not found:
        return value
    return value | found if isinstance(value, dict) else found


def joined_at(value: Any, path: Path) -> str | None:
    """Return the texts to which a path leads from a value, as paragraphs; None if there are none."""
    values = [value]
    for key in path:
        values = [inner for outer in values for inner in _under(outer, key)]
    texts = [text if isinstance(text, str) else joined(text) for text in values if is_text(text)]
    return joined(texts) if texts else None


def _under(value: Any, key: str) -> Iterator[Any]:
    if key == EACH and isinstance(value, (list, dict)):
        yield from value if isinstance(value, list) else value.values()
        return
    for element in value if isinstance(value, list) else [value]:
        if isinstance(element, dict) and key in element:
            yield element[key]


def nested_texts(value: Any) -> dict[str, list[str]]:
    """Return the strings in a value of JSON by the dotted keys that lead to them."""
    found: dict[str, list[str]] = {}
    inner: list[tuple[Path, Any]] = [((), value)]
    while inner:
        path, value = inner.pop()
        if isinstance(value, str) and len(path) > 1:
            found.setdefault(".".join(path), []).append(value)
        elif isinstance(value, list):
            is_entered = (len(path) == 1 and is_text(value)) or any(isinstance(element, list) for element in value)
            inner += [((*path, EACH) if is_entered else path, element) for element in reversed(value)]
        elif isinstance(value, dict):
            is_map = _has_names_for_keys(value)
            keys = [key for key in reversed(value) if is_map or _NOT_IN_NAMES.isdisjoint(key)]
            inner += [((*path, EACH if is_map else key), value[key]) for key in keys]
    return found


def _has_names_for_keys(value: dict[str, Any]) -> bool:
    """Return whether all values of an object are of one kind: objects that share a key."""
    objects = [inner for inner in value.values() if isinstance(inner, dict)]
    return len(objects) == len(value) >= _MAP_SIZE and bool(set(objects[0]).intersection(*objects[1:]))
