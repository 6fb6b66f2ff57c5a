"""Reads Arrow files, of the IPC file format (also called Feather V2) and the streaming format, as Parquet is read.

`datasets` and this project's own shards are such files. A record batch is refused if it is stored in more than
MAX_BATCH_BYTES; what of it is compressed grows to the size that it states. Formats: https://arrow.apache.org/docs/format/Columnar.html#serialization-and-ipc.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa

from pipeline.readers.columns import batch_records, check_columns, read_columns
from pipeline.readers.open import Stream
from pipeline.readers.record import Record, RecordOptions, Rejected
from schemas.errors import DataError

if TYPE_CHECKING:
    from pipeline.readers.inputs import FileRange

MAX_BATCH_BYTES = 512 << 20
"""Maximum bytes of a record batch in a stream, and of a column of one in a file, as they are stored."""

_FILE = b"ARROW1\0\0"
_FEATHER_V1 = b"FEA1"
_HEAD_BYTES = 16

# A message of a stream: a mark, which streams before Arrow 0.15 lack, the length of its metadata, and where its root
# table begins.
_STREAM = re.compile(rb"(\xff{4})?[\x00-\xf8][\x00-\xff]{2}\x00[\x04-\xff]\x00{3}", re.DOTALL)


def begins_arrow(head: bytes) -> bool:
    """Return whether a file that begins with these bytes is an Arrow file, or of Feather's first version."""
    message = _STREAM.match(head)
    return head.startswith((_FILE, _FEATHER_V1 + b"\0")) or (message is not None and message[1] is not None)


def open_arrow(opened: IO[bytes], shown: str, columns: list[int] | None = None) -> Any:
    """Open an Arrow file to read `columns` of it, by their positions; all if None.

    Returns pyarrow's reader of a file or of a stream. Raises DataError if the file is not Arrow.
    """
    opened.seek(0)
    head = opened.read(_HEAD_BYTES)
    opened.seek(0)
    if head.startswith(_FEATHER_V1):
        raise DataError(
            f"{shown} is a Feather V1 file, which cannot be read. Write it again as Parquet or Feather V2, for "
            "instance with read_table and write_feather of pyarrow.feather."
        )

    if not head.startswith(_FILE) and not _STREAM.match(head):
        raise _unreadable(shown, "no Arrow file begins like this")

    options = pa.ipc.IpcReadOptions(included_fields=columns or [])
    source = pa.PythonFile(_BoundedReads(opened, shown), mode="r")
    try:
        if head.startswith(_FILE):
            return pa.ipc.open_file(source, options=options)
        return pa.ipc.open_stream(source, options=options)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise _unreadable(shown, error) from error


def _unreadable(shown: str, cause: object) -> DataError:
    return DataError(f"{shown} is not a readable Arrow file ({cause}). Copy it again, or leave it out.")


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
    for batch in _batches(open_arrow(stream.file, path, columns)):
        yield from batch_records(_sound(batch), wanted, row, "arrow", options)
        row += batch.num_rows


def _batches(reader: Any) -> Iterator[pa.RecordBatch]:
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
    if pa.types.is_string(kind):
        return column.view(pa.binary())
    if pa.types.is_large_string(kind):
        return column.view(pa.large_binary())
    if pa.types.is_string_view(kind):
        return column.view(pa.binary_view())
    return column


class _BoundedReads(io.RawIOBase):
    """A file of which pyarrow cannot read more than MAX_BATCH_BYTES at once, so that memory stays bounded.

    pyarrow reads a message of a stream, or a buffer of a file, with a single call.
    """

    def __init__(self, file: IO[bytes], shown: str):
        self._file = file
        self._shown = shown

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def read(self, size: int = -1) -> bytes:
        if size > MAX_BATCH_BYTES:
            raise DataError(
                f"{self._shown} has a record batch of {size:,} bytes, or is damaged; one may have up to "
                f"{MAX_BATCH_BYTES:,}. Write it in smaller batches (max_chunksize of pyarrow's write_table), or as "
                "Parquet."
            )
        return self._file.read(size)
