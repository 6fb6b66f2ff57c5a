"""Reads CoNLL files: a word and its tags on each line, an empty line after each sentence.

CoNLL-2003 and CoNLL-2000 separate columns by spaces, WNUT by tabs. CoNLL-2003 begins each document with a line
-DOCSTART-, which is not a sentence.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

from schemas.errors import DataError
from schemas.terminal import counted
from trainer.finetune.files.records import Record, Wanted, missing_column, read_text, split_lines
from trainer.finetune.task import Column

DOCUMENT_START = "-DOCSTART-"


def read_conll(path: str, wanted: Wanted) -> list[Record]:
    """Return the sentences of a file: each wanted column is a list with one string per word.

    A file with one column holds words only. Raises DataError if lines differ in their number of columns, and for a
    required column that does not exist.
    """
    lines = split_lines(read_text(path))
    rows = [(number, _columns(line)) for number, line in enumerate(lines, start=1)]
    words = [row for row in rows if row[1]]
    if not words:
        raise DataError(f"{path} holds no words. Expected one word a line and empty lines between sentences.")

    first, columns_of_first = words[0]
    width = len(columns_of_first)
    for number, columns in words:
        if len(columns) != width:
            raise DataError(
                f"{path} line {number}: {counted(len(columns), 'column')}, but line {first} has {width}. Each word "
                "needs its tag."
            )
    positions = _positions(path, width, wanted)

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


def _positions(path: str, width: int, wanted: Wanted) -> list[int]:
    positions = []
    for column, is_required in wanted.items():
        position = int(column)
        # In a file with one column, -1 would name the words themselves.
        if -width <= position < width and (width > 1 or position == 0):
            positions.append(position)
        elif is_required:
            raise missing_column(path, column, [str(number) for number in range(width)])
    return positions
