"""What a chain of exchanges does on workers: the rows of a bucket become rows for the next exchanges.

See pipeline/runtime/exchange.py for the exchange itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pipeline.runtime.exchange import Block, Lot, Stream, blocks_of
from pipeline.runtime.run_files import RunIndex, encode_run
from pipeline.runtime.staging import Staging

Addressed = tuple[int, Lot]
"""(place in the list of outputs, lot)."""

Outputs = list[tuple[Stream, int]]
"""The streams that a bucket's rows go to, and the number of buckets that each of their exchanges has."""


def relay_runs(
    name: str, lots: Callable[[], Iterator[Addressed]], outputs: Outputs, staging: Staging
) -> list[tuple[int, RunIndex]]:
    """Write each lot as a run file, and return the indexes with the place of their output.

    `name` tells the bucket from all others of the job. What an earlier attempt finished is not made again.
    """
    finished = staging.report(name)
    if finished is not None:
        return [(place, RunIndex.from_row(row)) for place, row in finished["runs"]]

    indexes = []
    for number, (place, (keys, rows)) in enumerate(lots()):
        if rows.num_rows == 0:
            continue
        _, buckets = outputs[place]
        data, index = encode_run(rows, keys, buckets, f"{name}-{number:04d}.run")
        staging.put(index.name, data)
        indexes.append((place, index))

    staging.keep_report(name, {"runs": [[place, index.to_row()] for place, index in indexes]})
    return indexes


def relay_blocks(lots: Iterator[Addressed], outputs: Outputs) -> Iterator[tuple[int, int, Block]]:
    """Yield (place of the output, bucket, block) for all rows of the lots."""
    for place, lot in lots:
        stream, buckets = outputs[place]
        for bucket, block in blocks_of([lot], stream, buckets):
            yield place, bucket, block
