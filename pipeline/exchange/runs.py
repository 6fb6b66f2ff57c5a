"""Run files: rows sorted by a 64-bit key and cut into buckets, equal ranges of keys: `scaled(key, buckets)`.

A bucket that holds rows is one Arrow record batch, written as an IPC message with lz4. The messages are concatenated,
without header, footer or empty batches. The index of a run says where each message is; it travels in the report of the
worker that wrote the run. So a reader needs one request for exactly the bytes of its buckets, and an empty bucket costs
nothing.
"""

from __future__ import annotations

import base64
import itertools
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.commit.staging import Staging
from pipeline.readers.ranges import ByteRange, read_ranges
from schemas.errors import DataError, StorageError
from schemas.randomness import scaled

Keys = NDArray[np.uint64]

# Without Arrow's threads: handing them buffers of a few kilobytes costs more time than the work, for writing and
# reading.
_LZ4 = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
_READ = pa.ipc.IpcReadOptions(use_threads=False)
_TAKEN_BUCKETS = 64


@dataclass(frozen=True, eq=False)
class RunIndex:
    """Where the buckets of one run file are.

    name: of the file in staging.
    buckets: number of equal ranges of keys that the file is cut into.
    start: the offset in the file at which the first listed bucket begins.
    numbers: (listed buckets,) uint32, ascending: the buckets that hold rows.
    lengths: (listed buckets,) uint32: the size of each in bytes.
    checksums: (listed buckets,) uint32: the CRC-32 of each.
    """

    name: str
    buckets: int
    start: int
    numbers: NDArray[np.uint32]
    lengths: NDArray[np.uint32]
    checksums: NDArray[np.uint32]

    def size(self) -> int:
        return int(self.lengths.sum())

    def buckets_among(self, buckets: int) -> NDArray[np.int64]:
        """Return (listed buckets,): the bucket in which each listed one begins when there are `buckets` of them."""
        return self.numbers.astype(np.int64) * buckets // self.buckets

    def part(self, first: int, end: int) -> RunIndex:
        """Return the index of the listed buckets [first, end), by their place in the list."""
        return RunIndex(
            name=self.name,
            buckets=self.buckets,
            start=self.start + int(self.lengths[:first].sum()),
            numbers=self.numbers[first:end],
            lengths=self.lengths[first:end],
            checksums=self.checksums[first:end],
        )

    def to_row(self) -> list[Any]:
        """Return the index as a short list of JSON values, for reports and for Beam."""
        columns = np.stack([self.numbers, self.lengths, self.checksums]).astype("<u4")
        return [self.name, self.buckets, self.start, base64.b64encode(columns.tobytes()).decode()]

    @classmethod
    def from_row(cls, row: list[Any]) -> RunIndex:
        name, buckets, start, encoded = row
        columns = np.frombuffer(base64.b64decode(encoded), "<u4").reshape(3, -1)
        return cls(name, buckets, start, columns[0], columns[1], columns[2])


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """Return a table as one record batch, which may be empty. Raises ValueError if its text exceeds 2 GiB."""
    if table.num_rows == 0:
        return pa.RecordBatch.from_pylist([], table.schema)
    (batch,) = table.combine_chunks().to_batches()
    return batch


def rows_by_bucket(rows: pa.RecordBatch, keys: Keys, buckets: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield (bucket, its rows) for each bucket that has rows, both ascending; rows with equal keys keep their order.

    Takes _TAKEN_BUCKETS buckets at once, because each `take` costs as much as copying a small bucket. Taking all at
    once would copy all rows, which may fill a good part of a worker's memory.
    """
    order = np.argsort(keys, kind="stable")
    numbers, starts = np.unique(scaled(keys[order], buckets), return_index=True)
    bounds = [*starts.tolist(), len(order)]
    listed = list(zip(numbers.tolist(), itertools.pairwise(bounds), strict=True))

    for first in range(0, len(listed), _TAKEN_BUCKETS):
        together = listed[first : first + _TAKEN_BUCKETS]
        offset = bounds[first]
        taken = rows.take(pa.array(order[offset : bounds[first + len(together)]]))
        for number, (start, end) in together:
            yield number, taken.slice(start - offset, end - start)


def encode_run(rows: pa.RecordBatch, keys: Keys, buckets: int, name: str) -> tuple[bytes, RunIndex]:
    """Return the bytes of a run file named `name`, and its index; `keys[i]` is the key of row i.

    Rows with equal keys keep their order.
    """
    numbers: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for number, batch in rows_by_bucket(rows, keys, buckets):
            numbers.append(number)
            yield batch

    messages = encode_batches(batches(), rows.schema)
    return b"".join(messages), _index_of(messages, numbers, buckets, name)


def encode_in_order(batches: Iterable[pa.RecordBatch], schema: pa.Schema, name: str) -> tuple[bytes, RunIndex]:
    """Return the bytes of a run file named `name`, and its index: one bucket that keeps the order of all rows."""
    data = b"".join(encode_batches(batches, schema))
    listed = [data] if data else []
    return data, _index_of(listed, range(len(listed)), 1, name)


def _index_of(listed: Sequence[bytes | memoryview], numbers: Sequence[int], buckets: int, name: str) -> RunIndex:
    """Return the index of a file of these messages, each of which is the bucket with the same place in `numbers`."""
    lengths = np.array([len(message) for message in listed], np.uint32)
    checksums = np.array([zlib.crc32(message) for message in listed], np.uint32)
    return RunIndex(name, buckets, 0, np.array(numbers, np.uint32), lengths, checksums)


def encode_batches(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> list[memoryview]:
    """Return each record batch as one Arrow IPC message. Readers know the schema, so the messages do not include it."""
    sink = pa.BufferOutputStream()
    ends = [schema.serialize().size]  # the stream begins with the schema
    with pa.ipc.new_stream(sink, schema, options=_LZ4) as writer:
        for batch in batches:
            writer.write_batch(batch)
            ends.append(sink.tell())

    stream = memoryview(sink.getvalue())
    return [stream[start:end] for start, end in itertools.pairwise(ends)]


def decode_batches(data: bytes | memoryview, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of concatenated messages. Raises pa.ArrowInvalid if they are damaged."""
    # Read as a stream, because only Arrow's stream reader can be set not to use threads.
    header = schema.serialize()
    with pa.ipc.open_stream(b"".join([header, data]), options=_READ) as reader:
        yield from reader


def read_buckets(parts: list[RunIndex], schema: pa.Schema, staging: Staging) -> list[pa.RecordBatch]:
    """Read all listed buckets of each index: one range of bytes for each, several at the same time.

    Raises StorageError when a range cannot be read or is damaged, and DataError when the file is gone.
    """
    listed = [part for part in parts if len(part.numbers)]
    ranges = [ByteRange(staging.url(part.name), part.start, part.start + part.size()) for part in listed]
    try:
        contents = read_ranges(ranges)
    except DataError as error:
        file = str(error).removesuffix(" does not exist.")
        raise DataError(
            f"{file} is gone: staging was changed while the job ran. Delete {staging.url('')} and run the same command "
            "again."
        ) from error

    batches: list[pa.RecordBatch] = []
    for part, data in zip(listed, contents, strict=True):
        url = staging.url(part.name)
        _check(part, data, url)
        try:
            batches += decode_batches(data, schema)
        except pa.ArrowInvalid as error:
            raise _damaged(url, str(error)) from error
    return batches


def _check(part: RunIndex, data: bytes, url: str) -> None:
    """Raise StorageError if a run's bytes are missing or differ from their checksums.

    Runs are not synced to disk, so a crash of the machine can leave one cut short or filled with zeros.
    """
    view = memoryview(data)
    start = 0
    for length, checksum in zip(part.lengths.tolist(), part.checksums.tolist(), strict=True):
        end = start + length
        if end > len(view):
            raise _damaged(url, f"it has {len(view):,} bytes from {part.start:,} on")
        if zlib.crc32(view[start:end]) != checksum:
            raise _damaged(url, f"other bytes than were written, at {part.start + start:,}")
        start = end


def _damaged(url: str, reason: str) -> StorageError:
    return StorageError(f"{url} is damaged ({reason}). Delete its folder and run the same command again.")
