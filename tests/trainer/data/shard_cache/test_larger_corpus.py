"""A corpus larger than the cache: what is there when an epoch begins is used in it, and only the rest is fetched."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from schemas.manifest import Shard
from schemas.randomness import key, permutation
from tests.object_store import ObjectStore
from tests.trainer.data.shard_cache.shards import held
from trainer.data.shard_cache import files
from trainer.data.shard_cache.cache import ShardCache

FOLDER = "s3://many/pairs"
SIZE = 4 << 10
COUNT = 40
ROOM = 24
WINDOW = 3
DATA = [random.Random(1000 + seed).randbytes(SIZE) for seed in range(COUNT)]
MANY = [
    Shard(
        path=f"many-{i:02d}.arrow", rows=1, tokens=1, bytes=SIZE, sha256=hashlib.sha256(d).hexdigest(), fingerprint=""
    )
    for i, d in enumerate(DATA)
]


@pytest.fixture
def corpus(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    monkeypatch.setattr(files, "WINDOW_SHARDS", WINDOW)
    bucket = store.bucket("many")
    for shard, data in zip(MANY, DATA, strict=True):
        bucket.put_object(Key=f"pairs/{shard.path}", Body=data)
    yield store


def read_epoch(copies: list[ShardCache], epoch: int) -> None:
    """Read every shard once, in the epoch's order, by several ranks in turn; each fetches two ahead."""
    order = permutation(COUNT, key("epoch", epoch)).tolist()
    for place, number in enumerate(order):
        rank = copies[place % len(copies)]
        rank.fetch_ahead([MANY[n] for n in order[place + 1 : place + 3]])
        assert rank.read(MANY[number]) == DATA[number]


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_is_there_is_used(corpus: ObjectStore, tmp_path: Path, ranks: int) -> None:
    place = tmp_path / "cache"
    copies = [ShardCache(FOLDER, MANY, str(place), ROOM * SIZE) for _ in range(ranks)]
    read_epoch(copies, 0)
    assert corpus.count("many-") == COUNT

    for epoch in (1, 2, 3):
        before = corpus.count("many-"), corpus.transferred("many-")
        read_epoch(copies, epoch)
        fetched = corpus.count("many-") - before[0]
        assert COUNT - ROOM <= fetched <= COUNT - ROOM + 2 * WINDOW
        assert corpus.transferred("many-") - before[1] == fetched * SIZE
        assert len(held(place)) <= ROOM + 4  # and the locks of the moment
    for one in copies:
        one.close()
    assert len([name for name in held(place) if name.endswith(".arrow")]) <= ROOM


def test_copies_of_other_corpora_go_first_when_they_are_forgotten(corpus: ObjectStore, tmp_path: Path) -> None:
    place = tmp_path / "cache"
    place.mkdir()
    old = [place / f"{digit * 64}.arrow" for digit in "abc"]
    for path in old:
        path.write_bytes(b"x" * SIZE)
    in_use = place / f"{'d' * 64}.arrow"
    in_use.write_bytes(b"x" * SIZE)
    for path in old:
        long_ago = path.stat().st_mtime - files.FORGOTTEN_SECONDS - 60
        os.utime(path, (long_ago, long_ago))

    copies = ShardCache(FOLDER, MANY, str(place), 8 * SIZE)
    for number in range(7):
        copies.read(MANY[number])
    copies.close()
    assert not any(path.exists() for path in old) and in_use.exists()
    assert all((place / f"{shard.sha256}.arrow").exists() for shard in MANY[:7])
