"""Steps that an engine runs again, or twice at the same time, around the moment at which the result is published."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.commit import leases, publish
from pipeline.commit.failures import Failures
from pipeline.commit.reports import Report
from pipeline.commit.staging import Staging
from pipeline.jobs import pairs as pairs_graph
from pipeline.jobs import shard as shard_graph
from pipeline.readers.inputs import read_splits
from schemas import storage
from schemas.errors import ClozelineError, DataError, StorageError
from schemas.manifest import read_manifest
from schemas.storage import remove_folder
from tests.conftest import Command
from tests.object_store import ObjectStore
from tests.pipeline.commit.small_job import (
    CHANGING,
    Killed,
    attempt,
    build,
    check_result,
    die_at,
    files,
    finish,
    names_of,
    spy,
)

CHANGES = 18
"""More changes of a folder than one publication of the small job makes."""


@contextlib.contextmanager
def built(out: str) -> Iterator[tuple[Staging, list[Report]]]:
    """A job whose launcher waits and whose shards are finished."""
    staging = Staging(out, "new", token=uuid.uuid4().hex)
    with leases.held(out, staging.token):
        yield staging, [build(staging, name) for name in names_of()]


def call_at(change: int, function, monkeypatch: pytest.MonkeyPatch) -> None:
    """Call a function once, just before the n-th change of the folder."""
    changes: list[str] = []

    def seen(name: str, target: str) -> None:
        changes.append(target)
        if len(changes) == change + 1:
            function()

    for name in CHANGING:
        spy(monkeypatch, name, seen)


class KilledError(Exception):
    """Stands for the death of a process."""


def kill() -> None:
    raise KilledError


@pytest.mark.parametrize("change", range(CHANGES))
@pytest.mark.parametrize("before", ["nothing", "a result"])
def test_two_last_steps_at_once_publish_one_whole_result(out: str, monkeypatch, before: str, change: int) -> None:
    """A second one runs from its start to its end, just before each change that the first one makes."""
    if before == "a result":
        attempt(out, "old", count=3)

    with built(out) as (staging, reports):
        with monkeypatch.context() as patch:
            call_at(change, lambda: finish(staging, reports), patch)
            finish(staging, reports)
        assert read_manifest(out, "text")
        publish.clean_up(staging)
    check_result(out, "new")


@pytest.mark.parametrize("change", range(CHANGES))
def test_a_twin_that_is_killed_leaves_the_manifest_in_place(out: str, monkeypatch, change: int) -> None:
    """It begins just before each change that the first one makes, and dies after two changes."""
    monkeypatch.setattr(publish, "concurrently", map)  # one thread
    manifest = storage.join(out, "manifest.json")
    with built(out) as (staging, reports):

        def twin() -> None:
            was_there = storage.exists(manifest)
            with monkeypatch.context() as inner, contextlib.suppress(KilledError):
                call_at(2, kill, inner)
                finish(staging, reports)
            assert storage.exists(manifest) or not was_there

        with monkeypatch.context() as patch:
            call_at(change, twin, patch)
            finish(staging, reports)
        publish.clean_up(staging)
    check_result(out, "new")


@pytest.mark.parametrize("change", range(CHANGES))
def test_a_last_step_that_outlives_its_job_leaves_the_result_whole(out: str, monkeypatch, change: int) -> None:
    """Its twin has published meanwhile, and the launcher has removed what was unfinished and has ended."""
    with contextlib.suppress(ClozelineError), built(out) as (staging, reports):

        def end_the_job() -> None:
            finish(staging, reports)
            publish.clean_up(staging)
            leases.remove(out, staging.token)

        with monkeypatch.context() as patch:
            call_at(change, end_the_job, patch)
            finish(staging, reports)

    left_over = {name for name in files(out) if name.startswith("_unfinished-")}
    for name in left_over:
        storage.remove(storage.join(out, name))
    check_result(out, "new")


def published(out: str) -> dict[str, bytes]:
    return {name: data for name, data in files(out).items() if not name.startswith("_")}


def test_a_job_that_is_restarted_after_publication_finishes_again(out: str) -> None:
    """From its first step: nothing that a step needs is gone before the engine says that the job is done."""
    with built(out) as (staging, reports):
        finish(staging, reports)
        before = published(out)
        assert [build(staging, name) for name in names_of()] == reports
        finish(staging, reports)
        assert published(out) == before
        publish.clean_up(staging)
    check_result(out, "new")


def abandon(out: str, staging: Staging) -> None:
    """Have the lease look as that of a launcher that was killed long ago, while its job goes on."""
    owner = leases.read(out, staging.token)
    assert owner is not None
    leases.write(out, staging.token, replace(owner, kept=True, left=True))


def test_the_last_step_cleans_up_when_no_launcher_is_left(out: str) -> None:
    with built(out) as (staging, reports):
        abandon(out, staging)
        finish(staging, reports)
        check_result(out, "new")
        finish(staging, reports)
        assert read_manifest(out, "text")


@pytest.mark.parametrize("change", range(CHANGES))
def test_a_last_step_that_dies_while_it_cleans_up_is_repeated(out: str, monkeypatch, change: int) -> None:
    with built(out) as (staging, reports):
        abandon(out, staging)
        with monkeypatch.context() as patch:
            die_at(change, patch)
            with contextlib.suppress(Killed):
                finish(staging, reports)
        if storage.exists(leases.lease_url(out, staging.token)):
            finish(staging, reports)
    check_result(out, "new")


def test_a_late_failure_of_a_job_that_is_done_leaves_nothing(out: str) -> None:
    with built(out) as (staging, reports):
        finish(staging, reports)
        publish.clean_up(staging)
    assert not Failures(staging).report(StorageError("late"))
    check_result(out, "new")


def test_a_launcher_that_waits_no_longer_is_seen_by_its_lease(tmp_path: Path) -> None:
    out = str(tmp_path)
    url = leases.lease_url(out, "mine")
    with leases.held(out, "mine") as lease:
        lease.keep_if_killed()
        storage.publish(f"{out}/manifest.json", b"{}")
        assert leases.launcher_waits(out, "mine", f"{out}/manifest.json")

        leases.note_published(out, "mine")
        assert lease.renew()
        owner = leases.read(out, "mine")
        assert owner is not None and not owner.kept

        os.utime(url, (0, 0))
        assert not leases.launcher_waits(out, "mine", f"{out}/manifest.json")


def test_a_lease_is_not_kept_for_a_job_that_has_published(tmp_path: Path) -> None:
    """The launcher lost the connection, and gave up after the job had published."""
    out = str(tmp_path)
    for has_published in (False, True):
        with leases.held(out, "mine") as lease:
            lease.keep_if_killed()
            lease.keep = True
            if has_published:
                leases.note_published(out, "mine")
        assert storage.exists(leases.lease_url(out, "mine")) != has_published
        leases.remove(out, "mine")


def test_a_missing_list_of_splits_is_named_where_it_should_be(out: str) -> None:
    with pytest.raises(DataError, match=r"/_unfinished-a/splits-00000\.json does not exist"):
        list(read_splits(0, Staging(out, "a", token="t")))


# the jobs


def twice(function):
    """A step that an engine runs again after it has ended."""

    def called(*arguments):
        function(*arguments)
        return function(*arguments)

    return called


def test_the_last_steps_of_jobs_may_run_twice(
    command: Command, s3: ObjectStore, corpus: Path, vocab: Path, monkeypatch
) -> None:
    bucket = s3.bucket("repeated")
    monkeypatch.setattr(shard_graph, "publish_text", twice(shard_graph.publish_text))
    monkeypatch.setattr(pairs_graph, "publish_pairs", twice(pairs_graph.publish_pairs))

    text, pairs = "s3://repeated/text", "s3://repeated/pairs"
    done = command("shard", "--input", corpus, "--output", text, "--direct_num_workers=1")
    assert done.returncode == 0, done.stderr
    flags = ("--text", text, "--vocab", vocab, "--objective", "nsp", "--max_length", 32)
    done = command("pairs", *flags, "--output", pairs, "--direct_num_workers=1")
    assert done.returncode == 0, done.stderr
    assert not [item.key for item in bucket.objects.all() if "/_" in item.key]


def test_a_large_staging_is_deleted_a_page_at_a_time(s3: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = s3.bucket("large")
    monkeypatch.setattr(storage, "PAGE", 10)
    for number in range(25):
        bucket.put_object(Key=f"out/_unfinished-a/run-{number}.json", Body=b"")
    for name in ("out/_unfinished-a/manifest.json", "out/_unfinished-ab/other"):
        bucket.put_object(Key=name, Body=b"")

    s3.fail(403, "delete", times=1, method="POST")
    with pytest.raises(StorageError):
        remove_folder("s3://large/out/_unfinished-a")
    left = [item.key for item in bucket.objects.all()]
    assert "out/_unfinished-a/manifest.json" in left

    listings = s3.count("list-type=2")
    remove_folder("s3://large/out/_unfinished-a")
    assert s3.count("list-type=2") - listings >= 3
    assert [item.key for item in bucket.objects.all()] == ["out/_unfinished-ab/other"]
    remove_folder("s3://large/out/_unfinished-a")
