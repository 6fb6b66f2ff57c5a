"""Reads CoNLL files: a word and its tags on each line, an empty line after each sentence.

CoNLL-2003 and CoNLL-2000 separate columns by spaces, WNUT by tabs. CoNLL-2003 begins each document with a line
-DOCSTART-, which is not a sentence.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any, NamedTuple

from schemas.errors import DataError
from trainer.finetune.files.records import Record, WantedColumns, counted, missing_column
from trainer.finetune.files.text import read_text, split_lines
from trainer.finetune.task import Column

DOCUMENT_START = "-DOCSTART-"


def read_conll(path: str, wanted: WantedColumns) -> list[Record]:
    """Return the sentences of a file: each wanted column is a list with one string per word.

    A file with one column holds words only. Raises DataError if lines differ in their number of columns, and for a
    required column that does not exist.
    """
    lines = split_lines(read_text(path))
    rows = [Row(number, _columns(line)) for number, line in enumerate(lines, start=1)]
    words = [row for row in rows if row.is_word]
    if not words:
        raise DataError(f"{path} holds no words. Expected one word a line and empty lines between sentences.")

    width = _width(path, words)
    positions = _positions(path, width, wanted)

    records = []
    for is_sentence, group in groupby(rows, key=lambda row: row.is_word):
        if is_sentence:
            sentence = list(group)
            records.append(_record(path, sentence, positions))
    return records


class Row(NamedTuple):
    """A line of a file: its number, from 1, and its columns, which are empty for an empty line."""

    number: int
    columns: list[str]

    @property
    def is_word(self) -> bool:
        """Whether the line holds a word of a sentence: it is neither empty nor the start of a document."""
        return bool(self.columns) and self.columns[0] != DOCUMENT_START


def _record(path: str, sentence: list[Row], positions: dict[Column, int]) -> Record:
    """Return a sentence: for each wanted column, the strings of all its words."""
    values: dict[Column, Any] = {}
    for column, position in positions.items():
        values[column] = [row.columns[position] for row in sentence]
    return Record(f"{path} line {sentence[0].number}", values)


def _columns(line: str) -> list[str]:
    """Return the columns of a line, which is split at tabs if it has any, otherwise at spaces.

    str.split() without an argument would also split at a no-break space inside a word.
    """
    if not line.strip():
        return []
    if "\t" in line:
        return line.split("\t")
    return [column for column in line.split(" ") if column]


def _width(path: str, words: list[Row]) -> int:
    """Return the number of columns, which must be the same on all lines with words."""
    first = words[0]
    width = len(first.columns)
    for row in words:
        if len(row.columns) != width:
            raise DataError(
                f"{path} line {row.number}: {counted(len(row.columns), 'column')}, but line {first.number} has {width}."
                " Each word needs its tag."
            )
    return width


def _positions(path: str, width: int, wanted: WantedColumns) -> dict[Column, int]:
    positions: dict[Column, int] = {}
    for column in wanted.all:
        position = int(column)
        # In a file with one column, -1 would name the words themselves.
        is_there = -width <= position < width and (width > 1 or position == 0)
        if is_there:
            positions[column] = position
        elif column in wanted.required:
            raise missing_column(path, column, [str(number) for number in range(width)])
    return positions
