"""Reads Parquet: one document per row, text in the columns of --text_key, the source in "source" if it is there.

Memory is bounded by --max_document_bytes, not by the size of the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any

import pyarrow.parquet as pq

from pipeline.readers.columns import MAX_ROWS, batch_records, check_columns, read_columns
from pipeline.readers.open import Stream
from pipeline.readers.record import Record, RecordOptions, Rejected
from schemas.errors import DataError

if TYPE_CHECKING:
    from pipeline.readers.inputs import FileRange

BATCH_BYTES = 16 << 20
"""Bytes of a batch, which ends earlier if it has MAX_ROWS."""


def begins_parquet(head: bytes) -> bool:
    """Return whether a file that begins with these bytes is Parquet, not a text that begins with PAR1."""
    return head.startswith(b"PAR1\x15")  # the first field of a page's header, or of the footer of a file without pages


def open_parquet(opened: IO[bytes], shown: str) -> pq.ParquetFile:
    """Read the footer of a Parquet file. Raises DataError if it has no readable footer."""
    try:
        return pq.ParquetFile(opened)
    except (OSError, ValueError) as error:
        raise DataError(f"{shown} is not a readable Parquet file ({error}). Copy it again, or leave it out.") from error


def parquet_records(stream: Stream, file_range: FileRange, options: RecordOptions) -> Iterator[Record | Rejected]:
    """Yield one record for each row of the row groups whose first byte is in the range.

    Raises DataError unless the file is Parquet and its columns are as `check_columns` wants them.
    """
    metadata = open_parquet(stream.file, file_range.display_path).metadata
    first_rows = _first_rows(metadata, file_range)
    if not first_rows:
        return

    schema = metadata.schema.to_arrow_schema()
    wanted = check_columns(file_range.display_path, schema, options.text_key)
    columns = read_columns(schema, wanted)

    # Read as a dictionary: a text that many rows share is then in memory once, however long it is. Otherwise a small
    # file could expand to terabytes, as with 20,000 rows that point to one string of 21 MB.
    file = pq.ParquetFile(stream.file, metadata=metadata, read_dictionary=list(wanted))

    for group, first_row in first_rows.items():
        row = first_row
        batch_rows = _rows_per_batch(metadata.row_group(group))
        for batch in file.iter_batches(batch_size=batch_rows, row_groups=[group], columns=columns):
            yield from batch_records(batch, wanted, row, "parquet", options)
            row += batch.num_rows


def _first_rows(metadata: pq.FileMetaData, file_range: FileRange) -> dict[int, int]:
    """Return {row group: number of its first row in the file} for the row groups that begin in the range."""
    first_rows: dict[int, int] = {}
    row = 0

    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        if file_range.start <= _first_byte(row_group, file_range.size) < file_range.end:
            first_rows[group] = row
        row += row_group.num_rows
    return first_rows


def _first_byte(row_group: pq.RowGroupMetaData, file_size: int) -> int:
    """Return where a row group begins. The offset is clamped to the file, so that some range owns a wrong one."""
    column = row_group.column(0)
    offset = column.data_page_offset
    if column.has_dictionary_page and column.dictionary_page_offset is not None:
        offset = min(offset, column.dictionary_page_offset)
    return max(0, min(offset, file_size - 1))


def _rows_per_batch(row_group: Any) -> int:
    """Return how many rows of a row group have about BATCH_BYTES, at most MAX_ROWS."""
    bytes_per_row = row_group.total_byte_size // max(1, row_group.num_rows)
    return max(1, min(MAX_ROWS, BATCH_BYTES // max(1, bytes_per_row)))
