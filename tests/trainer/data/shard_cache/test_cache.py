"""Several processes on one cache folder: each shard fetched once, and any of them may be killed."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path

from schemas.manifest import Shard
from tests.object_store import ObjectStore
from tests.trainer.data.shard_cache.shards import DATA, FOLDER, NAMES, SHARDS, SIZE, Make, held, read, until


@contextlib.contextmanager
def reader(place: Path, room: int = 4, silence: float = 60, shards: list[Shard] = SHARDS):
    """A process that reads shards through the cache, killed at the end at the latest."""
    fields = json.dumps([asdict(shard) for shard in shards])
    program = "tests.trainer.data.shard_cache.read_all"
    command = [sys.executable, "-m", program, FOLDER, place, room * SIZE, silence, fields]
    process = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_two_processes_fetch_each_shard_once(store: ObjectStore, tmp_path: Path) -> None:
    for shard in SHARDS:
        store.fail("slow", shard.path, times=1)
    threading.Timer(4, store.released.set).start()
    with reader(tmp_path / "cache") as one, reader(tmp_path / "cache") as other:
        for process in (one, other):
            assert process.communicate(timeout=40)[1] == ""
            assert process.returncode == 0
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
        until(lambda: store.count("1.arrow") == 1 and [name for name in held(place) if name.endswith(".partial")])
        living = held(place)
        assert any(name.endswith(".partial") for name in living) and any(name.endswith(".lock") for name in living)
        make()
        assert held(place) == living  # what a living process writes stays
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert held(place) == living
    copies = make()
    assert held(place) == [NAMES[0]]
    assert [read(copies, shard) for shard in SHARDS] == DATA
    assert held(place) == sorted(NAMES)


def test_who_waits_for_a_killed_process_takes_over(store: ObjectStore, make: Make, tmp_path: Path) -> None:
    """With room for one shard only, so that what the dead one reserved must be free again."""
    place = tmp_path / "cache"
    store.fail("slow", "0.arrow", times=1)
    copies = make(room=1)
    found = []
    with reader(place, room=1) as process:
        until(lambda: store.count("0.arrow") == 1)
        waiting = [threading.Thread(target=lambda i=i: found.append(read(copies, SHARDS[i]))) for i in (0, 1)]
        for thread in waiting:
            thread.start()
        time.sleep(0.3)
        assert found == [] and store.count("0.arrow") == 1 and store.count("1.arrow") == 0
        process.kill()
        for thread in waiting:
            thread.join(10)
    assert sorted(found) == sorted(DATA[:2])


def test_a_process_whose_store_hangs_ends(store: ObjectStore, tmp_path: Path) -> None:
    store.fail("hang", "0.arrow")
    with reader(tmp_path / "cache", silence=0.2) as process:
        assert "5 tries" in process.communicate(timeout=30)[1]
        assert process.returncode == 1
