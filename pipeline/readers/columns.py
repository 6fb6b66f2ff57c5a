"""Reads rows of Arrow record batches: the text in the columns of --text_key, the source in "source" if it is there.

Parquet and Arrow files come as such batches. The check of the columns serves CSV too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.readers.record import (
    PARAGRAPH_BREAK,
    Record,
    RecordOptions,
    Rejected,
    Undecodable,
    decode_utf8,
    split_keys,
    too_long_reason,
)
from schemas.errors import DataError

MAX_ROWS = 256
"""Rows whose lengths and sources are Python objects at once."""

_LISTED_NAMES = 20  # of the columns that an error advises, each with up to this many characters:
_NAME_CHARACTERS = 80

_BREAK = PARAGRAPH_BREAK.encode()

# Some writers do not mark strings as such: their columns are binary.
_IS_TEXT = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
)


def check_columns(path: str, schema: pa.Schema, text_key: str) -> tuple[str, ...]:
    """Return the names of the columns that `text_key` names (see `split_keys`).

    Raises DataError unless each is the name of exactly one column of strings, bytes or nulls, and at most one column is
    called `source`. A column of type null has no texts.
    """
    wanted = (text_key,) if text_key in schema.names else split_keys(text_key)
    for name in (*wanted, "source"):
        count = schema.names.count(name)
        if count > 1:
            raise DataError(
                f"{path} has {count} columns called {name!r}, so it is not clear which one to read. "
                "Rename all but one of them."
            )

    text_columns = [field.name for field in schema if _is_text(field.type)]
    for name in wanted:
        if name in text_columns or (name in schema.names and pa.types.is_null(schema.field(name).type)):
            continue

        if text_columns:
            advice = f"give --text_key one of {_listed(text_columns)}"
        else:
            advice = "it has no column of strings at all"
        raise DataError(f"{path} has no text column {name!r}; {advice}.")
    return wanted


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type

    return any(is_type(kind) for is_type in _IS_TEXT)


def _listed(names: list[str]) -> str:
    listed = ", ".join(name[:_NAME_CHARACTERS] for name in names[:_LISTED_NAMES])
    further = len(names) - _LISTED_NAMES
    return listed if further <= 0 else f"{listed} and {further:,} others"


def read_columns(schema: pa.Schema, wanted: tuple[str, ...]) -> list[str]:
    """Return the names of all columns to read: those of the text, and that of the source if there is one."""
    has_source = "source" in schema.names and "source" not in wanted
    return [*wanted, "source"] if has_source else list(wanted)


def batch_records(
    batch: pa.RecordBatch, wanted: tuple[str, ...], first_row: int, source: str, options: RecordOptions
) -> Iterator[Record | Rejected]:
    """Yield the rows of a batch.

    wanted: names of the columns of text. first_row: the number in the file of the batch's first row.
    source: of rows that name none.
    """
    columns = [_TextColumn(batch.column(name)) for name in wanted]
    has_source = "source" in batch.schema.names and "source" not in wanted

    for start in range(0, batch.num_rows, MAX_ROWS):
        rows = batch.slice(start, MAX_ROWS)
        sources = _source_names(rows.column("source"), source) if has_source else [source] * len(rows)
        lengths = zip(*(column.lengths(start, len(rows)) for column in columns), strict=True)

        for index, (row_lengths, row_source) in enumerate(zip(lengths, sources, strict=True), start):
            row = first_row + index
            # Lengths are checked before any text becomes a Python object.
            present = [column for column, length in zip(columns, row_lengths, strict=True) if length is not None]
            size = sum(filter(None, row_lengths))
            if not present:
                yield Rejected(f"no text under {options.text_key!r}", row_source, row)
            elif size > options.max_document_bytes:
                yield Rejected(too_long_reason(options.max_document_bytes), row_source, row)
            else:
                data = _joined([column.data(index) for column in present])
                text, undecodable = _decoded(data, row)
                yield Record(text, row_source, undecodable, position=row, size=size)


class _TextColumn:
    """The texts of a column as bytes. In a dictionary, a text that many rows share is in memory once."""

    def __init__(self, column: Any):
        self._indices = column.indices if pa.types.is_dictionary(column.type) else None
        values = column if self._indices is None else column.dictionary
        self._values = values.cast(pa.large_binary())
        self._lengths = pc.binary_length(self._values)  # type: ignore[attr-defined]

    def lengths(self, start: int, count: int) -> list[int | None]:
        """Return the bytes of the texts of rows; None where there is none."""
        if self._indices is None:
            return self._lengths.slice(start, count).to_pylist()
        return self._lengths.take(self._indices.slice(start, count)).to_pylist()

    def data(self, row: int) -> bytes:
        """Return the text of a row that has one."""
        index = row if self._indices is None else self._indices[row].as_py()
        return self._values[index].as_py()


def _joined(texts: list[bytes]) -> bytes:
    return texts[0] if len(texts) == 1 else _BREAK.join(filter(None, texts))


def _decoded(data: bytes, row: int) -> tuple[str, Undecodable | None]:
    """Return the text of a row, and its number and the number of places if some bytes are not UTF-8."""
    try:
        return data.decode(), None
    except UnicodeDecodeError:
        text, undecodable = decode_utf8(data, row)
        return text, undecodable and replace(undecodable, first_offset=row)


def _source_names(column: Any, default: str) -> list[str]:
    """Return the source of each row: the string in column `source`, else `default`."""
    values = [_as_string(value) for value in column.to_pylist()]
    return [value if isinstance(value, str) and value else default for value in values]


def _as_string(value: Any) -> Any:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
