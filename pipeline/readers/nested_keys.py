"""Keys of --text_key that lead into the objects and lists of JSON, and into columns of tables with such values.

`a.b` is what is under `b` in the object under `a`. A list under `a` stands for its elements: `a.b` is then the texts
under `b` in all of them, as paragraphs of one document. In a file of one object `a[].b` makes each element of the list
a document, and `*.b` each value of an object whose keys are names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from pipeline.readers.record import joined, names_in

ELEMENTS = "[]"
EACH = "*"
_NOT_IN_NAMES = frozenset(".,|*[]")
_MAP_SIZE = 3  # with fewer values the keys of an object are taken for those of fields

Path = tuple[str, ...]
"""The steps of such a key: keys of objects, ELEMENTS and EACH."""


def text_of(value: Any) -> str | None:
    """Return a value of JSON as a text, its paragraphs joined; None if it is none."""
    paragraphs = paragraphs_of(value)
    return None if paragraphs is None else joined(paragraphs)


def paragraphs_of(value: Any) -> list[str] | None:
    """Return the paragraphs of a value of JSON that is a text: a string, or a list of them; None if it is none.

    In a list an object stands for its `text`. Strings and such objects together are one running text, as chats write
    it; other objects, such as pictures, have no text.
    """
    if not isinstance(value, list):
        return [value] if isinstance(value, str) else None
    kinds = {type(part) for part in value}
    if kinds <= {str}:
        return value
    if not kinds <= {str, dict, type(None)}:
        return None
    parts = [text_of(part.get("text")) if isinstance(part, dict) else part for part in value if part is not None]
    texts = [text for text in parts if text is not None]
    if dict in kinds and not texts:
        return None
    return ["".join(texts)] if {str, dict} <= kinds and len(texts) == len(parts) else texts


@lru_cache
def paths_of(text_key: str) -> dict[str, Path]:
    """Return the names in --text_key that lead into other values, with their paths."""
    names = [name for name in names_in(text_key) if "." in name or name == EACH or name.endswith(ELEMENTS)]
    return {name: path_of(name) for name in names}


def path_of(name: str) -> Path:
    """Return the steps of a name. Example: `"data[].text"` -> `("data", "[]", "text")`."""
    steps = []
    for key in name.split("."):
        lists = 0
        while key.endswith(ELEMENTS) and key != ELEMENTS:
            key, lists = key.removesuffix(ELEMENTS), lists + 1
        steps += [key] + [ELEMENTS] * lists
    return tuple(steps)


def name_of(path: Path) -> str:
    """Return the name of a path. Example: `("data", "[]", "text")` -> `"data[].text"`."""
    return ".".join(path).replace(f".{ELEMENTS}", ELEMENTS)


def to_documents(path: Path) -> Path:
    """Return the first steps of a path, up to the list or object whose values are documents; () if there is none."""
    steps = [step in (ELEMENTS, EACH) for step in path]
    return path[: steps.index(True) + 1] if any(steps) else ()


def with_nested(value: Any, text_key: str, walked: Path = ()) -> Any:
    """Return a value of JSON; an object with the texts to which such keys lead under these keys, too.

    walked: the first steps of the path on which the value was found. What is no object there becomes one.
    """
    found = {}
    for name, path in paths_of(text_key).items():
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
    for step in path:
        values = [inner for outer in values for inner in _under(outer, step)]
    return joined_texts(values)


def joined_texts(values: Iterable[Any]) -> str | None:
    """Return the texts among values of JSON as paragraphs, without empty ones; None if there are none."""
    texts = [text for text in map(text_of, values) if text is not None]
    return joined(texts) if texts else None


def _under(value: Any, step: str) -> Iterator[Any]:
    if step == ELEMENTS:
        yield from value if isinstance(value, list) else [value]
    elif step == EACH and isinstance(value, (list, dict)):
        yield from value.values() if isinstance(value, dict) else value
    else:
        for element in value if isinstance(value, list) else [value]:
            if isinstance(element, dict) and step in element:
                yield element[step]


def nested_texts(value: Any, marks_lists: bool = False, has_maps: bool = True) -> dict[str, list[str]]:
    """Return the strings in a value of JSON by the names that lead to them, if these lead into other values.

    marks_lists: a list on the way is ELEMENTS in the names, where it may be left out otherwise. has_maps: keys of an
    object may be names, for which EACH stands.
    """
    found: dict[str, list[str]] = {}
    inner: list[tuple[Path, Any]] = [((), value)]
    while inner:
        path, value = inner.pop()
        if isinstance(value, list):
            is_marked = marks_lists or any(isinstance(element, list) for element in value)
            path = (*path, ELEMENTS) if is_marked and path else path
            paragraphs, has_objects = paragraphs_of(value), any(isinstance(element, dict) for element in value)
            # In a file of one object, the objects of a first list are documents, and not paragraphs of one.
            is_end = path.count(ELEMENTS) != 1 if has_objects and marks_lists else has_objects or len(path) > 1
            if paragraphs is not None and path and is_end:
                found.setdefault(name_of(path), []).extend(filter(None, paragraphs))
            inner += [(path, element) for element in reversed(value) if not isinstance(element, str)]
        elif isinstance(value, dict):
            is_map = has_maps and _has_names_for_keys(value)
            keys = [key for key in reversed(value) if is_map or _NOT_IN_NAMES.isdisjoint(key)]
            inner += [((*path, EACH if is_map else key), value[key]) for key in keys]
        elif isinstance(value, str) and len(path) > 1:
            found.setdefault(name_of(path), []).append(value)
    return found


def _has_names_for_keys(value: dict[str, Any]) -> bool:
    """Return whether all values of an object are of one kind: objects that share a key."""
    objects = [inner for inner in value.values() if isinstance(inner, dict)]
    return len(objects) == len(value) >= _MAP_SIZE and bool(set(objects[0]).intersection(*objects[1:]))
