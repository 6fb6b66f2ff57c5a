"""A process that reads shards through a cache, for test_processes.py to start and to kill.

python -m tests.trainer.data.shard_cache.read_all FOLDER CACHE MAX_BYTES SILENCE SHARDS_AS_JSON
"""

from __future__ import annotations

import json
import sys

from schemas.errors import ClozelineError
from schemas.manifest import Shard
from trainer.data.shard_cache import cache, download


def read_all(folder: str, place: str, max_bytes: int, shards: list[Shard]) -> None:
    copies = cache.ShardCache(folder, shards, place, max_bytes)
    for shard in shards:
        while True:  # other processes may remove a copy before it is opened
            try:
                with open(copies.path(shard), "rb") as file:
                    assert len(file.read()) == shard.bytes
                break
            except FileNotFoundError:
                pass


if __name__ == "__main__":
    folder, place, max_bytes, silence, shards = sys.argv[1:]
    download.STORE_TIMEOUT = float(silence)
    cache.WAITS = (0.01,) * 4
    try:
        read_all(folder, place, int(max_bytes), [Shard(**fields) for fields in json.loads(shards)])
    except ClozelineError as error:
        sys.exit(f"{error.exit_code} {error}")
