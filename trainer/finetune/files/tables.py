"""Reads TSV and CSV files: lines of fields, with or without a header.

GLUE's TSV files have no quoting: a lone " is a character of the text. If quotes enclose fields, as in CSV, a field may
contain separators and line breaks, and a quote that is never closed is an error rather than swallowing the other rows.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from schemas.errors import DataError
from trainer.finetune.files.records import Record, WantedColumns, counted, missing_column
from trainer.finetune.files.text import read_text, split_lines
from trainer.finetune.task import Column

SEPARATOR_NAMES = {"\t": "tabs", ",": "commas"}
"""What messages call the characters that separate fields."""


@dataclass(frozen=True)
class TableLayout:
    """The layout of a table. separator: one character. quotes: whether quotes may enclose fields."""

    separator: str
    quotes: bool
    header: bool


def read_table(path: str, layout: TableLayout, wanted: WantedColumns) -> list[Record]:
    """Return the rows of a table, each with the wanted columns.

    A row with too few or too many fields has a `fault`, and "" for each field that it lacks.
    Raises DataError for an empty file, a missing or ambiguous column, and a quote that is never closed.
    """
    text = read_text(path)
    numbered_rows = list(_quoted_rows(path, text, layout.separator) if layout.quotes else _plain_rows(text, layout))
    if not numbered_rows:
        raise DataError(f"{path} is empty. Expected lines of fields. Check that it was written completely.")

    names = numbered_rows[0][1]
    if not layout.header:
        names = [str(position) for position in range(len(names))]
    if len(names) == 1 and len(wanted.required) > 1:
        raise _not_separated(path, text, layout)
    positions = _positions(path, names, wanted)

    data_rows = numbered_rows[1:] if layout.header else numbered_rows
    records = []
    for line, fields in data_rows:
        fault = None if len(fields) == len(names) else _fault(fields, len(names), layout)
        complete = fields + [""] * (len(names) - len(fields))
        values = {column: complete[position] for column, position in positions.items()}
        records.append(Record(f"{path} line {line}", values, fault))
    return records


def _plain_rows(text: str, layout: TableLayout) -> Iterator[tuple[int, list[str]]]:
    """Yield each line's number, from 1, and its fields."""
    for number, line in enumerate(split_lines(text), start=1):
        yield number, line.split(layout.separator)


def _quoted_rows(path: str, text: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of each row's first line, from 1, and the row's fields without their quotes."""
    # csv's default limit of 131,072 characters per field guards against lone quotes, which `strict` reports instead.
    csv.field_size_limit(sys.maxsize)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    first_line = 1
    try:
        for fields in reader:
            if fields:
                yield first_line, fields
            first_line = reader.line_num + 1
    except csv.Error as error:
        raise DataError(
            f"{path} line {first_line}: a quote is not closed, or text follows a closing one ({error}). If quotes are "
            "ordinary characters in this file, set data.quotes = false."
        ) from error


def _not_separated(path: str, text: str, layout: TableLayout) -> DataError:
    """Return the error for a file of several columns whose first line has no separator."""
    separators = SEPARATOR_NAMES[layout.separator]
    where = f"the first line of {path}" if layout.separator in text else path
    return DataError(
        f"{where} has no {separators}, which separate the columns of this format, so there is only one column: "
        f"{split_lines(text)[0]!r:.60}. Write {separators} between the columns, or set data.format."
    )


def _positions(path: str, names: list[str], wanted: WantedColumns) -> dict[Column, int]:
    """Return the position of each wanted column in a row. Column numbers count from 0, negative ones from the end."""
    positions: dict[Column, int] = {}
    for column in wanted.all:
        if isinstance(column, int):
            is_there = -len(names) <= column < len(names)
            position = column % len(names)
        else:
            is_there = column in names
            position = names.index(column) if is_there else 0

        if is_there:
            positions[column] = position
        elif column in wanted.required:
            raise missing_column(path, column, names)

        if is_there and isinstance(column, str) and names.count(column) > 1:
            raise DataError(f"{path}: the header has {column!r} twice. Name the column by its number, from 0.")
    return positions


def _fault(fields: list[str], width: int, layout: TableLayout) -> str:
    """Return what is wrong with a line that has too few or too many fields, and its probable cause."""
    separators = SEPARATOR_NAMES[layout.separator]
    found = f"{counted(len(fields), 'field')}, expected {width}"
    if len(fields) < width:
        return f"{found}: too few {separators}"
    if layout.quotes:
        return f"{found}: too many {separators}, or a field that has one is not in quotes"
    if any(field.startswith('"') for field in fields):
        return f"{found}: too many {separators}. If quotes enclose fields in this file, set data.quotes = true"
    return f"{found}: too many {separators}"
