"""Reads JSON files: rows of any keys, questions about paragraphs as in SQuAD, and C3's texts with questions.

Rows are one object per line (JSON lines), or one list of objects. A column is a key, with dots for nested keys
("passage.text"). A list of objects on that path makes one row per element: with the columns passage.text and
passage.questions.question, a passage with four questions makes four rows.
"""

from __future__ import annotations

import json
from typing import Any

from schemas.errors import DataError, UsageError
from trainer.finetune.files.records import Record, Wanted, missing_column, read_text, split_lines
from trainer.finetune.task import Column

Row = dict[Column, Any]


def parse_json(text: str, place: str) -> Any:
    """Return the value of a JSON text. Raises DataError that names the place of a syntax error."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line = f" line {error.lineno}" if "\n" in text.strip() else ""
        # Some of Python's messages end with "at", for a place that follows them.
        reason = error.msg.removesuffix(" at").removesuffix(" starting")
        raise DataError(f"{place}{line}: broken JSON at column {error.colno}: {reason}.") from error
    except (ValueError, RecursionError) as error:
        # A number of thousands of digits, or lists in lists in lists
        raise DataError(f"{place}: the JSON cannot be read: {error}.") from error


# ---- Rows ----


def read_json_lines(path: str, wanted: Wanted) -> list[Record]:
    """Return the rows of a file with one JSON object per line. Empty lines are skipped. Raises DataError."""
    lines = split_lines(read_text(path))
    if lines and lines[0].strip() in ("[", "{"):
        raise DataError(
            f"{path} line 1: a JSON text of several lines, expected one object in each line. If the file is one list, "
            'set data.format = "json".'
        )

    records: list[Record] = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            place = f"{path} line {number}"
            records += rows_of(parse_json(line, place), wanted, place, is_first=not records)
    return records


def read_json_list(path: str, wanted: Wanted) -> list[Record]:
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
        records += rows_of(row, wanted, f"{path} element {number}", is_first=not records)
    return records


def rows_of(found: Any, wanted: Wanted, place: str, is_first: bool) -> list[Record]:
    """Return the rows inside a line, an element or a row. is_first: whether there are no rows before it."""
    if isinstance(found, list):
        raise DataError(f'{place}: a JSON list, expected an object. If the file is one list, set data.format = "json".')
    if not isinstance(found, dict):
        raise DataError(f"{place}: expected a JSON object, found {found!r:.60}.")

    # A key may itself have dots, as pandas writes it.
    paths: dict[Column, tuple[Column, ...]] = {
        column: (column,) if column in found else tuple(str(column).split(".")) for column in wanted
    }
    rows = _expand(found, paths, place)
    for row in rows:
        for column, is_required in wanted.items():
            if not is_required or column in row:
                continue
            if is_first:
                raise missing_column(place, column, _known_keys(found))
            # All rows before this one have the column, or they would have been refused.
            raise DataError(
                f"{place}: the column {column!r} is missing here, and the rows before have it. Add it, or remove the "
                "row."
            )
    return [Record(place, row) for row in rows]


def _expand(found: dict[str, Any], paths: dict[Column, tuple[Column, ...]], place: str) -> list[Row]:
    """Return the rows inside an object. Each row holds those columns that the object has.

    paths: for each column, the keys that lead to it from this object.
    """
    row: Row = {column: found[keys[0]] for column, keys in paths.items() if len(keys) == 1 and keys[0] in found}
    rows = [row]
    key_of_list = ""

    for key in dict.fromkeys(keys[0] for keys in paths.values() if len(keys) > 1 and keys[0] in found):
        deeper = {column: keys[1:] for column, keys in paths.items() if keys[0] == key and len(keys) > 1}
        elements = found[key] if isinstance(found[key], list) else [found[key]]
        if not all(isinstance(element, dict) for element in elements):
            raise DataError(f"{place}: {key} is {found[key]!r:.60}, expected an object or a list of objects.")
        inner_rows = [inner for element in elements for inner in _expand(element, deeper, place)]

        # A single row adds its columns. Several rows (or none) come from a list, of which there can be only one: two
        # lists would not say which of their elements belong together.
        if len(inner_rows) != 1:
            if key_of_list:
                raise UsageError(
                    f"{place}: both {key_of_list} and {key} are lists of objects; columns can follow only one."
                )
            key_of_list = key
        rows = [outer | inner for outer in rows for inner in inner_rows]
    return rows


def _known_keys(found: dict[str, Any], prefix: str = "") -> list[str]:
    """Return the column names of all values inside an object, nested keys with dots."""
    names = []
    for key, value in found.items():
        first = value[0] if isinstance(value, list) and value else value
        names += _known_keys(first, f"{prefix}{key}.") if isinstance(first, dict) else [f"{prefix}{key}"]
    return names


# ---- Questions ----


def read_questions(path: str, wanted: Wanted) -> list[Record]:
    """Return the questions of a file in the format of SQuAD 1.1 and 2.0, CMRC 2018 and DRCD.

        {"data": [{"paragraphs": [{"context", "qas": [{"id", "question", "answers", "is_impossible"}]}]}]}

    Each row holds the keys of a question, and its context. Raises DataError if the file does not have that structure.
    """
    records = []
    for article in _list_in(parse_json(read_text(path), path), "data", path):
        for paragraph in _list_in(article, "paragraphs", path):
            for question in _list_in(paragraph, "qas", path):
                if not isinstance(question, dict):
                    raise DataError(f"{path}: expected a question as an object, found {question!r:.60}.")
                named = question.get("id")
                place = f"{path} question {len(records) if named is None else named}"
                records.append(Record(place, question | {"context": paragraph.get("context")}))
    return records


def _list_in(container: Any, key: str, path: str) -> list[Any]:
    if not isinstance(container, dict):
        raise DataError(f"{path}: expected an object with {key!r} as in SQuAD's files, found {container!r:.60}.")
    if not isinstance(container.get(key), list):
        raise DataError(
            f"{path}: expected a list {key!r} as in SQuAD's files, found only the keys {', '.join(container)}."
        )
    return container[key]


def read_c3(path: str, wanted: Wanted) -> list[Record]:
    """Return the questions of C3, the multiple-choice task of CLUE: a list of [lines of a text, questions, id].

    Each row has the columns context, prefix (the question), choices and label: the position, from 0, of the answer
    among the choices, which the file gives as text. It is absent for a question without an answer.
    Raises DataError for any other layout and for an answer that is none of the choices.
    """
    content = parse_json(read_text(path), path)
    records = []
    for number, entry in enumerate(content if isinstance(content, list) else [content]):
        place = f"{path} element {number}"
        try:
            context = "\n".join(entry[0])
            for index, question in enumerate(entry[1]):
                answer, choices = question.get("answer"), question["choice"]
                values: Row = {"context": context, "prefix": question["question"], "choices": choices}
                if answer and answer not in choices:
                    raise DataError(f"{place} question {index}: the answer {answer!r} is none of the choices.")
                if answer:
                    values["label"] = choices.index(answer)
                records.append(Record(f"{place} question {index}", values))
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            raise DataError(
                f"{place}: expected C3's [[lines], [questions], id], with question, choice and answer of each, found "
                f"{entry!r:.60}."
            ) from error
    return records
