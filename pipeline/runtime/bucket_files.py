"""Run files: rows sorted by a 64-bit key and cut into buckets, equal ranges of keys, one Arrow record batch each.

This is how data moves between workers. Every worker writes run files with the same number of buckets; the reader of a
bucket takes it out of each run. Arrow's footer lists where each record batch begins, so the reader reads the footer
and its own bucket, and nothing else of a file.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.runtime.staging import Staging
from schemas import storage
from schemas.errors import StorageError


def encode_buckets(rows: pa.RecordBatch, keys: NDArray[np.uint64], buckets: int) -> bytes:
    """Return an Arrow file of the rows sorted by key, with one record batch per bucket; `keys[i]` belongs to row i."""
    order = np.argsort(keys, kind="stable")

    bounds = _lower_bounds(buckets)
    inner_cuts = np.searchsorted(keys[order], bounds)
    cuts = [0, *inner_cuts.tolist(), len(order)]

    sink = pa.BufferOutputStream()
    settings = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_file(sink, rows.schema, options=settings) as writer:
        for start, end in itertools.pairwise(cuts):
            # Taken, not sliced: a slice of nested columns would be written with the offsets of all their values.
            bucket = rows.take(pa.array(order[start:end]))
            writer.write_batch(bucket)
    return sink.getvalue().to_pybytes()


def _lower_bounds(buckets: int) -> NDArray[np.uint64]:
    """The smallest key of each bucket but the first: bucket b begins at b * 2**64 / buckets, rounded up."""
    bounds = []
    for bucket in range(1, buckets):
        rounded_up = -(-(bucket << 64) // buckets)
        bounds.append(rounded_up)
    return np.array(bounds, dtype=np.uint64)


def read_buckets(names: Iterable[str], first: int, last: int, schema: pa.Schema, staging: Staging) -> pa.Table:
    """Read the buckets from `first` to `last` - 1 of several runs, run after run.

    Raises StorageError when a run cannot be read or is damaged, and DataError when it is gone.
    """
    batches: list[pa.RecordBatch] = []
    for name in names:
        url = staging.url(name)
        with storage.storage_errors_of(url):
            batches += _read_run(url, first, last)
    return pa.Table.from_batches(batches, schema)


def _read_run(url: str, first: int, last: int) -> list[pa.RecordBatch]:
    """The record batches of one run that are not empty."""
    try:
        with (
            storage.open_input(url) as file,
            pa.ipc.open_file(file) as reader,
        ):
            buckets = [reader.get_batch(bucket) for bucket in range(first, last)]
    except pa.ArrowInvalid as error:
        # Runs are not synced to disk, so a crash of the machine can leave one cut short or filled with zeros.
        raise StorageError(f"{url} is damaged ({error}). Delete its folder and run the same command again.") from error
    return [bucket for bucket in buckets if bucket.num_rows]
