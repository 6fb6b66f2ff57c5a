"""Training from s3://, against a real S3 server on loopback, with requests that fail on the way to it."""

import json
import time
from pathlib import Path
from threading import Thread

import pytest

from schemas.masking import Masking
from tests.object_store import ObjectStore
from tests.trainer.data.node_cache.shards import until
from trainer.data.folder import PairFolder
from trainer.data.order import build_sources
from trainer.data.share import RankShare
from trainer.data.stream import BatchFormat, MaskingSchedule, Stream


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
    training.trained(1, tmp_path / "disk", run__stop_at=3)
    assert training.losses(tmp_path / "s3") == training.losses(tmp_path / "disk")
    names = sorted(path.name for path in (tmp_path / "c").iterdir())
    shards = json.loads((pairs / "manifest.json").read_text())["shards"]
    assert names == sorted(f"{shard['sha256']}.shard" for shard in shards)  # copies, and nothing left over


def test_a_stream_that_waits_for_a_store_closes_at_once(store, pairs, tmp_path, monkeypatch) -> None:
    """SIGTERM comes while the next step is prepared, and the store does not answer."""
    store.reset()
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    folder = PairFolder("s3://corpora/pairs", str(tmp_path / "c"))
    store.fail("hang", ".arrow")
    sources = build_sources([folder], None, 3, False)
    stream = Stream(sources, RankShare(0, 1, 1, 24), MaskingSchedule(Masking("whole_word")), 3, BatchFormat(None))
    reading = Thread(target=lambda: stream.batch(0), daemon=True)
    reading.start()
    until(lambda: store.count(".arrow"))

    begun = time.monotonic()
    stream.close()
    assert time.monotonic() - begun < 5
