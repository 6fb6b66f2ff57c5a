"""Shards that a store takes under their final names: uploaded once, and never taken for another job's."""

from __future__ import annotations

import uuid

import fsspec
import pytest

from pipeline.commit import leases
from pipeline.commit import parts as manifest_parts
from pipeline.commit.staging import Staging
from schemas import manifest as manifests
from schemas import storage
from schemas.errors import StorageError
from tests.pipeline.commit.small_job import SHARDS, attempt, build, check_result, finish, names_of, spy


@pytest.fixture
def out(store_out: str) -> str:
    return store_out


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every call that changes a store, by name and target, in order."""
    made: list[str] = []
    for name in ("publish", "copy"):
        spy(monkeypatch, name, lambda called, target: made.append(f"{called} {target}"))
    return made


def test_a_shard_is_uploaded_once_where_there_is_nothing_to_replace(out: str, writes: list[str]) -> None:
    attempt(out, "a")
    check_result(out, "a")
    for name in names_of():
        assert [write for write in writes if write.endswith(name)] == [f"publish {out}/{name}"]


def test_what_an_earlier_attempt_uploaded_is_not_uploaded_again(out: str, writes: list[str]) -> None:
    attempt(out, "a", built=3)
    del writes[:]
    attempt(out, "a")
    check_result(out, "a")
    uploaded = [write for write in writes if write.endswith(".arrow")]
    assert uploaded == [f"publish {out}/{name}" for name in names_of()[3:]]


def test_two_unfinished_jobs_in_one_folder_never_become_one_result(out: str) -> None:
    """The second one wrote over shards of the first one, whose reports then say nothing any more."""
    attempt(out, "a", built=SHARDS)
    attempt(out, "b", built=2)
    attempt(out, "a")
    check_result(out, "a")


def test_another_number_of_shards_leaves_none_of_the_unfinished_ones(out: str) -> None:
    attempt(out, "a", count=SHARDS + 4, built=SHARDS)
    attempt(out, "b")
    check_result(out, "b")


def test_a_shard_that_was_damaged_in_place_is_made_again(out: str) -> None:
    attempt(out, "a", built=SHARDS)
    storage.publish(f"{out}/{names_of()[1]}", b"cut")
    with pytest.raises(StorageError, match=r"text-00001-of-00005\.arrow has 3 bytes"):
        attempt(out, "a")
    attempt(out, "a")
    check_result(out, "a")


def test_a_worker_that_outlived_its_job_writes_nothing(out: str) -> None:
    left_behind = Staging(out, "a", token="of a")
    left_behind.decide_destination()
    attempt(out, "b", built=SHARDS)
    with pytest.raises(StorageError, match="no longer held by this job"):
        build(left_behind, names_of()[0])
    attempt(out, "b")
    check_result(out, "b")
    with pytest.raises(StorageError, match="no longer held by this job"):
        build(left_behind, names_of()[0])
    check_result(out, "b")


def test_an_upload_during_which_another_job_took_over_is_found_before_publishing(out: str, monkeypatch) -> None:
    """It began before the other job, whose shard it wrote over."""
    late = Staging(out, "a", token="of a")
    late.decide_destination()
    name = names_of()[0]
    taken_over: list[str] = []

    def take_over(called: str, target: str) -> None:
        if target.endswith(name) and not taken_over:
            taken_over.append(target)
            attempt(out, "b", built=SHARDS)

    with monkeypatch.context() as patch:
        spy(patch, "publish", take_over)
        with pytest.raises(StorageError, match="taken over by another job"):
            build(late, name)

    with pytest.raises(StorageError, match=f"{name} is missing"):
        attempt(out, "b")
    attempt(out, "b")
    check_result(out, "b")


def test_an_upload_that_ends_after_its_own_job_was_published_removes_nothing(out: str, monkeypatch) -> None:
    """An engine may run an element twice; the bytes are the same."""
    twin = Staging(out, "a", token="of a")
    twin.decide_destination()
    name = names_of()[0]
    published: list[str] = []

    def publish_meanwhile(called: str, target: str) -> None:
        if target.endswith(name) and not published:
            published.append(target)
            attempt(out, "a")

    with monkeypatch.context() as patch:
        spy(patch, "publish", publish_meanwhile)
        with pytest.raises(StorageError, match="taken over"):
            build(twin, name)
    check_result(out, "a")


def test_a_disk_takes_shards_by_renaming(tmp_path) -> None:
    staging = Staging(str(tmp_path), "a", token="t")
    staging.decide_destination()
    build(staging, names_of()[0])
    assert [path.name for path in tmp_path.iterdir()] == ["_unfinished-a"]


def test_thousands_of_files_take_no_request_each(out: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checking and publishing a folder whose shards are in place: a fixed number of requests and those for parts."""
    monkeypatch.setattr(manifest_parts, "PART_ENTRIES", 4096)
    monkeypatch.setattr(manifests, "PART_ENTRIES", 4096)
    count = 3000
    staging = Staging(out, "a", token=uuid.uuid4().hex)
    asked: list[str] = []
    with leases.held(out, staging.token):
        staging.decide_destination()
        reports = [build(staging, name) for name in names_of(count)]

        store = type(fsspec.filesystem("memory"))
        for name in ("cat_file", "pipe_file", "ls", "cp_file"):
            spy_method(monkeypatch, store, name, asked)
        finish(staging, reports)
    assert len(asked) < 60, len(asked)


def spy_method(monkeypatch: pytest.MonkeyPatch, store: type, name: str, asked: list[str]) -> None:
    real = getattr(store, name)
    inside: list[str] = []  # a method that calls others counts once

    def call(self, *arguments, **options):
        if not inside:
            asked.append(name)
        inside.append(name)
        try:
            return real(self, *arguments, **options)
        finally:
            inside.pop()

    monkeypatch.setattr(store, name, call)
