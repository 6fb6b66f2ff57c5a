"""A store that fails, hangs, refuses or sends wrong bytes: what is tried again, and what ends at once."""

import errno
import time
from dataclasses import replace
from pathlib import Path

import aiohttp
import botocore.exceptions
import pytest

from schemas.errors import ClozelineError, DataError, StorageError
from tests.object_store import ObjectStore
from tests.trainer.data.shard_cache.shards import DATA, NAMES, SHARDS, SIZE, Make, held, read
from trainer.data.shard_cache import cache, download
from trainer.data.shard_cache.cache import ShardCache


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
    with pytest.raises(StorageError, match=r"s3://corpora/pairs/0\.arrow.* 5 tries.*OSError.* no\b"):
        make().path(SHARDS[0])
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
            make().path(replace(SHARDS[2], bytes=size))
    assert held(tmp_path / "cache") == [NAMES[0]]


@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_a_store_that_hangs_costs_a_bounded_time(store, make: Make, monkeypatch, method: str) -> None:
    monkeypatch.setattr(download, "STORE_TIMEOUT", 1.0)
    store.fail("hang", "0.arrow", times=1, method=method)
    assert read(make(), SHARDS[0]) == DATA[0]
    monkeypatch.setattr(download, "STORE_TIMEOUT", 0.2)
    store.fail("hang", "1.arrow", method=method)
    begun = time.monotonic()
    with pytest.raises(StorageError, match=r"1\.arrow.* 5 tries.*no answer for 0\.2 seconds"):
        make().path(SHARDS[1])
    assert 1.0 < time.monotonic() - begun < 3


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
    copies = ShardCache("memory://pairs", SHARDS, str(tmp_path), SIZE)
    tries = []

    def fail(*_: object, **__: object) -> None:
        tries.append(1)
        raise error

    monkeypatch.setattr(copies._store, "open", fail)
    with pytest.raises(ClozelineError, match=r"memory://pairs/0\.arrow") as caught:
        copies.path(SHARDS[0])
    assert caught.value.exit_code == (3 if isinstance(error, FileNotFoundError) else 5)
    assert len(tries) == (2 if error in PASSING else 1)
