"""Reads JSON files of rows: one object per line (JSON lines), or one list of objects.

A column is a key, with dots for nested keys ("passage.text"). A list of objects on that path makes one row per element:
with the columns passage.text and passage.questions.question, a passage with four questions makes four rows.
"""

from __future__ import annotations

import json
from typing import Any

from schemas.errors import DataError, UsageError
from trainer.finetune.files.records import Record, WantedColumns, missing_column, missing_value
from trainer.finetune.files.text import read_text, split_lines
from trainer.finetune.task import Column


def read_json_lines(path: str, wanted: WantedColumns) -> list[Record]:
    """Return the rows of a file with one JSON object per line. Empty lines are skipped. Raises DataError."""
    records: list[Record] = []
    lines = split_lines(read_text(path))
    if lines and lines[0].strip() in ("[", "{"):
        raise DataError(
            f"{path} line 1: a JSON text of several lines, expected one object in each line. If the file is one list, "
            'set data.format = "json".'
        )
    for number, line in enumerate(lines, start=1):
        if line.strip():
            place = f"{path} line {number}"
            records += _rows_of(parse_json(line, place), wanted, place, is_first=not records)
    return records


def read_json_list(path: str, wanted: WantedColumns) -> list[Record]:
    """Return the rows of a file that is a list of JSON objects, or an object with such a list as "data".

    Raises DataError.
    """
    content = parse_json(read_text(path), path)
    if isinstance(content, dict):
        content = content.get("data")
    if not isinstance(content, list):
        raise DataError(f"{path} is not a list of objects. Expected [{{...}}, ...], or one object a line (jsonl).")

    records: list[Record] = []
    for number, row in enumerate(content):
        records += _rows_of(row, wanted, f"{path} element {number}", is_first=not records)
    return records


def parse_json(text: str, place: str) -> Any:
    """Return the value of a JSON text. Raises DataError that names the place of a syntax error."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line = f" line {error.lineno}" if "\n" in text.strip() else ""
        # Some of Python's messages end with "at", for a place that follows them.
        reason = error.msg.removesuffix(" at").removesuffix(" starting")
        raise DataError(f"{place}{line}: broken JSON at column {error.colno}: {reason}.") from error
    except ValueError as error:
        raise DataError(f"{place}: the JSON has a number that cannot be read: {error}.") from error
    except RecursionError as error:
        raise DataError(f"{place}: the JSON is nested too deeply to be read.") from error


def _rows_of(row: Any, wanted: WantedColumns, place: str, is_first: bool) -> list[Record]:
    """Return the rows inside a line or an element. is_first: whether there are no rows before it."""
    if isinstance(row, list):
        raise DataError(f'{place}: a JSON list, expected an object. If the file is one list, set data.format = "json".')
    if not isinstance(row, dict):
        raise DataError(f"{place}: expected a JSON object, found {row!r:.60}.")

    paths = {column: tuple(str(column).split(".")) for column in wanted.all}
    rows = _expand(row, paths, place)
    for values in rows:
        for column in wanted.required:
            if column in values:
                continue
            # All rows before this one have the column, or they would have been refused.
            raise missing_column(place, column, _known_keys(row)) if is_first else missing_value(place, column)
    return [Record(place, values) for values in rows]


def _expand(value: dict[str, Any], paths: dict[Column, tuple[str, ...]], place: str) -> list[dict[Column, Any]]:
    """Return the rows inside an object. Each row holds those columns that the object has.

    paths: for each column, the keys that lead to it from this object.
    """
    row: dict[Column, Any] = {}
    inner_rows: list[dict[Column, Any]] | None = None
    inner_key = ""

    for key in dict.fromkeys(keys[0] for keys in paths.values()):
        if key not in value:
            continue

        # Columns that end at this key take its value; the others continue inside it.
        found = value[key]
        row |= {column: found for column, keys in paths.items() if keys == (key,)}
        deeper = {column: keys[1:] for column, keys in paths.items() if keys[0] == key and len(keys) > 1}
        if not deeper:
            continue

        if isinstance(found, dict):
            rows_inside = _expand(found, deeper, place)
        else:
            rows_inside = []
            for element in _objects(found, key, place):
                rows_inside += _expand(element, deeper, place)

        # A single row merges into this object's row. Several rows (or none) come from a list, of which there can be
        # only one: two lists would not say which of their elements belong together.
        if len(rows_inside) == 1:
            row |= rows_inside[0]
        elif inner_rows is not None:
            raise UsageError(f"{place}: both {inner_key} and {key} are lists of objects; columns can follow only one.")
        else:
            inner_rows = rows_inside
            inner_key = key

    if inner_rows is None:
        return [row]
    return [{**row, **inner} for inner in inner_rows]


def _objects(found: Any, key: str, place: str) -> list[dict[str, Any]]:
    if isinstance(found, list) and all(isinstance(element, dict) for element in found):
        return found
    raise DataError(f"{place}: {key} is {found!r:.60}, expected an object or a list of objects.")


def _known_keys(row: dict[str, Any], prefix: str = "") -> list[str]:
    """Return the column names of all values inside an object, nested keys with dots."""
    names = []
    for key, value in row.items():
        first = value[0] if isinstance(value, list) and value else value
        if isinstance(first, dict):
            names += _known_keys(first, f"{prefix}{key}.")
        else:
            names.append(f"{prefix}{key}")
    return names
