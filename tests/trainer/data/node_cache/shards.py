"""Four shards of a remote folder, and looking at a cache of them."""

from __future__ import annotations

import hashlib
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

from schemas.manifest import Shard
from trainer.data.remote import RemoteShards

SIZE = 96 << 10
FOLDER = "s3://corpora/pairs"
DATA = [random.Random(seed).randbytes(SIZE) for seed in range(4)]
SHARDS = [
    Shard(path=f"{i}.arrow", rows=1, tokens=1, bytes=SIZE, sha256=hashlib.sha256(data).hexdigest(), fingerprint="")
    for i, data in enumerate(DATA)
]
NAMES = [f"{shard.sha256}.shard" for shard in SHARDS]
"""The shards' copies."""

Make = Callable[..., RemoteShards]
"""The fixture `make`."""


def held(place: Path) -> list[str]:
    return sorted(os.listdir(place))


def until(condition: Callable[[], object], seconds: float = 20) -> None:
    """Wait for it."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)
