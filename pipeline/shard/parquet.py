"""Documents out of Parquet files, in memory that follows from the limits and not from the file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.shard.inputs import Piece
from pipeline.shard.limits import Limits
from pipeline.shard.record import Record, Rejected, too_long
from schemas import storage
from schemas.errors import DataError

MAX_ROWS, BATCH_BYTES = 256, 16 << 20


def parquet_records(piece: Piece, text_key: str, limits: Limits) -> Iterator[Record | Rejected]:
    """Yield the rows of row groups [start, end).

    Raises DataError unless exactly one column of strings is called `text_key`.
    """
    with storage.open_input(piece.path) as opened:
        schema = pq.ParquetFile(opened).schema_arrow
        _check_columns(piece.path, schema, text_key)
        has_source = "source" in schema.names and text_key != "source"
        columns = [text_key, "source"] if has_source else [text_key]

        # As a dictionary, a text that many rows share is in memory once, however long it is.
        file = pq.ParquetFile(opened, read_dictionary=[text_key])

        place = sum(file.metadata.row_group(i).num_rows for i in range(piece.start))
        for group in range(piece.start, piece.end):
            rows = _rows_at_once(file.metadata.row_group(group))
            for batch in file.iter_batches(batch_size=rows, row_groups=[group], columns=columns):
                yield from _batch_records(batch, text_key, place, limits)
                place += batch.num_rows


def _check_columns(path: str, schema: pa.Schema, text_key: str) -> None:
    """Raise DataError unless exactly one column of strings is called `text_key`, and at most one `source`."""
    for name in (text_key, "source"):
        if schema.names.count(name) > 1:
            raise DataError(
                f"{path} has {schema.names.count(name)} columns called {name!r}, so it is not clear which one to read. "
                "Rename all but one of them."
            )

    strings = [field.name for field in schema if _is_text(field.type)]
    if text_key not in strings:
        known = f"give --text_key one of {', '.join(strings)}" if strings else "it has no column of strings at all"
        raise DataError(f"{path} has no text column {text_key!r}; {known}.")


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _rows_at_once(group: Any) -> int:
    """Return how many rows of a row group hold about BATCH_BYTES, at most MAX_ROWS."""
    bytes_a_row = group.total_byte_size // max(1, group.num_rows)
    return max(1, min(MAX_ROWS, BATCH_BYTES // max(1, bytes_a_row)))


def _batch_records(batch: pa.RecordBatch, text_key: str, place: int, limits: Limits) -> Iterator[Record | Rejected]:
    """Yield the rows of a batch whose first row is number `place` of the file."""
    texts = batch.column(text_key)
    if not pa.types.is_dictionary(texts.type):
        texts = texts.dictionary_encode()
    lengths = pc.binary_length(texts.dictionary).to_pylist()  # type: ignore[attr-defined]
    sources = batch.column("source").to_pylist() if "source" in batch.schema.names else [None] * len(batch)
    if text_key == "source":
        sources = [None] * len(batch)

    for row, (index, source) in enumerate(zip(texts.indices.to_pylist(), sources, strict=True)):
        source = source if isinstance(source, str) and source else "parquet"
        if index is None or lengths[index] is None:
            yield Rejected(f"no text under {text_key!r}", source, place + row)
        elif lengths[index] > limits.document_bytes:
            yield Rejected(too_long(limits), source, place + row)
        else:
            yield Record(texts.dictionary[index].as_py(), source, place=place + row, size=lengths[index])
