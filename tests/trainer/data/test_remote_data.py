"""Training from s3://, against a real S3 server on loopback, with requests that fail on the way to it."""

import json
from pathlib import Path

import pytest

from tests.object_store import ObjectStore


@pytest.fixture(scope="module")
def store(store: ObjectStore, pairs: Path) -> ObjectStore:
    """The server, with the pairs in a bucket."""
    bucket = store.bucket("corpora")
    for path in pairs.rglob("*"):
        if path.is_file():
            bucket.put_object(Key=f"pairs/{path.relative_to(pairs)}", Body=path.read_bytes())
    return store


def test_a_run_from_a_store_that_fails_twice_equals_one_from_a_disk(training, store, pairs, tmp_path) -> None:
    store.reset()
    store.fail(503, ".arrow", times=2)
    there = {"data__pairs": "s3://corpora/pairs", "data__cache": tmp_path / "c"}
    done = training.run("python", tmp_path / "s3", store.environment, run__stop_at=3, **there)
    assert done.returncode == 0, done.stderr
    assert training.warm(1, tmp_path / "disk", run__stop_at=3).returncode == 0
    assert training.losses(tmp_path / "s3") == training.losses(tmp_path / "disk")
    names = sorted(path.name for path in (tmp_path / "c").iterdir())
    shards = json.loads((pairs / "manifest.json").read_text())["shards"]
    assert names == sorted(f"{shard['sha256']}.shard" for shard in shards)  # copies, and nothing left over


def test_a_store_that_refuses_ends_the_run_with_its_address(training, store, tmp_path) -> None:
    store.reset()
    store.fail(403, ".arrow")
    there = {"data__pairs": "s3://corpora/pairs", "data__cache": tmp_path / "c"}
    done = training.run("python", tmp_path / "run", store.environment, **there)
    assert done.returncode == 5 and "Traceback" not in done.stderr
    assert "s3://corpora/pairs/pairs-0000" in done.stderr and "credentials" in done.stderr
