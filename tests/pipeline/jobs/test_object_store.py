"""The pipeline on s3://, against a real S3 server on loopback, with requests that fail on the way to it."""

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from pipeline.readers import inputs
from schemas.manifest import read_manifest
from tests.forked import Command
from tests.object_store import KEYS, ObjectStore
from tests.processes import wait_for


@pytest.fixture
def bucket(store: ObjectStore, corpus: Path):
    """A fresh bucket that holds the corpus."""
    store.reset()
    made = store.bucket("corpora")
    made.put_object(Key="raw/corpus.jsonl", Body=corpus.read_bytes())
    return made


def test_from_s3_to_s3_equals_local_through_two_failed_requests(run, command, store, bucket, corpus, tmp_path) -> None:
    store.fail(503, ".arrow", times=1)
    store.fail(503, ".arrow", times=1, method="PUT")
    s3 = KEYS | {"AWS_ENDPOINT_URL": store.endpoint}
    vocab, nsp = ("--model", "wordpiece", "--size", 160), ("--objective", "nsp")
    for place, source in ((tmp_path, corpus), ("s3://corpora", "s3://corpora/raw/*.jsonl")):
        for arguments in (
            ("shard", "--input", source, "--output", f"{place}/text", "--num_shards", 3),
            ("vocab", "--text", f"{place}/text", "--output", f"{place}/vocab", *vocab),
            ("pairs", "--text", f"{place}/text", "--vocab", f"{place}/vocab", "--output", f"{place}/pairs", *nsp),
            ("verify", f"{place}/pairs"),
        ):
            if place == tmp_path:
                done = command(*arguments)
            else:
                flags = ["--direct_num_workers=2"] if arguments[0] == "shard" else []
                done = run("python", "-m", "pipeline", *arguments, *flags, **s3)
            assert done.returncode == 0, done.stderr
    assert [fault.times for fault in store.faults] == [0, 0]
    local = {
        str(path.relative_to(tmp_path)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in tmp_path.rglob("*.*")
        if path.is_file() and path.name not in ("manifest.json", "card.html")
    }
    remote = {
        item.key: hashlib.sha256(item.get()["Body"].read()).hexdigest()
        for item in bucket.objects.all()
        if not item.key.startswith("raw/") and not item.key.endswith(("manifest.json", "card.html"))
    }
    assert remote == local


@pytest.mark.parametrize("shuffle", ["files", "merged", "service"])
def test_each_way_of_shuffling_fetches_what_it_needs_and_no_more(
    command, store, bucket, monkeypatch: pytest.MonkeyPatch, shuffle: str
) -> None:
    """Counted at the server, with several runs: requests, and bytes fetched for each byte stored."""
    for name, value in (KEYS | {"AWS_ENDPOINT_URL": store.endpoint}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(inputs, "SPLIT_BYTES", 20_000)
    source, output = "s3://corpora/raw/*.jsonl", f"s3://corpora/{shuffle}"
    done = command("shard", "--input", source, "--output", output, "--num_shards", 6, "--shuffle", shuffle)
    assert done.returncode == 0, done.stderr

    runs = store.count(".run", "PUT")
    stored = store.transferred(".run", "PUT")
    assert runs > 3
    assert store.count(".run", "HEAD") == 0
    if shuffle == "service":
        assert store.count(".run") <= 2 * runs
        assert store.transferred(".run") <= 1.1 * stored
    else:
        assert store.count(".run") <= 6 * runs
        assert store.transferred(".run") == stored


def test_what_is_not_there_is_a_clear_error(run, store, bucket) -> None:
    s3 = KEYS | {"AWS_ENDPOINT_URL": store.endpoint}
    shard = ("python", "-m", "pipeline", "shard", "--output", "s3://corpora/x", "--input")
    done = run(*shard, "s3://corpora/none/*.jsonl", **s3)
    assert done.returncode == 2 and "matches no file" in done.stderr
    for pattern in ("s3://nobucket/none.jsonl", "s3://nobucket/*.jsonl"):
        done = run(*shard, pattern, **s3)
        assert done.returncode == 5 and "the bucket nobucket does not exist or cannot be listed" in done.stderr


PASSES = 16
"""Each of the three text shards gives so many pair shards, which takes long enough to be killed in the middle."""


def start_pairs(store: ObjectStore, text: Path, vocab: Path, *flags: object) -> subprocess.Popen[str]:
    """`pairs` with two workers, from a local folder into the bucket."""
    words = ["--text", text, "--vocab", vocab, "--output", "s3://corpora/pairs", "--direct_num_workers=2"]
    shape = ["--objective", "nsp", "--max_length", 32, "--dupe_factor", PASSES]
    return Command(
        ["python", "-m", "pipeline", "pairs", *words, *shape, *flags],
        os.environ | KEYS | {"AWS_ENDPOINT_URL": store.endpoint},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def kill_in_the_middle(process: subprocess.Popen[str], store: ObjectStore, uploads: int) -> None:
    """SIGKILL once so many shards have been finished."""
    before = store.count(".arrow.json", "PUT")
    wait_for(lambda: store.count(".arrow.json", "PUT") >= before + uploads, "too few shards", process, seconds=120)
    process.kill()
    process.communicate()


@pytest.mark.thorough
def test_two_killed_jobs_in_one_folder_and_then_the_first_one_again(command, store, bucket, text, vocab, tmp_path):
    """Neither takes a piece of the other, and the first one makes none of its own again."""
    kill_in_the_middle(start_pairs(store, text, vocab), store, 8)
    kill_in_the_middle(start_pairs(store, text, vocab, "--seed", 7), store, 3)
    assert {item.key.split("/")[1][:7] for item in bucket.objects.filter(Prefix="pairs/")} == {"_lease-", "_unfini"}

    finished = store.count(".arrow.json", "PUT")
    process = start_pairs(store, text, vocab)
    printed, _ = process.communicate(timeout=240)
    assert process.returncode == 0, printed
    assert store.count(".arrow.json", "PUT") - finished <= 3 * PASSES - 8

    shape = ("--objective", "nsp", "--max_length", 32, "--dupe_factor", PASSES)
    done = command("pairs", "--text", text, "--vocab", vocab, "--output", tmp_path / "pairs", *shape)
    assert done.returncode == 0, done.stderr
    expected = {shard.path: shard.sha256 for shard in read_manifest(str(tmp_path / "pairs"), "pairs").shards}
    found = {}
    for item in bucket.objects.filter(Prefix="pairs/"):
        name = item.key.removeprefix("pairs/")
        found[name] = hashlib.sha256(item.get()["Body"].read()).hexdigest()
    assert {name: digest for name, digest in found.items() if name.endswith(".arrow")} == expected
    others = {name for name in found if not name.endswith(".arrow")}
    local = {str(path.relative_to(tmp_path / "pairs")) for path in (tmp_path / "pairs").rglob("*.*")}
    assert others == {name for name in local if not name.endswith(".arrow")}
