"""An exchange in memory: what a bucket gets of the batches that all buckets of the step before have sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa

from pipeline.exchange.blocks import Addressed
from schemas.randomness import scaled

KeyedBatches = list[tuple[Any, pa.RecordBatch]]


def table_of(batches: KeyedBatches, schema: pa.Schema, bucket: int, buckets: int) -> pa.Table:
    """The rows of one bucket, last batch first: nothing may depend on the order."""
    found = []
    for keys, rows in reversed(batches):
        found.append(rows.filter(pa.array(scaled(keys, buckets) == bucket)))
    return pa.Table.from_batches(found, schema)


def relayed(
    step: Callable[..., Iterable[Addressed]],
    sources: list[tuple[KeyedBatches, pa.Schema]],
    buckets: int,
    details: Any,
    in_pieces: bool = False,
) -> dict[int, KeyedBatches]:
    """All batches that a step makes of its buckets, by the number of their output. in_pieces: of a single source."""
    made: dict[int, KeyedBatches] = {0: [], 1: [], 2: []}
    for bucket in range(buckets):
        tables = [table_of(batches, schema, bucket, buckets) for batches, schema in sources]
        read_rows = partial(pieces_of, tables[0]) if in_pieces else partial(list, tables)
        for number, batch in step(bucket, read_rows, details):
            made[number].append(batch)
    return made


def pieces_of(table: pa.Table) -> Iterator[pa.Table]:
    """The rows in several tables, one of them empty."""
    third = -(-table.num_rows // 3)
    for number in range(4):
        yield table.slice(number * third, third)
