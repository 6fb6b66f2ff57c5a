"""Reads Parquet and Arrow files: one document per row, text in the columns of --text_key, the source in "source".

Both come as record batches of Arrow. Arrow files are those of the IPC file format, also called Feather V2, and of the
streaming format: `datasets` and this project's own shards are such files. Formats:
https://arrow.apache.org/docs/format/Columnar.html#serialization-and-ipc. The check of the columns serves CSV too.

Memory is bounded by --max_document_bytes for Parquet, but for columns of lists: each of their texts is in memory. A
record batch of Arrow is refused if it is stored in more than MAX_BATCH_BYTES; what of it is compressed grows to the
size that it states.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.readers.nested_keys import ELEMENTS, joined_at
from pipeline.readers.open import DECOMPRESSION_ERRORS, LimitedReads, Stream
from pipeline.readers.ranges import open_range
from pipeline.readers.record import (
    PARAGRAPH_BREAK,
    Record,
    RecordOptions,
    Rejected,
    Undecodable,
    decode_utf8,
    too_long_reason,
    wanted_keys,
)
from schemas.errors import DataError, nearest_name

if TYPE_CHECKING:
    from pipeline.readers.inputs import FileRange

MAX_ROWS = 256
"""Rows whose lengths and sources are Python objects at once."""

LONGEST_NAME = 60  # of a column; a longer one is a text, and the table has no header
_LISTED_NAMES = 20  # of the columns that an error advises, each with up to this many characters:
_NAME_CHARACTERS = 80

_BREAK = PARAGRAPH_BREAK.encode()

# Some writers do not mark strings as such: their columns are binary.
_AS_BYTES = {
    pa.string(): pa.binary(),
    pa.large_string(): pa.large_binary(),
    pa.string_view(): pa.binary_view(),
}
_TEXT_TYPES = frozenset([*_AS_BYTES, *_AS_BYTES.values()])
_STRING_TYPES = frozenset([pa.string(), pa.large_string(), pa.null()])  # of fields and elements; nulls are no texts


# ---- Columns and rows ----


def check_columns(path: str, schema: pa.Schema, text_key: str) -> tuple[str, ...]:
    """Return the names of the columns that `text_key` names (see `wanted_keys`), dotted ones of fields in columns.

    Raises DataError unless each is the name of exactly one column of strings, lists of strings, bytes or nulls, and at
    most one column is called `source`. A column of type null has no texts.
    """
    texts = text_columns(schema)
    if not any(ELEMENTS in name for name in schema.names):
        text_key = text_key.replace(ELEMENTS, "")  # as rows are the documents, it says nothing more
    wanted = wanted_keys(text_key, [*schema.names, *texts])
    for name in (*wanted, "source"):
        column = _column_of(schema, name)
        count = schema.names.count(column)
        if count > 1:
            raise DataError(
                f"{path} has {count} columns called {column!r}, so it is not clear which one to read. "
                "Rename all but one of them."
            )

    for name in wanted:
        if name in texts or (name in schema.names and pa.types.is_null(schema.field(name).type)):
            continue

        if texts:
            advice = f"give --text_key {'one of ' if len(texts) > 1 else ''}{_listed(texts)}"
            if path.endswith((".csv", ".tsv", ".tab", ".txt")):
                if max(map(len, texts)) > LONGEST_NAME:
                    first_row = "\t".join(texts)[:LONGEST_NAME]
                    advice = f"its first row begins with {first_row!r}; give --text_key a name in it"
                advice = f"{advice}, or add a first row with names if there is none"
            if not any(mark in f"{text_key}{texts[0]}" for mark in "|,"):
                advice += f", or '{text_key}|{texts[0]}' if other files have {name!r}"
        else:
            advice = "it has no column of strings at all"
        raise DataError(f"{path} has no text column {name!r}; {advice}.{nearest_name(name, texts)}")
    return wanted


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return kind in _TEXT_TYPES


def text_columns(schema: pa.Schema) -> list[str]:
    """Return the names of the columns that hold texts, and the dotted ones of strings and lists of them in others."""
    plain = [field.name for field in schema if _is_text(field.type)]
    return plain + [name for field in schema if "." not in field.name for name in _strings_in(field.type, field.name)]


def _strings_in(kind: pa.DataType, name: str) -> Iterator[str]:
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        kind = kind.value_type
        text = kind.field("text").type if pa.types.is_struct(kind) and "text" in kind.names else kind
        if text in _STRING_TYPES:
            yield name
    if pa.types.is_struct(kind):
        for field in filter(lambda field: "." not in field.name, kind.fields):
            if field.type in _STRING_TYPES:
                yield f"{name}.{field.name}"
            yield from _strings_in(field.type, f"{name}.{field.name}")


def _column_of(schema: pa.Schema, name: str) -> str:
    return name if name in schema.names else name.partition(".")[0]


def without_times(rows: Any) -> Any:
    """Return a batch or table without its columns of times, which Python has no type for if they are in nanoseconds."""
    return rows.select([place for place, field in enumerate(rows.schema) if not pa.types.is_temporal(field.type)])


def _listed(names: list[str]) -> str:
    listed = ", ".join(name[:_NAME_CHARACTERS] for name in names[:_LISTED_NAMES])
    further = len(names) - _LISTED_NAMES
    return listed if further <= 0 else f"{listed} and {further:,} others"


def read_columns(schema: pa.Schema, wanted: tuple[str, ...]) -> list[str]:
    """Return the names of all columns to read: those of the text, and that of the source if there is one."""
    has_source = "source" in schema.names and "source" not in wanted
    columns = [_column_of(schema, name) for name in wanted]
    return list(dict.fromkeys([*columns, "source"] if has_source else columns))


def batch_records(
    batch: pa.RecordBatch, wanted: tuple[str, ...], first_row: int, source: str, options: RecordOptions
) -> Iterator[Record | Rejected]:
    """Yield the rows of a batch.

    wanted: names of the columns of text. first_row: the number in the file of the batch's first row.
    source: of rows that name none.
    """
    columns = [_TextColumn(_column(batch, name)) for name in wanted]
    plain = [name for name in wanted if name in batch.schema.names]
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
            if not present and {batch.column(name)[index].as_py() is None for name in plain} != {True}:
                yield Rejected(f"no text under {options.text_key!r}", row_source, row)
            elif size > options.max_document_bytes:
                yield Rejected(too_long_reason(options.max_document_bytes), row_source, row)
            else:
                data = [column.data(index) for column in present]
                text, undecodable = _decoded(data[0] if len(data) == 1 else _BREAK.join(filter(None, data)), row)
                yield Record(text, row_source, undecodable, position=row, size=size)


def _column(batch: pa.RecordBatch, name: str) -> Any:
    """Return a column of texts: that with this name, or made of what the dotted name leads to."""
    path = (name,) if name in batch.schema.names else tuple(name.split("."))
    column = batch.column(path[0])
    for number, step in enumerate(path[1:], 1):
        if not pa.types.is_struct(column.type):
            path = path[number:]
            break
        column = pc.struct_field(column, step)  # type: ignore[attr-defined]
    else:
        path = ()
    if not pa.types.is_nested(column.type):
        return column
    slices = (column.slice(start, MAX_ROWS).to_pylist() for start in range(0, len(column), MAX_ROWS))
    return pa.array([joined_at(value, path) for values in slices for value in values], pa.large_string())


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
        index = row if self._indices is None else self._indices[row].as_py()
        return self._values[index].as_py()


def _decoded(data: bytes, row: int) -> tuple[str, Undecodable | None]:
    """Return the text of a row, and its number and the number of places if some bytes are not UTF-8."""
    try:
        return data.decode(), None
    except UnicodeDecodeError:
        text, undecodable = decode_utf8(data, row)
        return text, undecodable and replace(undecodable, first_offset=row)


def _source_names(column: Any, default: str) -> list[str]:
    if pa.types.is_temporal(column.type):
        return [default] * len(column)
    values = [value.decode(errors="replace") if isinstance(value, bytes) else value for value in column.to_pylist()]
    return [value if isinstance(value, str) and value else default for value in values]


# ---- Parquet ----

BATCH_BYTES = 16 << 20
"""Bytes of a batch, about, which ends earlier if it has MAX_ROWS."""


# A text may begin with PAR1. Behind it is the first field of a page's header, or of the footer if there are no pages.
BEGINS_PARQUET = re.compile(rb"PAR1\x15")


def open_parquet(opened: IO[bytes], shown: str) -> pq.ParquetFile:
    """Read the footer of a Parquet file. Raises DataError if it has no readable footer."""
    try:
        return pq.ParquetFile(opened)
    except (OSError, ValueError) as error:
        raise DataError(f"{shown} is not a readable Parquet file ({error}). Copy it again, or leave it out.") from error


def parquet_rows(ranges: list[FileRange], most: int) -> int:
    """Return the rows of Parquet files, about: what up to `most` of these say of themselves."""
    rows = read = 0
    for one in ranges[:: -(-len(ranges) // most)]:
        with suppress(DataError, pa.ArrowException, *DECOMPRESSION_ERRORS), open_range(one.file) as opened:
            rows += open_parquet(opened, one.display_path).metadata.num_rows
            read += one.size
    return rows * sum(one.size for one in ranges) // max(read, 1)


def parquet_records(stream: Stream, file_range: FileRange, options: RecordOptions) -> Iterator[Record | Rejected]:
    """Yield one record for each row of the row groups whose first byte is in the range.

    Raises DataError unless the file is Parquet and its columns are as `check_columns` wants them.
    """
    metadata = open_parquet(stream.file, file_range.display_path).metadata
    schema = metadata.schema.to_arrow_schema()
    wanted = check_columns(file_range.display_path, schema, options.text_key)
    first_rows = _first_rows(metadata, file_range)
    if not first_rows:
        return
    columns = read_columns(schema, wanted)

    # Read as a dictionary: a text that many rows share is then in memory once, however long it is. Otherwise a small
    # file could expand to terabytes, as with 20,000 rows that point to one string of 21 MB.
    plain = [name for name in wanted if name in schema.names and not pa.types.is_nested(schema.field(name).type)]
    file = pq.ParquetFile(stream.file, metadata=metadata, read_dictionary=plain)

    for group, first_row in first_rows.items():
        row = first_row
        row_group = metadata.row_group(group)
        bytes_per_row = max(1, row_group.total_byte_size // max(1, row_group.num_rows))
        batch_rows = max(1, min(MAX_ROWS, BATCH_BYTES // bytes_per_row))
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


# ---- Arrow ----

MAX_BATCH_BYTES = 512 << 20
"""Maximum bytes of a record batch in a stream, and of a column of one in a file, as they are stored."""

_HEAD_BYTES = 16

# A file, or a stream: the mark of a message, the length of its metadata, and where its root table begins.
BEGINS_ARROW = re.compile(rb"ARROW1\0\0|\xff{4}[\x00-\xf8][\x00-\xff]{2}\x00[\x04-\xff]\x00{3}")


def open_arrow(opened: IO[bytes], shown: str, columns: list[int] | None = None) -> Any:
    """Open an Arrow file to read `columns` of it, by their positions; all if None.

    Returns pyarrow's reader of a file or of a stream. Raises DataError if the file is not Arrow.
    """
    opened.seek(0)
    begins = BEGINS_ARROW.match(opened.read(_HEAD_BYTES))
    opened.seek(0)
    if begins is None:
        raise _unreadable(shown, "no Arrow file since 2019 begins like this; rewrite an older one with pyarrow")

    options = pa.ipc.IpcReadOptions(included_fields=columns or [])
    # pyarrow reads a message of a stream, or a buffer of a file, with a single call.
    reads = LimitedReads(opened, MAX_BATCH_BYTES, partial(_too_large_batch, shown))
    source = pa.PythonFile(reads, mode="r")
    try:
        open_reader = pa.ipc.open_file if begins[0].startswith(b"ARROW1") else pa.ipc.open_stream
        return open_reader(source, options=options)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise _unreadable(shown, error) from error


def _unreadable(shown: str, cause: object) -> DataError:
    return DataError(f"{shown} is not a readable Arrow file ({cause}). Copy it again, or leave it out.")


def _too_large_batch(shown: str, size: int) -> DataError:
    return DataError(
        f"{shown} has a record batch of {size:,} bytes, or is damaged; one may have up to {MAX_BATCH_BYTES:,}. Write "
        "it in smaller batches (max_chunksize of pyarrow's write_table), or as Parquet."
    )


def arrow_records(stream: Stream, file_range: FileRange, options: RecordOptions) -> Iterator[Record | Rejected]:
    """Yield one record for each row.

    Raises DataError unless the file is Arrow, its columns are as `check_columns` requires, and its batches are sound
    and within MAX_BATCH_BYTES. Errors of pyarrow for a file that ends early pass.
    """
    path = file_range.display_path
    schema = open_arrow(stream.file, path).schema
    wanted = check_columns(path, schema, options.text_key)
    columns = [schema.get_field_index(name) for name in read_columns(schema, wanted)]

    row = 0
    for batch in batches_of(open_arrow(stream.file, path, columns)):
        yield from batch_records(_sound(batch), wanted, row, "arrow", options)
        row += batch.num_rows


def batches_of(reader: Any) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of a reader from `open_arrow`."""
    if isinstance(reader, pa.ipc.RecordBatchStreamReader):
        yield from reader
    else:
        yield from map(reader.get_batch, range(reader.num_record_batches))


def _sound(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch with strings as bytes. Raises pa.ArrowInvalid if its offsets or indices leave its buffers.

    pyarrow does not check them when it reads, so a damaged file could end the process. As bytes, because strings that
    are not UTF-8 are counted later, and are not checked here.
    """
    columns = [_as_bytes(column) for column in batch.columns]
    for column in columns:
        column.validate(full=True)
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _as_bytes(column: Any) -> Any:
    kind = column.type
    if pa.types.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(column.indices, _as_bytes(column.dictionary))
    return column.view(_AS_BYTES[kind]) if kind in _AS_BYTES else column
