"""Shards of a store: each downloaded once and checked; which failures are tried again and which end at once."""

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import ServerDisconnectedError

from schemas.errors import ClozelineError, DataError, StorageError, UsageError
from tests.object_store import ObjectStore
from tests.trainer.data.node_cache.shards import DATA, FOLDER, NAMES, SHARDS, SIZE, Make, held, until
from trainer.data import remote
from trainer.data.remote import RemoteShards


def test_a_shard_is_fetched_once_and_shared_by_content(store: ObjectStore, make: Make, tmp_path: Path) -> None:
    copies = make()
    assert [copies.read(shard) for shard in SHARDS] == DATA
    elsewhere = [replace(shard, path="renamed.arrow") for shard in SHARDS]
    assert [make(shards=elsewhere).read(shard) for shard in elsewhere] == DATA
    assert [store.count(shard.path) for shard in SHARDS] == [1, 1, 1, 1]
    assert held(tmp_path / "cache") == sorted(NAMES)


@pytest.mark.parametrize("damage", ["flip", "cut"])
def test_a_copy_that_was_changed_on_disk_is_fetched_again(
    store: ObjectStore, make: Make, tmp_path: Path, damage: str
) -> None:
    copies = make()
    copies.read(SHARDS[0])
    path = tmp_path / "cache" / NAMES[0]
    data = bytearray(DATA[0])
    data[SIZE // 2] ^= 16
    path.write_bytes(data if damage == "flip" else data[:-1])
    assert copies.read(SHARDS[0]) == DATA[0]
    assert store.count("0.arrow") == 2


def test_closing_ends_a_read_and_leaves_nothing(store: ObjectStore, make: Make, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(remote, "WAITS", (60.0,))
    store.fail(503, "0.arrow")
    copies = make()
    ended = []

    def read() -> None:
        with pytest.raises(remote.ClosedError):
            copies.read(SHARDS[0])
        ended.append(time.monotonic())

    reading = threading.Thread(target=read)
    reading.start()
    until(lambda: store.count("0.arrow"))
    begun = time.monotonic()
    copies.close()
    reading.join(10)
    assert ended and ended[0] - begun < 2
    assert held(tmp_path / "cache") == []


@pytest.mark.parametrize(("fault", "method"), [(503, "HEAD"), (503, "GET"), ("cut", "GET")])
def test_two_failures_are_survived(store: ObjectStore, make: Make, fault: int | str, method: str) -> None:
    """Refused requests, and a connection that is cut in the middle of a body."""
    store.fail(fault, "0.arrow", times=2, method=method)
    assert make().read(SHARDS[0]) == DATA[0]
    assert store.count("0.arrow", method) == 3


def test_failures_without_end_are_an_error_with_url_tries_and_cause(store: ObjectStore, make: Make, tmp_path) -> None:
    store.fail(503, "0.arrow")
    with pytest.raises(StorageError, match=r"s3://corpora/pairs/0\.arrow.* 5 tries.*OSError.* no\b"):
        make().read(SHARDS[0])
    assert store.count("0.arrow") == 5
    assert held(tmp_path / "cache") == []


@pytest.mark.parametrize("method", ["HEAD", "GET"])
@pytest.mark.parametrize(("status", "says"), [(403, "credentials"), (404, "does not exist")])
def test_what_will_not_pass_ends_at_once(store: ObjectStore, make: Make, status: int, says: str, method: str) -> None:
    store.fail(status, "0.arrow", method=method)
    if status == 404:
        store.fail(status, "list-type")  # s3fs looks for a folder of that name before it gives up
    kind = DataError if status == 404 else StorageError
    with pytest.raises(kind, match=rf"s3://corpora/pairs/0\.arrow.*{says}"):
        make().read(SHARDS[0])
    assert store.count("0.arrow", method) == 1


def test_wrong_bytes_are_fetched_again_and_in_the_end_an_error(store: ObjectStore, make: Make, tmp_path) -> None:
    store.fail("flip", "0.arrow", times=1)
    store.fail("flip", "1.arrow")
    copies = make()
    assert copies.read(SHARDS[0]) == DATA[0]
    with pytest.raises(DataError, match=r"1\.arrow has sha256 .*manifest says"):
        copies.read(SHARDS[1])
    assert [store.count("0.arrow"), store.count("1.arrow")] == [2, 5]
    for size, says in ((SIZE + 1, f"has {SIZE:,} bytes"), (SIZE - 1, "has more bytes")):
        with pytest.raises(DataError, match=says):
            make().read(replace(SHARDS[2], bytes=size))
    assert held(tmp_path / "cache") == [NAMES[0]]


@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_a_store_that_hangs_costs_a_bounded_time(store, make: Make, monkeypatch, method: str) -> None:
    monkeypatch.setattr(remote, "STORE_TIMEOUT", 1.0)
    store.fail("hang", "0.arrow", times=1, method=method)
    assert make().read(SHARDS[0]) == DATA[0]
    monkeypatch.setattr(remote, "STORE_TIMEOUT", 0.2)
    store.fail("hang", "1.arrow", method=method)
    begun = time.monotonic()
    with pytest.raises(StorageError, match=r"1\.arrow.* 5 tries.*no answer for 0\.2 seconds"):
        make().read(SHARDS[1])
    assert 1.0 < time.monotonic() - begun < 3


@pytest.mark.parametrize(
    ("error", "expected_tries"),
    [(ConnectionResetError(), 2), (ServerDisconnectedError(), 2), (FileNotFoundError(), 1), (PermissionError(), 1)],
    ids=repr,
)
def test_which_errors_of_stores_may_pass(error: Exception, expected_tries: int, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(remote, "WAITS", (0.0,))
    copies = RemoteShards("memory://pairs", SHARDS, str(tmp_path), SIZE)
    tries = []

    def fail(*_: object, **__: object) -> None:
        tries.append(1)
        raise error

    monkeypatch.setattr(copies._store, "open", fail)
    with pytest.raises(ClozelineError, match=r"memory://pairs/0\.arrow") as caught:
        copies.read(SHARDS[0])
    assert caught.value.exit_code == (3 if isinstance(error, FileNotFoundError) else 5)
    assert len(tries) == expected_tries


def test_what_is_no_folder_of_this_machine_is_a_usage_error(store: ObjectStore, make: Make, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UsageError, match=f"{place} cannot be used"):
            make(place=place)
    with pytest.raises(UsageError, match="is not local"):
        RemoteShards(FOLDER, SHARDS, "s3://corpora/cache", 1 << 20)


def test_a_shard_larger_than_the_cache_is_a_usage_error(store: ObjectStore, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"0\.arrow has 98,304 bytes.*may hold 98,303"):
        RemoteShards(FOLDER, SHARDS, str(tmp_path), SIZE - 1)
