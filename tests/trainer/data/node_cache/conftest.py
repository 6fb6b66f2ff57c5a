"""A real S3 server that holds four shards, and caches of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import s3fs

from schemas.manifest import Shard
from tests.object_store import ObjectStore
from tests.trainer.data.node_cache.shards import DATA, FOLDER, SHARDS, SIZE, Make
from trainer.data import remote
from trainer.data.remote import RemoteShards


@pytest.fixture(scope="session")
def server() -> Iterator[ObjectStore]:
    made = ObjectStore()
    bucket = made.bucket("corpora")
    for shard, data in zip(SHARDS, DATA, strict=True):
        bucket.put_object(Key=f"pairs/{shard.path}", Body=data)
    yield made
    made.stop()
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def store(server: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    """The server without faults, where s3:// of this process and its children leads; tries follow at once."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(remote, "WAITS", (0.01,) * 4)
    s3fs.S3FileSystem.clear_instance_cache()
    server.reset()
    yield server
    server.reset()


@pytest.fixture
def make(store: ObjectStore, tmp_path: Path) -> Iterator[Make]:
    """Caches in tmp_path/cache, by default with room for all shards."""
    made: list[RemoteShards] = []

    def call(room: int = 4, place: Path = tmp_path / "cache", shards: list[Shard] = SHARDS) -> RemoteShards:
        made.append(RemoteShards(FOLDER, shards, str(place), room * SIZE))
        return made[-1]

    yield call
    for copies in made:
        copies.close()
