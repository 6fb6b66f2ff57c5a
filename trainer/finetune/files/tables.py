"""Reads TSV and CSV files, lines of fields with or without a header, and CoNLL files, a line for each word.

GLUE's TSV files have no quoting: a lone " is a character of the text. If quotes enclose fields, as in CSV, a field may
contain separators and line breaks, and a quote that is never closed is an error rather than swallowing the other rows.
"""

from __future__ import annotations

import csv
import io
import re
import sys
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from schemas.errors import DataError
from schemas.terminal import counted
from trainer.finetune.files.records import Record, Wanted, missing_column, read_text, split_lines
from trainer.finetune.task import Column

SEPARATOR_NAMES = {"\t": "tabs", ",": "commas", ";": "semicolons", "|": "vertical bars"}
"""What messages call the characters that separate fields."""


def read_table(path: str, separator: str, quotes: bool, header: bool, wanted: Wanted) -> list[Record]:
    """Return the rows of a table, each with the wanted columns.

    quotes: whether quotes may enclose fields. header: whether the first row names the columns.
    A row with too few or too many fields has a `fault`, and "" for each field that it lacks.
    Raises DataError for an empty file, a missing or ambiguous column, and a quote that is never closed.
    """
    text = read_text(path)
    first_line = text.lstrip("\r\n").partition("\n")[0]
    if separator == "," and _is_header(first_line, ";", wanted):
        separator = ";"
    is_whole = not quotes or first_line.count('"') % 2 == 0
    if text.strip() and separator not in first_line and is_whole and sum(wanted.values()) > 1:
        raise _not_separated(path, text, separator)
    if quotes:
        rows = list(_quoted_rows(path, text, separator))
    else:
        rows = [(number, line.split(separator)) for number, line in enumerate(split_lines(text), start=1)]
    if not rows:
        raise DataError(f"{path} is empty. Expected lines of fields. Check that it was written completely.")

    width = len(rows[0][1])
    names = rows.pop(0)[1] if header else [str(position) for position in range(width)]
    if width == 1 and sum(wanted.values()) > 1:
        raise _not_separated(path, text, separator)
    advice = " If the first line is an example, set data.header = false." if header else ""
    positions = _positions(path, names, wanted, advice)

    records = []
    for line, fields in rows:
        fault = None if len(fields) == width else _fault(fields, width, separator, quotes)
        fields += [""] * (width - len(fields))
        values = {column: fields[position] for column, position in positions.items()}
        records.append(Record(f"{path} line {line}", values, fault))
    return records


def _is_header(line: str, separator: str, wanted: Wanted) -> bool:
    """Return whether a line without commas has a wanted column between separators, as spreadsheets write CSV."""
    names = [name.strip('"\r') for name in line.split(separator)]
    return "," not in line and len(names) > 1 and any(name in wanted for name in names)


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


def _not_separated(path: str, text: str, separator: str) -> DataError:
    separators = SEPARATOR_NAMES[separator]
    where = f"the first line of {path}" if separator in text else path
    line = split_lines(text.lstrip("\r\n"))[0]
    other = max(SEPARATOR_NAMES, key=line.count)
    advice = f"Write {separators} between the columns, or set data.format."
    if other in line and other != separator:
        formats = {"\t": "tsv", ",": "csv", ";": "csv"} if separator == "\t" else {"\t": "tsv"}
        remedy = f'set data.format = "{formats[other]}"' if other in formats else f"write {separators} in their place"
        if (separator, other) == (",", ";"):
            remedy = f"they are read if the first line names a column of data.columns; or {remedy}"
        advice = f"If {SEPARATOR_NAMES[other]} separate them here, {remedy}."
    return DataError(
        f"{where} has no {separators}, which separate the columns of this format, so there is only one column: "
        f"{line!r:.60}. {advice}"
    )


def _positions(path: str, names: list[str], wanted: Wanted, advice: str) -> dict[Column, int]:
    """Return the position of each wanted column in a row. Column numbers count from 0, negative ones from the end.

    advice: for a name that is none of `names`.
    """
    positions: dict[Column, int] = {}
    for column, is_required in wanted.items():
        if isinstance(column, int) and -len(names) <= column < len(names):
            positions[column] = column % len(names)
        elif column in names:
            positions[column] = names.index(str(column))
            if names.count(str(column)) > 1:
                raise DataError(f"{path}: the header has {column!r} twice. Name the column by its number, from 0.")
        elif is_required:
            raise missing_column(path, column, names, advice if isinstance(column, str) else "")
    return positions


def _fault(fields: list[str], width: int, separator: str, quotes: bool) -> str:
    separators = SEPARATOR_NAMES[separator]
    found = f"{counted(len(fields), 'field')}, expected {width}"
    if len(fields) < width:
        return f"{found}: too few {separators}"
    if quotes:
        return f"{found}: too many {separators}, or a field that has one is not in quotes"
    if any(field.startswith('"') for field in fields):
        return f"{found}: too many {separators}. If quotes enclose fields in this file, set data.quotes = true"
    return f"{found}: too many {separators}"


# ---- CoNLL ----
#
# A word and its tags on each line, an empty line after each sentence. CoNLL-2003 and CoNLL-2000 separate columns by
# spaces, WNUT by tabs. CoNLL-2003 begins each document with a line -DOCSTART-, which is not a sentence. CoNLL-U has ten
# columns, of which the first numbers the words; comments, ranges (1-2) and empty nodes (1.1) are not words.

DOCUMENT_START = "-DOCSTART-"


def read_conll(path: str, wanted: Wanted) -> list[Record]:
    """Return the sentences of a file: each wanted column is a list with one string per word.

    A file with one column holds words only. Raises DataError if lines differ in their number of columns, and for a
    required column that does not exist.
    """
    lines = split_lines(read_text(path))
    rows = [(number, _columns(line)) for number, line in enumerate(lines, start=1)]
    is_conllu = _is_conllu([columns for _, columns in rows if columns and columns[0][:1] != "#"])
    if is_conllu:
        rows = [(number, columns) for number, columns in rows if not columns or columns[0].isdecimal()]
    words = [row for row in rows if row[1]]
    if not words:
        raise DataError(f"{path} holds no words. Expected one word a line and empty lines between sentences.")

    first, columns_of_first = words[0]
    if is_conllu and 0 in wanted:
        raise DataError(
            f"{path} line {first}: this is CoNLL-U, whose column 0 numbers the words. Set data.columns to those of the "
            "words and tags, as in columns = { words = 1, tags = 3 }."
        )
    width = len(columns_of_first)
    for number, columns in words:
        if len(columns) != width:
            raise DataError(
                f"{path} line {number}: {counted(len(columns), 'column')}, but line {first} has {width}. Each word "
                "needs its tag."
            )
    positions = _numbered_columns(path, width, wanted)

    records = []
    for has_words, group in groupby(rows, key=lambda row: bool(row[1])):
        if has_words:
            sentence = list(group)
            values: dict[Column, Any] = {column: [row[1][column] for row in sentence] for column in positions}
            records.append(Record(f"{path} line {sentence[0][0]}", values))
    return records


def _columns(line: str) -> list[str]:
    """Return the columns of a line, separated by tabs if it has any, otherwise by spaces; none if it holds no word.

    str.split() without an argument would also split at a no-break space inside a word.
    """
    if not line.strip():
        return []
    columns = line.split("\t") if "\t" in line else [column for column in line.split(" ") if column]
    return [] if columns[:1] == [DOCUMENT_START] else columns


def _is_conllu(rows: list[list[str]]) -> bool:
    are_numbered = all(len(columns) == 10 and re.fullmatch(r"\d+(?:[-.]\d+)?", columns[0]) for columns in rows)
    return are_numbered and bool(rows) and rows[0][0].startswith(("0.", "1"))


def _numbered_columns(path: str, width: int, wanted: Wanted) -> list[int]:
    positions = []
    for column, is_required in wanted.items():
        # In a file with one column, -1 would name the words themselves.
        if isinstance(column, int) and -width <= column < width and (width > 1 or column == 0):
            positions.append(column)
        elif is_required:
            raise missing_column(path, column, [str(number) for number in range(width)])
    return positions
