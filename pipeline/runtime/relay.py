"""The worker side of chained exchanges: the rows of one bucket become rows for the next exchanges.

See pipeline/runtime/exchange.py for the exchange itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pipeline.runtime.blocks import WireBlock, blocks_of
from pipeline.runtime.exchange import KeyedBatch, Stream
from pipeline.runtime.run_files import RunIndex, encode_run
from pipeline.runtime.staging import Staging

Addressed = tuple[int, KeyedBatch]
"""(number of the output in the list of outputs, batch)."""

Outputs = list[tuple[Stream, int]]
"""The streams that a bucket's rows go to, and the number of buckets that each of their exchanges has."""


def relay_runs(
    name: str, make_batches: Callable[[], Iterator[Addressed]], outputs: Outputs, staging: Staging
) -> list[tuple[int, RunIndex]]:
    """Write each batch as a run file, and return (number of the output, index) for each.

    `name` identifies the bucket within the job. If an earlier attempt finished the bucket, its indexes are returned.
    """
    finished = staging.report(name)
    if finished is not None:
        return [(number, RunIndex.from_row(row)) for number, row in finished["runs"]]

    indexes = []
    for count, (number, (keys, rows)) in enumerate(make_batches()):
        if rows.num_rows == 0:
            continue
        _, buckets = outputs[number]
        data, index = encode_run(rows, keys, buckets, f"{name}-{count:04d}.run")
        staging.put(index.name, data)
        indexes.append((number, index))

    staging.keep_report(name, {"runs": [[number, index.to_row()] for number, index in indexes]})
    return indexes


def relay_blocks(batches: Iterator[Addressed], outputs: Outputs) -> Iterator[tuple[int, int, WireBlock]]:
    """Yield (number of the output, bucket, block) for all rows of the batches."""
    for number, batch in batches:
        stream, buckets = outputs[number]
        for bucket, block in blocks_of([batch], stream, buckets):
            yield number, bucket, block
