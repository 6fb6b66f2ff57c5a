"""Planning asks a store for nothing but its listing, and workers find out the rest with few, small requests."""

from __future__ import annotations

import gzip
import os
import random
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pipeline.commit.staging import Staging
from pipeline.readers import cut_files, inputs, ranges
from pipeline.readers.inputs import FileRange, Split, plan_splits, read_splits, with_format, write_splits
from pipeline.readers.listing import matching_files
from schemas.errors import DataError
from tests.object_store import ObjectStore
from tests.pipeline.readers.test_inputs import records_of as records

TEXT = b"The cat sat on the mat. It was happy there.\n"
PAGE = b"<rss><p>Some words.</p></rss>"


@pytest.fixture
def bucket(s3: ObjectStore):
    """An empty bucket `plans` that s3:// leads to."""
    made = s3.bucket("plans")
    s3.requests.clear()
    return made


@pytest.mark.parametrize(
    ("suffix", "data"), [("txt", TEXT), ("txt.gz", gzip.compress(TEXT, mtime=0)), ("jsonl", b'{"text":"a"}')]
)
def test_many_files_are_planned_from_the_listing_and_cost_a_worker_two_requests(
    store: ObjectStore, bucket, monkeypatch: pytest.MonkeyPatch, suffix: str, data: bytes
) -> None:
    monkeypatch.setattr(inputs, "MAX_CHECKED_FILES", 10)
    for number in range(20):
        bucket.put_object(Key=f"{suffix}/{number}.{suffix}", Body=data)
    store.requests.clear()

    (split,) = plan_splits(matching_files(f"s3://plans/{suffix}/*.{suffix}"), "auto")
    assert [method for method, path in store.requests if "list-type" not in path] == []
    assert len(store.requests) <= 2

    store.requests.clear()
    for file_range in split.ranges:
        assert len(records(with_format(file_range))) == 1
    assert sorted(method for method, _ in store.requests) == ["GET"] * 20 + ["HEAD"] * 20


def test_few_files_are_opened_before_the_job_starts(store: ObjectStore, bucket) -> None:
    for number in range(20):
        bucket.put_object(Key=f"{number}.txt", Body=TEXT)
    bucket.put_object(Key="17.txt", Body=PAGE)
    store.requests.clear()
    with pytest.raises(DataError, match=r"17\.txt looks like XML"):
        plan_splits(matching_files("s3://plans/*.txt"), "auto")
    assert sum("list-type" not in path for _, path in store.requests) == 20


def test_a_file_that_changes_after_the_listing_is_named(bucket) -> None:
    bucket.put_object(Key="x.jsonl", Body=b'{"text": "a"}\n')
    (split,) = plan_splits(matching_files("s3://plans/*.jsonl"), "auto")
    assert [split.ranges[0].file] == matching_files("s3://plans/x.jsonl")
    assert len(records(split.ranges[0])) == 1

    bucket.put_object(Key="x.jsonl", Body=b'{"text": "b"}\n')
    with pytest.raises(DataError, match=r"x\.jsonl changed while it was read"):
        records(split.ranges[0])


def test_a_file_of_the_wrong_kind_is_refused_by_the_worker_too(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(inputs, "MAX_CHECKED_FILES", 0)
    (tmp_path / "x.txt").write_bytes(PAGE)
    (tmp_path / "y.txt").write_bytes("Café crème. Très bon.\n".encode() * 20)
    (split,) = plan_splits(matching_files(f"{tmp_path}/x.txt"), "auto")
    with pytest.raises(DataError, match=r"x\.txt looks like XML"):
        records(split.ranges[0])
    for wanted in ("auto", "text"):
        (split,) = plan_splits(matching_files(f"{tmp_path}/y.txt"), wanted, "cp1252")
        with pytest.raises(DataError, match="--encoding utf-8"):
            records(split.ranges[0])


def test_the_cut_does_not_depend_on_who_finds_out_the_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "SPLIT_BYTES", 100)
    for number, name in enumerate(("a.txt", "b.jsonl", "c.txt.gz", "d", "e.txt.zst")):
        data = TEXT * number
        compress = {".gz": gzip.compress, ".zst": zstandard.compress}.get(Path(name).suffix, bytes)
        (tmp_path / name).write_bytes(compress(data))
    files = matching_files(f"{tmp_path}/*")

    cuts = []
    for limit in (0, 100):
        monkeypatch.setattr(inputs, "MAX_CHECKED_FILES", limit)
        splits = plan_splits(files, "auto")
        cuts.append([[(p.path, p.start, p.end, p.weight) for p in split.ranges] for split in splits])
        resolved = [with_format(file_range).format for split in splits for file_range in split.ranges]
        assert set(resolved) == {"text", "jsonl"}
    assert cuts[0] == cuts[1]


def test_ranges_of_a_cut_file_fetch_little_more_than_their_bytes(
    store: ObjectStore, bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "CUT_ABOVE", 0)
    for module in (inputs, cut_files):
        monkeypatch.setattr(module, "CELL_BYTES", 1 << 20)
    monkeypatch.setattr(cut_files, "SEARCH_BYTES", 1 << 18)
    rng = random.Random(0)
    text = b"".join((rng.randbytes(20).hex() * 2).encode() + b"\n" for _ in range(100_000))
    frames = [gzip.compress(text[start : start + 81 * 500], mtime=0) for start in range(0, len(text), 81 * 500)]
    bucket.put_object(Key="many.txt.gz", Body=b"".join(frames))
    bucket.put_object(Key="one.txt.gz", Body=gzip.compress(text, mtime=0))
    store.requests.clear()

    for name, largest in (("many", 9), ("one", 0)):
        splits = plan_splits(matching_files(f"s3://plans/{name}.txt.gz"), "text")
        ranges = [file_range for split in splits for file_range in split.ranges]
        found = [records(file_range) for file_range in ranges]
        assert b"".join(record.text.encode() for part in found for record in part) == text
        assert len(ranges) >= 3

        store.requests.clear()
        records(ranges[1])
        gets = [path for method, path in store.requests if method == "GET"]
        assert len(gets) <= largest


PATHS = st.one_of(st.text(max_size=20), st.binary(max_size=20).map(os.fsdecode))


@given(
    path=PATHS,
    written=PATHS,
    encoding=st.sampled_from(["utf-8", "cp1252"]),
    numbers=st.tuples(*[st.integers(0, 1 << 50)] * 4),
)
def test_a_split_survives_its_file(path: str, written: str, encoding: str, numbers: tuple[int, int, int, int]) -> None:
    file_range = FileRange(path, *numbers, "v", "auto", "gzip", path_as_written=written, encoding=encoding)
    split = Split(7, (file_range, file_range))
    staging = Staging("memory://planned", "job")
    write_splits([split], staging)
    assert list(read_splits(0, staging)) == [(7, split)]


def test_ranges_of_a_remote_file_are_its_bytes(bucket) -> None:
    data = random.Random(0).randbytes(600_000)
    bucket.put_object(Key="x", Body=data)
    (file,) = matching_files("s3://plans/x")
    rng = random.Random(1)
    for _ in range(10):
        start, end = rng.randrange(len(data)), rng.randrange(len(data))
        with ranges.open_range(file, start, end) as opened:
            assert opened.read() == data[start:]
            opened.seek(end)
            assert opened.read(100) == data[end : end + 100]
            assert opened.seek(-5, 2) == len(data) - 5 and opened.read() == data[-5:]
