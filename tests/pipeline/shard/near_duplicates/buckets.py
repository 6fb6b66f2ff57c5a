"""An exchange in memory: what a bucket gets of the lots that all buckets of the step before have sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa

from pipeline.runtime.relay import Addressed
from pipeline.runtime.run_files import bucket_of

Lots = list[tuple[Any, pa.RecordBatch]]


def table_of(lots: Lots, schema: pa.Schema, bucket: int, buckets: int) -> pa.Table:
    """The rows of one bucket, last lot first: nothing may depend on the order."""
    batches = []
    for keys, rows in reversed(lots):
        batches.append(rows.filter(pa.array(bucket_of(keys, buckets) == bucket)))
    return pa.Table.from_batches(batches, schema)


def relayed(
    step: Callable[..., Iterable[Addressed]],
    sources: list[tuple[Lots, pa.Schema]],
    buckets: int,
    details: Any,
    in_pieces: bool = False,
) -> dict[int, Lots]:
    """All lots that a step makes of its buckets, by the place of their output. in_pieces: of a single source."""
    made: dict[int, Lots] = {0: [], 1: [], 2: []}
    for bucket in range(buckets):
        tables = [table_of(lots, schema, bucket, buckets) for lots, schema in sources]
        read_rows = partial(pieces_of, tables[0]) if in_pieces else partial(list, tables)
        for place, lot in step(bucket, read_rows, details):
            made[place].append(lot)
    return made


def pieces_of(table: pa.Table) -> Iterator[pa.Table]:
    """The rows in several tables, one of them empty."""
    third = -(-table.num_rows // 3)
    for number in range(4):
        yield table.slice(number * third, third)
