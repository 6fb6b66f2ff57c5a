"""Reads CoNLL files: a word and its tags on each line, an empty line after each sentence.

CoNLL-2003 and CoNLL-2000 separate columns by spaces, WNUT by tabs. CoNLL-2003 begins each document with a line
-DOCSTART-, which is no sentence.
"""

from __future__ import annotations

from itertools import groupby

from schemas.errors import DataError
from trainer.finetune.files.records import Record, WantedColumns, missing_column
from trainer.finetune.files.text import read_text, split_lines
from trainer.finetune.task import Column

DOCUMENT_START = "-DOCSTART-"


def read_conll(path: str, wanted: WantedColumns) -> list[Record]:
    """Return the sentences of a file: each wanted column is a list with one text for each word.

    A file with one column holds words alone. Raises DataError for lines of different numbers of columns and for a
    column that does not exist.
    """
    lines = split_lines(read_text(path))
    numbered = [(number, _columns(line)) for number, line in enumerate(lines, start=1)]
    words = [(number, columns) for number, columns in numbered if columns and columns[0] != DOCUMENT_START]
    if not words:
        raise DataError(f"{path} holds no words. Expected one word a line and empty lines between sentences.")

    width = _width(path, words)
    positions = _positions(path, width, wanted)

    records = []
    for is_sentence, group in groupby(numbered, key=lambda line: bool(line[1]) and line[1][0] != DOCUMENT_START):
        if is_sentence:
            sentence = list(group)
            values = {column: [row[position] for _, row in sentence] for column, position in positions.items()}
            records.append(Record(f"{path} line {sentence[0][0]}", values))
    return records


def _columns(line: str) -> list[str]:
    """Return the columns of a line: what tabs separate if there are any, otherwise what spaces do.

    str.split() would also split at a no-break space inside a word.
    """
    if not line.strip():
        return []
    if "\t" in line:
        return line.split("\t")
    return [column for column in line.split(" ") if column]


def _width(path: str, words: list[tuple[int, list[str]]]) -> int:
    """Return how many columns the file has."""
    first_line, first = words[0]
    for line, columns in words:
        if len(columns) != len(first):
            raise DataError(
                f"{path} line {line}: {len(columns)} columns, but line {first_line} has {len(first)}. Each word needs "
                "its tag."
            )
    return len(first)


def _positions(path: str, width: int, wanted: WantedColumns) -> dict[Column, int]:
    positions: dict[Column, int] = {}
    for column in wanted.all:
        position = int(column)
        # With one column -1 would be the words themselves.
        is_there = -width <= position < width and (width > 1 or position == 0)
        if is_there:
            positions[column] = position
        elif column in wanted.required:
            raise missing_column(path, column, [str(number) for number in range(width)])
    return positions
