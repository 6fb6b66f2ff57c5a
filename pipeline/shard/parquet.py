"""Read documents from Parquet files, in memory bounded by the limits and not by the file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.shard.inputs import Piece
from pipeline.shard.limits import Limits
from pipeline.shard.record import Record, Rejected, too_long_reason
from schemas import storage
from schemas.errors import DataError

# A batch ends at whichever comes first.
MAX_ROWS = 256
BATCH_BYTES = 16 << 20


def parquet_records(piece: Piece, text_key: str, limits: Limits) -> Iterator[Record | Rejected]:
    """Yield one record for each row of row groups [piece.start, piece.end).

    Raises DataError unless exactly one string column is called `text_key`, and at most one column `source`.
    """
    with storage.open_input(piece.path) as opened:
        schema = pq.ParquetFile(opened).schema_arrow
        _check_columns(piece.path, schema, text_key)

        has_source = "source" in schema.names and text_key != "source"
        columns = [text_key, "source"] if has_source else [text_key]

        # Read as a dictionary, a text that many rows share is in memory once, however long it is. Without this, a
        # small file can hold terabytes: 20,000 rows that point to one string of 21 MB.
        file = pq.ParquetFile(opened, read_dictionary=[text_key])

        metadata = file.metadata
        first_row = sum(metadata.row_group(i).num_rows for i in range(piece.start))
        for group in range(piece.start, piece.end):
            batch_rows = _rows_per_batch(metadata.row_group(group))
            for batch in file.iter_batches(batch_size=batch_rows, row_groups=[group], columns=columns):
                yield from _batch_records(batch, text_key, first_row, limits)
                first_row += batch.num_rows


def _check_columns(path: str, schema: pa.Schema, text_key: str) -> None:
    """Raise DataError unless one string column is called `text_key`, and at most one column `source`."""
    for name in (text_key, "source"):
        count = schema.names.count(name)
        if count > 1:
            raise DataError(
                f"{path} has {count} columns called {name!r}, so it is not clear which one to read. "
                "Rename all but one of them."
            )

    text_columns = [field.name for field in schema if _is_text(field.type)]
    if text_key in text_columns:
        return

    if text_columns:
        advice = f"give --text_key one of {', '.join(text_columns)}"
    else:
        advice = "it has no column of strings at all"
    raise DataError(f"{path} has no text column {text_key!r}; {advice}.")


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type

    is_text_type = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return any(is_type(kind) for is_type in is_text_type)


def _rows_per_batch(row_group: Any) -> int:
    """Return how many rows of a row group hold about BATCH_BYTES, at most MAX_ROWS."""
    bytes_per_row = row_group.total_byte_size // max(1, row_group.num_rows)
    return max(1, min(MAX_ROWS, BATCH_BYTES // max(1, bytes_per_row)))


def _batch_records(batch: pa.RecordBatch, text_key: str, first_row: int, limits: Limits) -> Iterator[Record | Rejected]:
    """Yield the rows of a batch; `first_row` is the number of its first row in the file."""
    texts = batch.column(text_key)
    if not pa.types.is_dictionary(texts.type):
        texts = texts.dictionary_encode()

    # Lengths are checked before any text becomes a Python string.
    lengths = pc.binary_length(texts.dictionary).to_pylist()  # type: ignore[attr-defined]
    sources = _source_names(batch, text_key)

    row = first_row
    for index, source in zip(texts.indices.to_pylist(), sources, strict=True):
        if index is None or lengths[index] is None:
            yield Rejected(f"no text under {text_key!r}", source, row)
        elif lengths[index] > limits.document_bytes:
            yield Rejected(too_long_reason(limits), source, row)
        else:
            text = texts.dictionary[index].as_py()
            yield Record(text, source, position=row, size=lengths[index])
        row += 1


def _source_names(batch: pa.RecordBatch, text_key: str) -> list[str]:
    """Return the source of each row: the string in column `source`, else "parquet"."""
    if "source" not in batch.schema.names or text_key == "source":
        return ["parquet"] * len(batch)

    values = batch.column("source").to_pylist()
    return [value if isinstance(value, str) and value else "parquet" for value in values]
