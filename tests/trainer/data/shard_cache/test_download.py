"""What is fetched, when, and what stays: once, in the order asked for, the most recently used."""

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from schemas.errors import StorageError
from tests.object_store import ObjectStore
from tests.trainer.data.shard_cache.shards import DATA, NAMES, SHARDS, SIZE, Make, held, read, until
from trainer.data.shard_cache import cache
from trainer.data.shard_cache.files import ABANDONED_SECONDS


def test_a_shard_is_fetched_once_and_shared_by_content(store: ObjectStore, make: Make, tmp_path: Path) -> None:
    copies = make()
    assert [read(copies, shard) for shard in SHARDS] == DATA
    elsewhere = [replace(shard, path="renamed.arrow") for shard in SHARDS]
    assert [read(make(shards=elsewhere), shard) for shard in elsewhere] == DATA
    assert [store.count(shard.path) for shard in SHARDS] == [1, 1, 1, 1]
    assert held(tmp_path / "cache") == sorted(NAMES)


def test_the_least_recently_used_go_and_nothing_else_ever(store: ObjectStore, make: Make, tmp_path: Path) -> None:
    place = tmp_path / "cache"
    (place / ("e" * 64 + ".arrow")).mkdir(parents=True)
    foreign = ["notes.txt", "x.arrow", "x.partial", "x.lock", f"{'f' * 63}.arrow", f"{'f' * 64}.arrow.bak"]
    for name in foreign:
        (place / name).write_bytes(b"x" * SIZE)
    old = place / f"{'a' * 64}.arrow"
    old.write_bytes(b"x" * SIZE)
    os.utime(old, (1, 1))
    copies = make(room=2)
    kept = sorted([*foreign, "e" * 64 + ".arrow"])
    for used, there in ((0, (0,)), (1, (0, 1)), (0, (0, 1)), (2, (0, 2)), (3, (2, 3))):
        assert read(copies, SHARDS[used]) == DATA[used]
        mine = [NAMES[i] for i in there] + ([old.name] if len(there) == 1 else [])
        assert held(place) == sorted([*kept, *mine])
    assert all((place / name).read_bytes() == b"x" * SIZE for name in foreign)


def test_a_mapped_copy_outlives_its_removal(make: Make) -> None:
    copies = make(room=1)
    with open(copies.path(SHARDS[0]), "rb") as file:
        copies.path(SHARDS[1])
        assert not os.path.exists(file.name) and file.read() == DATA[0]


def test_partials_of_other_hosts_go_when_they_are_old(make: Make, tmp_path: Path) -> None:
    place = tmp_path / "cache"
    place.mkdir()
    new, old = (place / f"{'a' * 64}.far-away.{digit * 32}.partial" for digit in "01")
    for path in (new, old):
        path.write_bytes(b"x")
    long_ago = time.time() - ABANDONED_SECONDS - 1
    os.utime(old, (long_ago, long_ago))
    make()
    assert held(place) == [new.name]


@pytest.mark.parametrize("damage", ["flip", "cut"])
def test_a_copy_that_was_changed_on_disk_is_fetched_again(store, make: Make, damage: str) -> None:
    copies = make()
    path = Path(copies.path(SHARDS[0]))
    data = bytearray(DATA[0])
    data[SIZE // 2] ^= 16
    path.write_bytes(data if damage == "flip" else data[:-1])
    assert read(copies, SHARDS[0]) == DATA[0]
    assert store.count("0.arrow") == 2


def test_fetched_ahead_in_order_as_far_as_it_fits(store: ObjectStore, make: Make, tmp_path: Path) -> None:
    copies = make(room=3)
    copies.path(SHARDS[3])
    copies.fetch_ahead([SHARDS[2], SHARDS[1], SHARDS[0], SHARDS[3]])  # the fourth would push out the first
    until(lambda: held(tmp_path / "cache") == sorted(NAMES[:3]))
    time.sleep(0.1)
    gets = [path for method, path in store.requests if method == "GET" and ".arrow" in path]
    assert [path[-7:] for path in gets] == ["3.arrow", "2.arrow", "1.arrow", "0.arrow"]
    assert [read(copies, shard) for shard in SHARDS[:3]] == DATA[:3]
    assert len(gets) == sum(method == "GET" and ".arrow" in path for method, path in store.requests)


def test_new_wishes_replace_old_ones(store: ObjectStore, make: Make, tmp_path: Path) -> None:
    store.fail("slow", "0.arrow", times=1)
    copies = make()
    copies.fetch_ahead(SHARDS[:3])
    until(lambda: store.count("0.arrow"))
    copies.fetch_ahead([SHARDS[3]])
    store.released.set()
    until(lambda: held(tmp_path / "cache") == sorted([NAMES[0], NAMES[3]]))
    assert store.count("1.arrow") == 0


def test_an_error_ahead_is_raised_once_for_its_own_shard(store: ObjectStore, make: Make) -> None:
    store.fail(403, "0.arrow", times=1)
    copies = make()
    copies.fetch_ahead(SHARDS[:2])
    until(lambda: store.count("1.arrow"))
    copies.fetch_ahead(SHARDS[:2])  # asked for again before anybody was told
    assert read(copies, SHARDS[1]) == DATA[1]
    with pytest.raises(StorageError, match=r"pairs/0\.arrow.*credentials"):
        copies.path(SHARDS[0])
    assert read(copies, SHARDS[0]) == DATA[0]


def test_who_waits_for_a_fetch_ahead_gets_its_error(store: ObjectStore, make: Make, monkeypatch) -> None:
    monkeypatch.setattr(cache, "WAITS", (0.3,))
    store.fail(503, "0.arrow", times=2)
    copies = make()
    copies.fetch_ahead(SHARDS[:1])
    until(lambda: store.count("0.arrow"))
    with pytest.raises(StorageError, match="2 tries"):
        copies.path(SHARDS[0])
    assert store.count("0.arrow") == 2


def test_closing_stops_a_fetch_and_leaves_nothing(store: ObjectStore, make: Make, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(cache, "WAITS", (60.0,))
    store.fail(503, "0.arrow")
    copies = make()
    copies.fetch_ahead(SHARDS)
    until(lambda: store.count("0.arrow"))
    begun = time.monotonic()
    copies.close()
    assert time.monotonic() - begun < 2
    assert held(tmp_path / "cache") == []
