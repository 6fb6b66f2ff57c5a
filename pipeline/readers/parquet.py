"""Reads Parquet: one document per row, the text in column --text_key, the source in column "source" if there is one.

Memory is bounded by --max_document_bytes, not by the size of the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.readers.open import Stream
from pipeline.readers.record import Record, RecordOptions, Rejected, Undecodable, decode_utf8, too_long_reason
from schemas.errors import DataError

if TYPE_CHECKING:
    from pipeline.readers.inputs import Piece

# A batch ends at whichever comes first.
MAX_ROWS = 256
BATCH_BYTES = 16 << 20

# Some writers do not mark strings as such: their columns are binary.
_IS_TEXT = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
)


def begins_parquet(head: bytes) -> bool:
    """Return whether a file that begins with these bytes is Parquet, not a text that begins with PAR1."""
    return head.startswith(b"PAR1\x15")  # the first field of a page's header, or of the footer of a file without pages


def open_parquet(opened: IO[bytes], shown: str) -> pq.ParquetFile:
    """Read the footer of a Parquet file. Raises DataError if it has no readable footer."""
    try:
        return pq.ParquetFile(opened)
    except (OSError, ValueError) as error:
        raise DataError(f"{shown} is not a readable Parquet file ({error}). Copy it again, or leave it out.") from error


def parquet_records(stream: Stream, piece: Piece, options: RecordOptions) -> Iterator[Record | Rejected]:
    """Yield one record for each row of the row groups whose first byte is in the piece.

    A column of type null has no texts. Raises DataError unless the file is Parquet, has exactly one column of strings,
    bytes or nulls called `text_key`, and at most one column called `source`.
    """
    text_key = options.text_key
    metadata = open_parquet(stream.file, piece.display_path).metadata
    first_rows = _first_rows(metadata, piece)
    if not first_rows:
        return

    schema = metadata.schema.to_arrow_schema()
    _check_columns(piece.display_path, schema, text_key)

    has_source = "source" in schema.names and text_key != "source"
    columns = [text_key, "source"] if has_source else [text_key]

    # Read as a dictionary: a text that many rows share is then in memory once, however long it is. Otherwise a small
    # file could expand to terabytes, as with 20,000 rows that point to one string of 21 MB.
    file = pq.ParquetFile(stream.file, metadata=metadata, read_dictionary=[text_key])

    for group, first_row in first_rows.items():
        row = first_row
        batch_rows = _rows_per_batch(metadata.row_group(group))
        for batch in file.iter_batches(batch_size=batch_rows, row_groups=[group], columns=columns):
            yield from _batch_records(batch, text_key, row, options.max_document_bytes)
            row += batch.num_rows


def _first_rows(metadata: pq.FileMetaData, piece: Piece) -> dict[int, int]:
    """Return {row group: number of its first row in the file} for the row groups that begin in the piece."""
    first_rows: dict[int, int] = {}
    row = 0

    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        if piece.start <= _first_byte(row_group, piece.size) < piece.end:
            first_rows[group] = row
        row += row_group.num_rows
    return first_rows


def _first_byte(row_group: pq.RowGroupMetaData, file_size: int) -> int:
    """Return where a row group begins. The offset is clamped to the file, so that some piece owns a wrong one."""
    column = row_group.column(0)
    offset = column.data_page_offset
    if column.has_dictionary_page and column.dictionary_page_offset is not None:
        offset = min(offset, column.dictionary_page_offset)
    return max(0, min(offset, file_size - 1))


def _check_columns(path: str, schema: pa.Schema, text_key: str) -> None:
    """Raise DataError unless one column that may hold text is called `text_key`, and at most one is called `source`."""
    for name in (text_key, "source"):
        count = schema.names.count(name)
        if count > 1:
            raise DataError(
                f"{path} has {count} columns called {name!r}, so it is not clear which one to read. "
                "Rename all but one of them."
            )

    text_columns = [field.name for field in schema if _is_text(field.type)]
    if text_key in text_columns or (text_key in schema.names and pa.types.is_null(schema.field(text_key).type)):
        return

    if text_columns:
        advice = f"give --text_key one of {', '.join(text_columns)}"
    else:
        advice = "it has no column of strings at all"
    raise DataError(f"{path} has no text column {text_key!r}; {advice}.")


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type

    return any(is_type(kind) for is_type in _IS_TEXT)


def _rows_per_batch(row_group: Any) -> int:
    """Return how many rows of a row group have about BATCH_BYTES, at most MAX_ROWS."""
    bytes_per_row = row_group.total_byte_size // max(1, row_group.num_rows)
    return max(1, min(MAX_ROWS, BATCH_BYTES // max(1, bytes_per_row)))


def _batch_records(batch: pa.RecordBatch, text_key: str, first_row: int, max_bytes: int) -> Iterator[Record | Rejected]:
    """Yield the rows of a batch. `first_row`: the number in the file of its first row."""
    texts = batch.column(text_key)
    if not pa.types.is_dictionary(texts.type):
        texts = texts.cast(pa.large_binary()).dictionary_encode()

    # Lengths are checked before any text becomes a Python string.
    values = texts.dictionary.cast(pa.large_binary())
    lengths = pc.binary_length(values).to_pylist()  # type: ignore[attr-defined]
    sources = _source_names(batch, text_key)

    row = first_row
    for index, source in zip(texts.indices.to_pylist(), sources, strict=True):
        if index is None or lengths[index] is None:
            yield Rejected(f"no text under {text_key!r}", source, row)
        elif lengths[index] > max_bytes:
            yield Rejected(too_long_reason(max_bytes), source, row)
        else:
            text, undecodable = _decoded(values[index].as_py(), row)
            yield Record(text, source, undecodable, position=row, size=lengths[index])
        row += 1


def _decoded(data: bytes, row: int) -> tuple[str, Undecodable | None]:
    """Return the text of a row, and its number and the number of places if some bytes are not UTF-8."""
    try:
        return data.decode(), None
    except UnicodeDecodeError:
        text, undecodable = decode_utf8(data, row)
        return text, undecodable and replace(undecodable, first_offset=row)


def _source_names(batch: pa.RecordBatch, text_key: str) -> list[str]:
    """Return the source of each row: the string in column `source`, else "parquet"."""
    if "source" not in batch.schema.names or text_key == "source":
        return ["parquet"] * len(batch)

    values = [_as_string(value) for value in batch.column("source").to_pylist()]
    return [value if isinstance(value, str) and value else "parquet" for value in values]


def _as_string(value: Any) -> Any:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
