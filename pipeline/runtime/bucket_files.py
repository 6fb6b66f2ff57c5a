"""Run files: rows sorted by a 64-bit key and cut into buckets, equal ranges of keys, one Arrow record batch each.

A reader of one bucket finds it by the file's own footer and reads nothing else.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.runtime.staging import Staging
from schemas import storage


def encode_buckets(rows: pa.RecordBatch, keys: NDArray[np.uint64], buckets: int) -> bytes:
    """The rows by rising key, one record batch for each bucket; a row's key is at its place in `keys`."""
    order = np.argsort(keys, kind="stable")
    lower = [-(-(b << 64) // buckets) for b in range(1, buckets)]
    cuts = [0, *np.searchsorted(keys[order], np.array(lower, dtype=np.uint64)).tolist(), len(order)]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        for start, end in itertools.pairwise(cuts):
            # taken, not sliced: a slice of nested columns would be written with the offsets of all their values
            writer.write_batch(rows.take(pa.array(order[start:end])))
    return sink.getvalue().to_pybytes()


def read_buckets(names: Iterable[str], first: int, last: int, schema: pa.Schema, staging: Staging) -> pa.Table:
    """Buckets first to last - 1 of several runs, run after run."""
    batches: list[pa.RecordBatch] = []
    for name in names:
        with storage.open_input(staging.url(name)) as file, pa.ipc.open_file(file) as reader:
            batches += (batch for i in range(first, last) if (batch := reader.get_batch(i)).num_rows)
    return pa.Table.from_batches(batches, schema)
