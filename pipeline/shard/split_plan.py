"""The splits of a job as files in staging: a job's graph must not grow with the number of its inputs.

Each file holds up to SPLITS_PER_FILE splits as JSON. The launcher writes them before the graph runs, and workers read
them, so the graph carries their number alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from pipeline.runtime.staging import Staging
from pipeline.shard.inputs import Split

SPLITS_PER_FILE = 1024


def _name(number: int) -> str:
    return f"splits-{number:05d}.json"


def files_for(splits: int) -> int:
    """Return the number of files that hold so many splits."""
    return -(-splits // SPLITS_PER_FILE)


def write_splits(splits: list[Split], staging: Staging) -> None:
    """Write all splits into staging, in order."""
    for number in range(files_for(len(splits))):
        part = splits[number * SPLITS_PER_FILE : (number + 1) * SPLITS_PER_FILE]
        rows = [split.to_row() for split in part]
        staging.put(_name(number), json.dumps(rows).encode())


def read_splits(number: int, staging: Staging) -> Iterator[tuple[int, Split]]:
    """Yield (index, split) for each split of one file."""
    for row in json.loads(staging.piece(_name(number))):
        split = Split.from_row(row)
        yield split.index, split
