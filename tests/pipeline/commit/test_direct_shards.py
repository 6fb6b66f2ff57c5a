"""Shards that a store takes under their final names: uploaded once, and never taken for another job's."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable

import fsspec
import pytest

from pipeline.commit import leases, publish
from pipeline.commit import parts as manifest_parts
from pipeline.commit.parts import part_of_report, summarize_folder, summarize_part
from pipeline.commit.publish import publish_output
from pipeline.commit.reports import Report
from pipeline.commit.staging import Staging
from schemas import FORMAT_VERSION, shards, storage
from schemas import manifest as manifests
from schemas.errors import StorageError
from schemas.manifest import Manifest, read_manifest, read_shard_bytes

SHARDS = 5
PART = 2


class Killed(BaseException):
    """Stands for a process that ends at once: nothing catches it."""


@pytest.fixture
def out(monkeypatch: pytest.MonkeyPatch) -> str:
    """An output folder in a store without renames, and parts of two shards."""
    monkeypatch.setattr(manifest_parts, "PART_ENTRIES", PART)
    monkeypatch.setattr(manifests, "PART_ENTRIES", PART)
    return f"memory://direct/{uuid.uuid4().hex}/out"


def names_of(count: int = SHARDS) -> list[str]:
    return [shards.shard_name("text", index, count) for index in range(count)]


def data_of(job: str, name: str) -> bytes:
    return f"{job} {name}".encode()


def build(staging: Staging, name: str) -> Report:
    """Make a shard unless it is finished, as a worker does."""
    done = staging.report_of_shard(name)
    if done is not None:
        return done

    data = data_of(staging.job, name)
    digest = storage.sha256(data)
    entry = {"path": name, "rows": 1, "tokens": 0, "bytes": len(data), "sha256": digest, "fingerprint": digest[:32]}
    return staging.keep_shard(name, data, {"shard": entry})


def add_up(reports: list[Report]) -> Report:
    return {}


def finish(staging: Staging, reports: list[Report]) -> None:
    by_part: dict[int, list[Report]] = {}
    for report in reports:
        by_part.setdefault(part_of_report(report), []).append(report)
    folder = summarize_folder([summarize_part(part, add_up, staging) for part in by_part.items()], add_up)

    staging.put("rejected.jsonl", b"{}\n")
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        kind="text",
        options={},
        inputs=[],
        seed=0,
        fingerprint=folder.fingerprint("text"),
        shards=folder.shards,
        totals={"text_bytes": 0},
        statistics={"documents_by_source": {}},
        ledger=[],
        parts=folder.parts,
    )
    publish_output(staging, manifest, {"rejected.jsonl": "rejected/a.jsonl"})


def attempt(out: str, job: str, count: int = SHARDS, built: int | None = None) -> None:
    """One run of a job, which dies after `built` shards if a number is given."""
    staging = Staging(out, job, token=uuid.uuid4().hex)
    with leases.held(out, staging.token):
        staging.decide_destination()
        reports = [build(staging, name) for name in names_of(count)[:built]]
        if built is None:
            finish(staging, reports)
            publish.clean_up(staging)


def files(out: str) -> dict[str, bytes]:
    fs, path = storage.filesystem(out)
    return {name.removeprefix(f"{path}/"): fs.cat_file(name) for name in fs.find(path)}


def check_result(out: str, job: str, count: int = SHARDS) -> None:
    """The folder holds this job's result and nothing else."""
    manifest = read_manifest(out, "text")
    assert [read_shard_bytes(out, shard) for shard in manifest.shards] == [data_of(job, n) for n in names_of(count)]
    parts = {part.path for part in manifest.parts}
    assert set(files(out)) == {*names_of(count), *parts, "manifest.json", "rejected/a.jsonl"}


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every call that changes a store, by name and target, in order."""
    made: list[str] = []
    for name in ("publish", "copy"):
        spy(monkeypatch, name, lambda called, target: made.append(f"{called} {target}"))
    return made


def spy(monkeypatch: pytest.MonkeyPatch, name: str, seen: Callable[[str, str], object]) -> None:
    real = getattr(storage, name)

    def call(*arguments, **options):
        seen(name, arguments[1] if name == "copy" else arguments[0])
        return real(*arguments, **options)

    monkeypatch.setattr(storage, name, call)


def test_a_shard_is_uploaded_once_where_there_is_nothing_to_replace(out: str, writes: list[str]) -> None:
    attempt(out, "a")
    check_result(out, "a")
    for name in names_of():
        assert [write for write in writes if write.endswith(name)] == [f"publish {out}/{name}"]


def test_a_finished_result_stays_whole_until_the_new_one_is_complete(out: str) -> None:
    attempt(out, "old")
    before = files(out)
    attempt(out, "new", built=SHARDS)
    assert {name: data for name, data in files(out).items() if not name.startswith("_unfinished")} == before
    attempt(out, "new")
    check_result(out, "new")


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


@pytest.mark.parametrize("call", range(40))
@pytest.mark.parametrize("before", ["nothing", "a result", "half of another job"])
def test_a_kill_before_any_change_leaves_nothing_behind_after_the_next_attempt(
    out: str, monkeypatch: pytest.MonkeyPatch, before: str, call: int
) -> None:
    if before == "a result":
        attempt(out, "old", count=3)
    elif before == "half of another job":
        attempt(out, "old", count=SHARDS, built=2)

    with monkeypatch.context() as patch:
        die_at(call, patch)
        with contextlib.suppress(Killed):
            attempt(out, "new")
    for name in storage.names(out, "_lease-"):  # as if it had expired
        storage.remove(storage.join(out, name))

    finished = storage.exists(f"{out}/manifest.json") and read_manifest(out, "text")
    if finished and finished.shards[0].fingerprint == storage.sha256(data_of("new", names_of()[0]))[:32]:
        staging = Staging(out, "new", token=uuid.uuid4().hex)
        publish.clean_up_after_kill(staging)  # what a launcher does that finds the folder finished
    else:
        if before == "a result" and finished:
            assert [read_shard_bytes(out, shard) for shard in finished.shards]
        attempt(out, "new")
    check_result(out, "new")


def die_at(call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the process end just before the n-th change of the store, in whichever thread."""
    changes: list[str] = []
    lock = threading.Lock()

    def dying(name: str, target: str) -> None:
        if "_lease-" in target:
            return
        with lock:
            changes.append(target)
            if len(changes) > call:
                raise Killed

    for name in ("publish", "copy", "remove", "remove_files"):
        spy(monkeypatch, name, dying)


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
