"""A cache folder that several processes share: made once, bounded, and whole whoever is killed or whatever is full."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from schemas.errors import UsageError
from schemas.manifest import Shard
from schemas.randomness import key, permutation
from tests.forked import Command
from tests.object_store import ObjectStore
from tests.trainer.data.node_cache.shards import DATA, FOLDER, NAMES, SHARDS, SIZE, Make, held, until
from trainer.data import node_cache, remote
from trainer.data.node_cache import NodeCache
from trainer.data.remote import RemoteShards


@contextlib.contextmanager
def mounted(place: Path, options: str) -> Iterator[None]:
    """Mount a small file system, if this user is allowed to."""
    place.mkdir()
    if os.getuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], check=False).returncode:
        pytest.skip("cannot mount a file system here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def test_the_least_recently_used_go_and_nothing_else_ever(store: ObjectStore, make: Make, tmp_path: Path) -> None:
    place = tmp_path / "cache"
    (place / ("e" * 64 + ".shard")).mkdir(parents=True)
    foreign = ["notes.txt", "x.shard", "x.partial", "x.lock", f"{'f' * 63}.shard", f"{'f' * 64}.shard.bak"]
    for name in foreign:
        (place / name).write_bytes(b"x" * SIZE)
    old = place / f"{'a' * 64}.shard"
    old.write_bytes(b"x" * SIZE)
    os.utime(old, (1, 1))
    copies = make(room=2)
    kept = sorted([*foreign, "e" * 64 + ".shard"])
    for used, there in ((0, (0,)), (1, (0, 1)), (0, (0, 1)), (2, (0, 2)), (3, (2, 3))):
        assert copies.read(SHARDS[used]) == DATA[used]
        mine = [NAMES[i] for i in there] + ([old.name] if len(there) == 1 else [])
        assert held(place) == sorted([*kept, *mine])
    assert all((place / name).read_bytes() == b"x" * SIZE for name in foreign)


def test_what_a_killed_writer_reserved_is_free_again(make: Make, tmp_path: Path) -> None:
    place = tmp_path / "cache"
    place.mkdir()
    for shard in SHARDS[:2]:
        (place / f"{shard.sha256}.partial").write_bytes(b"x" * SIZE)
        (place / f"{shard.sha256}.lock").touch()
    assert make(room=1).read(SHARDS[0]) == DATA[0]
    assert held(place) == [NAMES[0]]


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("no")

    cache = NodeCache(str(tmp_path), 2, time.sleep)
    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="no"), cache.lock("a" * 64):
        cache.add("a" * 64, b"12")
    assert held(tmp_path) == []


def test_a_full_disk_is_said_once_and_ends_nothing(make: Make, tmp_path: Path, capsys) -> None:
    place = tmp_path / "small"
    with mounted(place, "size=256k"):
        copies = make(place=place)
        for i in (0, 1):
            copies.read(SHARDS[i])
        assert [copies.read(SHARDS[2]) for _ in range(2)] == [DATA[2]] * 2
        assert capsys.readouterr().out.count(f"The disk of the cache folder {place} is full") == 1
        assert held(place) == sorted(NAMES[:2])
        assert [copies.read(SHARDS[i]) for i in (0, 1)] == DATA[:2]
        make(room=2, place=place).read(SHARDS[2])  # allowed less, it fits


def test_a_read_only_folder_is_a_usage_error(make: Make, tmp_path: Path) -> None:
    place = tmp_path / "frozen"
    with contextlib.ExitStack() as stack:
        if os.getuid():
            place.mkdir(0o555)
        else:
            stack.enter_context(mounted(place, "ro,size=64k"))
        with pytest.raises(UsageError, match=rf"{place} cannot be used.*can be written"):
            make(place=place)


# Several processes


@contextlib.contextmanager
def reader(place: Path, room: int = 4, silence: float = 60, shards: list[Shard] = SHARDS):
    """A process that reads shards through the cache, killed at the end at the latest."""
    fields = json.dumps([asdict(shard) for shard in shards])
    program = "tests.trainer.data.node_cache.read_all"
    command = ["python", "-m", program, FOLDER, place, room * SIZE, silence, fields]
    process = Command(command, stderr=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_two_processes_fetch_each_shard_once(store: ObjectStore, tmp_path: Path) -> None:
    for shard in SHARDS:
        store.fail("slow", shard.path, times=1)
    timer = threading.Timer(4, store.released.set)
    timer.start()
    with reader(tmp_path / "cache") as one, reader(tmp_path / "cache") as other:
        for process in (one, other):
            assert process.communicate(timeout=40)[1] == ""
            assert process.returncode == 0
    timer.cancel()  # or it would release what a later test holds
    assert [store.count(shard.path) for shard in SHARDS] == [1, 1, 1, 1]
    assert held(tmp_path / "cache") == sorted(NAMES)


def test_processes_in_a_tight_cache_neither_wait_forever_nor_exceed_it(store: ObjectStore, tmp_path: Path) -> None:
    place = tmp_path / "cache"
    most = 0
    place.mkdir()
    with reader(place, room=1) as one, reader(place, room=1, shards=SHARDS[::-1]) as other:
        end = time.monotonic() + 40
        while None in (one.poll(), other.poll()) and time.monotonic() < end:
            with contextlib.suppress(FileNotFoundError):
                most = max(most, sum(os.stat(place / name).st_size for name in os.listdir(place)))
            time.sleep(0.002)
        assert (one.returncode, other.returncode) == (0, 0)
    assert most == SIZE


def test_killed_while_fetching_then_started_again(store: ObjectStore, make: Make, tmp_path: Path) -> None:
    place = tmp_path / "cache"
    store.fail("slow", "1.arrow", times=1)
    with reader(place) as process:
        until(lambda: store.count("1.arrow") == 1)
        lock = f"{SHARDS[1].sha256}.lock"
        assert held(place) == sorted([NAMES[0], lock])
        process.send_signal(signal.SIGKILL)
        process.wait()
    copies = make()
    assert [copies.read(shard) for shard in SHARDS] == DATA
    assert held(place) == sorted(NAMES)


def test_who_waits_for_a_killed_process_takes_over(store: ObjectStore, make: Make, tmp_path: Path) -> None:
    """Also with room for one shard only, which another thread uses for another shard at the same time."""
    place = tmp_path / "cache"
    store.fail("slow", "0.arrow", times=1)
    copies = make(room=1)
    found = []
    with reader(place, room=1) as process:
        until(lambda: store.count("0.arrow") == 1)
        waiting = [threading.Thread(target=lambda i=i: found.append(copies.read(SHARDS[i]))) for i in (0, 1)]
        for thread in waiting:
            thread.start()
        time.sleep(0.3)
        assert DATA[0] not in found and store.count("0.arrow") == 1
        process.kill()
        for thread in waiting:
            thread.join(10)
    assert sorted(found) == sorted(DATA[:2])


def test_a_process_whose_store_hangs_ends(store: ObjectStore, tmp_path: Path) -> None:
    store.fail("hang", "0.arrow")
    with reader(tmp_path / "cache", silence=0.2) as process:
        assert "5 tries" in process.communicate(timeout=30)[1]
        assert process.returncode == 1


# A corpus larger than the cache

MANY_FOLDER = "s3://many/pairs"
SMALL = 4 << 10
COUNT = 40
ROOM = 24
WINDOW = 3
MANY_DATA = [random.Random(1000 + seed).randbytes(SMALL) for seed in range(COUNT)]
MANY = [
    Shard(
        path=f"many-{i:02d}.arrow", rows=1, tokens=1, bytes=SMALL, sha256=hashlib.sha256(d).hexdigest(), fingerprint=""
    )
    for i, d in enumerate(MANY_DATA)
]


@pytest.fixture
def corpus(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    monkeypatch.setattr(remote, "WINDOW_SHARDS", WINDOW)
    bucket = store.bucket("many")
    for shard, data in zip(MANY, MANY_DATA, strict=True):
        bucket.put_object(Key=f"pairs/{shard.path}", Body=data)
    yield store


def read_epoch(copies: list[RemoteShards], epoch: int) -> None:
    """Read every shard once, in the epoch's order, by several ranks in turn."""
    order = permutation(COUNT, key("epoch", epoch)).tolist()
    for place, number in enumerate(order):
        rank = copies[place % len(copies)]
        assert rank.read(MANY[number]) == MANY_DATA[number]


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_is_there_is_used(corpus: ObjectStore, tmp_path: Path, ranks: int) -> None:
    place = tmp_path / "cache"
    copies = [RemoteShards(MANY_FOLDER, MANY, str(place), ROOM * SMALL) for _ in range(ranks)]
    read_epoch(copies, 0)
    assert corpus.count("many-") == COUNT

    for epoch in (1, 2, 3):
        before = corpus.count("many-"), corpus.transferred("many-")
        read_epoch(copies, epoch)
        fetched = corpus.count("many-") - before[0]
        assert COUNT - ROOM <= fetched <= COUNT - ROOM + 2 * WINDOW
        assert corpus.transferred("many-") - before[1] == fetched * SMALL
        assert len(held(place)) <= ROOM + 4  # and the locks of the moment
    for one in copies:
        one.close()
    assert len([name for name in held(place) if name.endswith(".shard")]) <= ROOM


def test_copies_of_other_corpora_go_first_when_they_are_forgotten(corpus: ObjectStore, tmp_path: Path) -> None:
    place = tmp_path / "cache"
    place.mkdir()
    old = [place / f"{digit * 64}.shard" for digit in "abc"]
    for path in old:
        path.write_bytes(b"x" * SMALL)
    in_use = place / f"{'d' * 64}.shard"
    in_use.write_bytes(b"x" * SMALL)
    for path in old:
        long_ago = path.stat().st_mtime - node_cache.FORGOTTEN_SECONDS - 60
        os.utime(path, (long_ago, long_ago))

    copies = RemoteShards(MANY_FOLDER, MANY, str(place), 8 * SMALL)
    for number in range(7):
        copies.read(MANY[number])
    copies.close()
    assert not any(path.exists() for path in old) and in_use.exists()
    assert all((place / f"{shard.sha256}.shard").exists() for shard in MANY[:7])
