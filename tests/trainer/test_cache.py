"""The cache of remote shards, against a real S3 server with faults on the way to it, and with processes killed."""

import contextlib
import errno
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import aiohttp
import botocore.exceptions
import pytest
import s3fs

from schemas.errors import ClozelineError, DataError, UsageError
from schemas.manifest import Shard
from tests.object_store import KEYS, ObjectStore
from trainer.stream import cache, fetching
from trainer.stream.cache import ShardCache
from trainer.stream.copies import STALE

SIZE = 96 << 10
FOLDER = "s3://corpora/pairs"
DATA = [random.Random(seed).randbytes(SIZE) for seed in range(4)]
SHARDS = [
    Shard(path=f"{i}.arrow", rows=1, tokens=1, bytes=SIZE, sha256=hashlib.sha256(data).hexdigest(), fingerprint="")
    for i, data in enumerate(DATA)
]
NAMES = [f"{shard.sha256}.arrow" for shard in SHARDS]
READER = """
import json, sys
from schemas.errors import ClozelineError
from schemas.manifest import Shard
from trainer.stream import cache, fetching
folder, place, most, silence, shards = sys.argv[1:]
fetching.SILENCE, cache.WAITS = float(silence), (0.01,) * 4
shards = [Shard(**fields) for fields in json.loads(shards)]
try:
    copies = cache.ShardCache(folder, shards, place, int(most))
    for shard in shards:
        while True:
            try:
                with open(copies.path(shard), "rb") as file:
                    assert len(file.read()) == shard.bytes
                break
            except FileNotFoundError:
                pass
except ClozelineError as error:
    sys.exit(f"{error.exit_code} {error}")
"""


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectStore]:
    made = ObjectStore()
    bucket = made.bucket("corpora")
    for shard, data in zip(SHARDS, DATA, strict=True):
        bucket.put_object(Key=f"pairs/{shard.path}", Body=data)
    yield made
    made.stop()


@pytest.fixture
def store(server: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    """The server without faults, where s3:// of this process and its children leads; tries follow at once."""
    # botocore's own retries would hide ours
    for name, value in (KEYS | {"AWS_ENDPOINT_URL": server.endpoint, "AWS_MAX_ATTEMPTS": "1"}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(cache, "WAITS", (0.01,) * 4)
    s3fs.S3FileSystem.clear_instance_cache()
    server.reset()
    yield server
    server.reset()


Make = Callable[..., ShardCache]


@pytest.fixture
def make(store: ObjectStore, tmp_path: Path) -> Iterator[Make]:
    """Caches in tmp_path/cache, by default with room for all shards."""
    made: list[ShardCache] = []

    def call(room: int = 4, place: Path = tmp_path / "cache", shards: list[Shard] = SHARDS) -> ShardCache:
        made.append(ShardCache(FOLDER, shards, str(place), room * SIZE))
        return made[-1]

    yield call
    for copies in made:
        copies.close()


@contextlib.contextmanager
def reader(place: Path, room: int = 4, silence: float = 60, shards: list[Shard] = SHARDS):
    """A process that reads shards through the cache, killed at the end at the latest."""
    fields = json.dumps([shard.model_dump() for shard in shards])
    command = [sys.executable, "-c", READER, FOLDER, place, room * SIZE, silence, fields]
    process = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def held(place: Path) -> list[str]:
    return sorted(os.listdir(place))


def read(copies: ShardCache, shard: Shard) -> bytes:
    return Path(copies.path(shard)).read_bytes()


def until(condition: Callable[[], object], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


@contextlib.contextmanager
def mounted(place: Path, options: str) -> Iterator[None]:
    """A small file system of its own, where this user may have one."""
    place.mkdir()
    if os.getuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], check=False).returncode:
        pytest.skip("cannot mount a file system here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def test_a_shard_is_fetched_once_and_shared_by_content(store: ObjectStore, make: Make, tmp_path: Path) -> None:
    copies = make()
    assert [read(copies, shard) for shard in SHARDS] == DATA
    elsewhere = [shard.model_copy(update={"path": "renamed.arrow"}) for shard in SHARDS]
    assert [read(make(shards=elsewhere), shard) for shard in elsewhere] == DATA
    assert [store.count(shard.path) for shard in SHARDS] == [1, 1, 1, 1]
    assert held(tmp_path / "cache") == sorted(NAMES)


@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_two_failures_are_survived(store: ObjectStore, make: Make, method: str) -> None:
    store.fail(503, "0.arrow", times=2, method=method)
    assert read(make(), SHARDS[0]) == DATA[0]
    assert store.count("0.arrow", method) == 3


def test_a_connection_cut_mid_body_is_survived(store: ObjectStore, make: Make) -> None:
    store.fail("cut", "0.arrow", times=2)
    assert read(make(), SHARDS[0]) == DATA[0]


def test_failures_without_end_are_an_error_with_url_tries_and_cause(store: ObjectStore, make: Make, tmp_path) -> None:
    store.fail(503, "0.arrow")
    with pytest.raises(DataError, match=r"s3://corpora/pairs/0\.arrow.* 5 tries.*OSError.* no\b"):
        make().path(SHARDS[0])
    assert store.count("0.arrow") == 5
    assert held(tmp_path / "cache") == []


@pytest.mark.parametrize("method", ["HEAD", "GET"])
@pytest.mark.parametrize(("status", "says"), [(403, "credentials"), (404, "does not exist")])
def test_what_will_not_pass_ends_at_once(store: ObjectStore, make: Make, status: int, says: str, method: str) -> None:
    store.fail(status, "0.arrow", method=method)
    if status == 404:
        store.fail(status, "list-type")  # s3fs looks for a folder of that name before it gives up
    with pytest.raises(DataError, match=rf"s3://corpora/pairs/0\.arrow.*{says}"):
        make().path(SHARDS[0])
    assert store.count("0.arrow", method) == 1


def test_wrong_bytes_once_are_fetched_again_and_twice_are_an_error(store: ObjectStore, make: Make, tmp_path) -> None:
    store.fail("flip", "0.arrow", times=1)
    store.fail("flip", "1.arrow")
    copies = make()
    assert read(copies, SHARDS[0]) == DATA[0]
    with pytest.raises(DataError, match=r"1\.arrow has sha256 .*manifest says"):
        copies.path(SHARDS[1])
    assert [store.count("0.arrow"), store.count("1.arrow")] == [2, 2]
    for size, says in ((SIZE + 1, f"has {SIZE:,} bytes"), (SIZE - 1, "has more bytes")):
        with pytest.raises(DataError, match=says):
            make().path(SHARDS[2].model_copy(update={"bytes": size}))
    assert held(tmp_path / "cache") == [NAMES[0]]


@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_a_store_that_hangs_costs_a_bounded_time(store, make: Make, monkeypatch, method: str) -> None:
    monkeypatch.setattr(fetching, "SILENCE", 1.0)
    store.fail("hang", "0.arrow", times=1, method=method)
    assert read(make(), SHARDS[0]) == DATA[0]
    monkeypatch.setattr(fetching, "SILENCE", 0.2)
    store.fail("hang", "1.arrow", method=method)
    begun = time.monotonic()
    with pytest.raises(DataError, match=r"1\.arrow.* 5 tries.*no answer for 0\.2 seconds"):
        make().path(SHARDS[1])
    assert 1.0 < time.monotonic() - begun < 3


def test_a_process_whose_store_hangs_ends(store: ObjectStore, tmp_path: Path) -> None:
    store.fail("hang", "0.arrow")
    with reader(tmp_path / "cache", silence=0.2) as process:
        assert "5 tries" in process.communicate(timeout=30)[1]
        assert process.returncode == 1


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
    copies, found = make(room=1), []
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
    place, most = tmp_path / "cache", 0
    place.mkdir()
    with reader(place, room=1) as one, reader(place, room=1, shards=SHARDS[::-1]) as other:
        end = time.monotonic() + 40
        while None in (one.poll(), other.poll()) and time.monotonic() < end:
            with contextlib.suppress(FileNotFoundError):
                most = max(most, sum(os.stat(place / name).st_size for name in os.listdir(place)))
            time.sleep(0.002)
        assert (one.returncode, other.returncode) == (0, 0)
    assert most == SIZE


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
    long_ago = time.time() - STALE - 1
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
    copies.ahead([SHARDS[2], SHARDS[1], SHARDS[0], SHARDS[3]])  # the fourth would push out the first
    until(lambda: held(tmp_path / "cache") == sorted(NAMES[:3]))
    time.sleep(0.1)
    gets = [path for method, path in store.requests if method == "GET" and ".arrow" in path]
    assert [path[-7:] for path in gets] == ["3.arrow", "2.arrow", "1.arrow", "0.arrow"]
    assert [read(copies, shard) for shard in SHARDS[:3]] == DATA[:3]
    assert len(gets) == sum(method == "GET" and ".arrow" in path for method, path in store.requests)


def test_new_wishes_replace_old_ones(store: ObjectStore, make: Make, tmp_path: Path) -> None:
    store.fail("slow", "0.arrow", times=1)
    copies = make()
    copies.ahead(SHARDS[:3])
    until(lambda: store.count("0.arrow"))
    copies.ahead([SHARDS[3]])
    store.released.set()
    until(lambda: held(tmp_path / "cache") == sorted([NAMES[0], NAMES[3]]))
    assert store.count("1.arrow") == 0


def test_an_error_ahead_is_raised_once_for_its_own_shard(store: ObjectStore, make: Make) -> None:
    store.fail(403, "0.arrow", times=1)
    copies = make()
    copies.ahead(SHARDS[:2])
    until(lambda: store.count("1.arrow"))
    copies.ahead(SHARDS[:2])  # asked for again before anybody was told
    assert read(copies, SHARDS[1]) == DATA[1]
    with pytest.raises(DataError, match=r"pairs/0\.arrow.*credentials"):
        copies.path(SHARDS[0])
    assert read(copies, SHARDS[0]) == DATA[0]


def test_who_waits_for_a_fetch_ahead_gets_its_error(store: ObjectStore, make: Make, monkeypatch) -> None:
    monkeypatch.setattr(cache, "WAITS", (0.3,))
    store.fail(503, "0.arrow", times=2)
    copies = make()
    copies.ahead(SHARDS[:1])
    until(lambda: store.count("0.arrow"))
    with pytest.raises(DataError, match="2 tries"):
        copies.path(SHARDS[0])
    assert store.count("0.arrow") == 2


def test_closing_stops_a_fetch_and_leaves_nothing(store: ObjectStore, make: Make, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(cache, "WAITS", (60.0,))
    store.fail(503, "0.arrow")
    copies = make()
    copies.ahead(SHARDS)
    until(lambda: store.count("0.arrow"))
    begun = time.monotonic()
    copies.close()
    assert time.monotonic() - begun < 2
    assert held(tmp_path / "cache") == []


def test_a_full_disk_is_an_error_that_keeps_what_is_good(make: Make, tmp_path: Path) -> None:
    place = tmp_path / "small"
    with mounted(place, "size=256k"):
        copies = make(place=place)
        for i in (0, 1):
            copies.path(SHARDS[i])
        with pytest.raises(DataError, match=rf"disk of the cache folder {place} is full: [\d,]+ bytes are free"):
            copies.path(SHARDS[2])
        assert held(place) == sorted(NAMES[:2])
        assert [read(copies, SHARDS[i]) for i in (0, 1)] == DATA[:2]
        make(room=2, place=place).path(SHARDS[2])  # allowed less, it fits


def test_a_read_only_folder_is_a_usage_error(make: Make, tmp_path: Path) -> None:
    place = tmp_path / "frozen"
    with contextlib.ExitStack() as stack:
        if os.getuid():
            place.mkdir(0o555)
        else:
            stack.enter_context(mounted(place, "ro,size=64k"))
        with pytest.raises(UsageError, match=rf"{place} cannot be used.*can be written"):
            make(place=place)


def test_what_is_no_folder_of_this_machine_is_a_usage_error(store: ObjectStore, make: Make, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UsageError, match=f"{place} cannot be used"):
            make(place=place)
    with pytest.raises(UsageError, match="is not local"):
        ShardCache(FOLDER, SHARDS, "s3://corpora/cache", 1 << 20)


def test_a_shard_larger_than_the_cache_is_a_usage_error(make: Make) -> None:
    with pytest.raises(UsageError, match=r"0\.arrow has 98,304 bytes.*may hold 98,303"):
        ShardCache(FOLDER, SHARDS, str(make()._copies.folder), SIZE - 1)


def test_a_hash_that_is_a_path_is_refused(make: Make) -> None:
    with pytest.raises(DataError, match="which is none"):
        make(shards=[SHARDS[0].model_copy(update={"sha256": "../../x"})])


class HttpError(Exception):
    """As gcsfs has it."""

    def __init__(self, code: int):
        self.code = code


CLIENT = botocore.exceptions.ClientError
PASSING = [
    TimeoutError(),
    ConnectionResetError(),
    OSError(errno.EBUSY, "reduce your request rate"),
    CLIENT({"ResponseMetadata": {"HTTPStatusCode": 500}, "Error": {}}, "GetObject"),  # type: ignore
    botocore.exceptions.EndpointConnectionError(endpoint_url="x"),
    botocore.exceptions.ReadTimeoutError(endpoint_url="x"),
    botocore.exceptions.ResponseStreamingError(error="x"),
    botocore.exceptions.IncompleteReadError(actual_bytes=1, expected_bytes=2),
    aiohttp.ServerDisconnectedError(),
    aiohttp.ClientPayloadError(),
    botocore.exceptions.FlexibleChecksumError(error_msg="x"),
    HttpError(429),
    HttpError(503),
]
LASTING = [
    FileNotFoundError(),
    PermissionError(),
    OSError("Forbidden: bucket/x"),
    CLIENT({"ResponseMetadata": {"HTTPStatusCode": 400}, "Error": {}}, "GetObject"),  # type: ignore
    botocore.exceptions.NoCredentialsError(),
    HttpError(401),
    ValueError("Bad Request"),
]


@pytest.mark.parametrize("error", PASSING + LASTING, ids=repr)
def test_which_errors_of_stores_may_pass(error: Exception, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(cache, "WAITS", (0.0,))
    copies, tries = ShardCache("memory://pairs", SHARDS, str(tmp_path), SIZE), []

    def fail(*_: object, **__: object) -> None:
        tries.append(1)
        raise error

    monkeypatch.setattr(copies._fs, "open", fail)
    with pytest.raises(ClozelineError, match=r"memory://pairs/0\.arrow") as caught:
        copies.path(SHARDS[0])
    assert caught.value.exit_code == 3
    assert len(tries) == (2 if error in PASSING else 1)
