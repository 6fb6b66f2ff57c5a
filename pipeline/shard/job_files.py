"""Files in staging with a job's splits and inputs, because the job's graph must not grow with the number of inputs.

    splits-00000.json    up to SPLITS_PER_FILE splits
    inputs.json          the files, as the manifest will list them

The launcher writes them before the graph runs, and workers read them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from pipeline.runtime.staging import Staging
from pipeline.shard.inputs import Split
from schemas import storage
from schemas.errors import DataError
from schemas.manifest import Input, decode_entries, encode_entries

SPLITS_PER_FILE = 1024

_INPUTS = "inputs.json"


def _name(number: int) -> str:
    return f"splits-{number:05d}.json"


def files_for(splits: int) -> int:
    """Return the number of files that hold `splits` splits."""
    return -(-splits // SPLITS_PER_FILE)


def write_splits(splits: list[Split], staging: Staging) -> None:
    """Write all splits into staging, in order."""
    for number in range(files_for(len(splits))):
        part = splits[number * SPLITS_PER_FILE : (number + 1) * SPLITS_PER_FILE]
        rows = [split.to_row() for split in part]
        staging.put(_name(number), json.dumps(rows).encode())


def read_splits(number: int, staging: Staging) -> Iterator[tuple[int, Split]]:
    """Yield (index, split) for each split of one file."""
    for row in json.loads(storage.read(staging.url(_name(number)))):
        split = Split.from_row(row)
        yield split.index, split


def write_inputs(inputs: list[Input], staging: Staging) -> None:
    """Write the list of inputs into staging."""
    staging.put(_INPUTS, encode_entries(inputs))


def read_inputs(staging: Staging) -> list[Input] | None:
    """Return the list of inputs; None if it was removed, as it is when the job is done."""
    try:
        data = storage.read(staging.url(_INPUTS))
    except DataError:
        return None
    return decode_entries(data, "inputs")
