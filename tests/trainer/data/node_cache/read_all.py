"""A process that reads shards through a cache, for test_node_cache.py to start and to kill.

python -m tests.trainer.data.node_cache.read_all FOLDER CACHE MAX_BYTES SILENCE SHARDS_AS_JSON
"""

from __future__ import annotations

import json
import sys

from schemas.errors import ClozelineError
from schemas.manifest import Shard
from trainer.data import remote


def read_all(folder: str, place: str, max_bytes: int, shards: list[Shard]) -> None:
    copies = remote.RemoteShards(folder, shards, place, max_bytes)
    for shard in shards:
        assert len(copies.read(shard)) == shard.bytes


if __name__ == "__main__":
    folder, place, max_bytes, silence, shards = sys.argv[1:]
    remote.STORE_TIMEOUT = float(silence)
    remote.WAITS = (0.01,) * 4
    try:
        read_all(folder, place, int(max_bytes), [Shard(**fields) for fields in json.loads(shards)])
    except ClozelineError as error:
        sys.exit(f"{error.exit_code} {error}")
