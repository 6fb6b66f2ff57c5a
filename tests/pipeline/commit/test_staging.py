"""What is published is what the manifest says, wherever a job is killed and whoever else was there."""

from __future__ import annotations

import contextlib
import threading
import uuid

import fsspec
import pytest

from pipeline.beam import runner as beam_runner
from pipeline.commit import leases, publish
from pipeline.commit import parts as manifest_parts
from pipeline.commit.staging import Staging
from schemas import manifest as manifests
from schemas import storage
from schemas.errors import StorageError
from schemas.manifest import read_manifest
from schemas.shards import read_shard_bytes
from tests.pipeline.commit.small_job import (
    SHARDS,
    Killed,
    attempt,
    build,
    check_result,
    data_of,
    die_at,
    files,
    finish,
    names_of,
)

KILLED = "clozeline: killed here\n"
CHANGES = 34
"""More changes of a folder than one attempt of the small job makes."""


@pytest.mark.parametrize("call", range(CHANGES))
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


def test_a_damaged_piece_leaves_the_old_result_as_it_was(out: str) -> None:
    attempt(out, "old")
    before = files(out)
    attempt(out, "new", built=SHARDS)
    storage.publish(Staging(out, "new").url(names_of()[1]), b"cut")
    with pytest.raises(StorageError, match=r"text-00001-of-00005\.arrow has 3 bytes"):
        attempt(out, "new")
    assert {name: data for name, data in files(out).items() if not name.startswith("_unfinished")} == before
    attempt(out, "new")
    check_result(out, "new")


def test_thousands_of_shards_are_copied_in_a_store_and_take_no_other_request_each(store_out: str, monkeypatch) -> None:
    staging = Staging(store_out, "a", token="t")
    asked: list[str] = []
    store = type(fsspec.filesystem("memory"))
    for name in ("cat_file", "pipe_file", "ls", "cp_file"):
        spy_method(monkeypatch, store, name, asked)
    with leases.held(store_out, staging.token):
        reports = [build(staging, name) for name in names_of(3000)]
        del asked[:]
        monkeypatch.setattr(manifest_parts, "PART_ENTRIES", 4096)
        monkeypatch.setattr(manifests, "PART_ENTRIES", 4096)
        finish(staging, reports)
    assert len(asked) - asked.count("cp_file") < 60 and asked.count("cp_file") == 3000 + 1


def spy_method(monkeypatch: pytest.MonkeyPatch, store: type, name: str, asked: list[str]) -> None:
    real = getattr(store, name)

    def call(*arguments, **options):
        asked.append(name)
        return real(*arguments, **options)

    monkeypatch.setattr(store, name, call)


@pytest.fixture
def killed_shard(command, corpus, tmp_path, monkeypatch):
    """Run `shard` until the given number of files have been moved into place."""
    out = tmp_path / "out"
    flags = ("shard", "--input", corpus, "--output", out, "--num_shards", 2, "--direct_num_workers=1")
    move = storage.move

    def run(moves: int | None, *more: object):
        count: list[str] = []
        one_at_a_time = threading.Lock()

        def dying(source: str, target: str) -> None:
            with one_at_a_time:
                if moves is not None and len(count) == moves:
                    raise StorageError("killed here")
                count.append(target)
                move(source, target)

        with monkeypatch.context() as patch:
            patch.setattr(storage, "move", dying)
            return command(*flags, *more)

    return out, run


def test_two_half_published_jobs_never_become_one_result(command, killed_shard) -> None:
    """The first one's second try finds a file in place that it did not put there, and makes its own again."""
    out, run = killed_shard
    assert run(1, "--seed", 0).stderr == KILLED
    assert run(1, "--seed", 1).stderr == KILLED
    done = run(None, "--seed", 0)
    assert done.returncode == 5, done.stdout + done.stderr
    assert "text-00000-of-00002.arrow" in done.stderr and "Run the same command again" in done.stderr
    assert not (out / "manifest.json").exists()
    assert run(None, "--seed", 0).returncode == 0
    assert command("verify", out).returncode == 0


@pytest.mark.parametrize("damage", ["shorter", "other bytes"])
def test_a_staged_piece_that_was_damaged_is_made_again(command, killed_shard, damage) -> None:
    out, run = killed_shard
    assert run(0).stderr == KILLED
    (staged,) = out.glob("_unfinished-*/text-00001-*.arrow")
    data = staged.read_bytes()
    staged.write_bytes(data[:100] if damage == "shorter" else data[:-60] + bytes(60))
    done = run(None)
    assert done.returncode == 5 and "text-00001-of-00002.arrow" in done.stderr, done.stdout + done.stderr
    assert not (out / "manifest.json").exists()
    assert run(None).returncode == 0
    assert command("verify", out).returncode == 0


@pytest.mark.parametrize("content", [b"", b'{"rows": ', b"\0\0\0\0", b"[]", b"\xff"])
def test_a_report_that_is_empty_or_damaged_counts_as_none(tmp_path, content) -> None:
    made = Staging(str(tmp_path), "job")
    made.keep("a", b"x", {"rows": 1})
    storage.publish(made.url("a.json"), content)
    assert made.report("a") is None


def test_the_same_command_removes_its_own_staging_once_its_result_is_published(killed_shard, monkeypatch) -> None:
    """A kill between the manifest and the end of staging leaves pieces that no later job of that name would need."""
    out, run = killed_shard
    with monkeypatch.context() as patch:
        patch.setattr(beam_runner, "clean_up", lambda staging: None)
        assert run(None).returncode == 0
    assert list(out.glob("_unfinished-*"))
    before = sorted(path.name for path in out.iterdir())
    assert run(None, "--dry_run=True").returncode == 0
    assert sorted(path.name for path in out.iterdir()) == before

    done = run(None)
    assert done.returncode == 0 and "is already finished by this command" in done.stderr
    assert sorted(path.name for path in out.iterdir()) == sorted(
        ["card.html", "ledger.parquet", "manifest.json", "text-00000-of-00002.arrow", "text-00001-of-00002.arrow"]
    )


def interrupt(*_: object) -> None:
    raise StorageError("killed here")


def test_a_refused_job_keeps_unfinished_work_of_the_same_options(killed_shard, monkeypatch) -> None:
    """--overwrite was forgotten at the second try: the first one's pieces are not published anywhere yet."""
    out, run = killed_shard
    assert run(None, "--seed", 0).returncode == 0
    with monkeypatch.context() as patch:
        patch.setattr(leases, "check_held", interrupt)
        assert run(None, "--seed", 1, "--overwrite").stderr == KILLED
    pieces = sorted(out.glob("_unfinished-*/*"))
    assert pieces and run(None, "--seed", 1).returncode == 2
    assert sorted(out.glob("_unfinished-*/*")) == pieces


def test_partial_files_of_other_programs_stay(command, corpus, tmp_path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    ours = ".text-00000-of-00001.arrow.0123456789ab.partial"
    for name in (ours, "download.partial", ".x.partial"):
        (out / name).write_text("half")
    assert command("shard", "--input", corpus, "--output", out).returncode == 0
    names = {path.name for path in out.iterdir()}
    assert ours not in names and {"download.partial", ".x.partial"} <= names


def test_raising_a_limit_that_is_judged_at_the_end_makes_no_piece_again(command, tmp_path) -> None:
    source = tmp_path / "a.jsonl"
    source.write_text('{"text": "The cat ran. It sat."}\n' * 4 + "{\n")
    flags = ("shard", "--input", source, "--output", tmp_path / "out", "--direct_num_workers=1")
    assert command(*flags).returncode == 3
    (staged,) = (tmp_path / "out").glob("_unfinished-*/run-*[0-9].run")
    made = staged.stat().st_mtime_ns
    assert command(*flags, "--max_bad_ratio", 0.1).returncode == 3
    assert command(*flags, "--max_undecodable_ratio", 0.1).returncode == 3
    assert [path.stat().st_mtime_ns for path in (tmp_path / "out").glob("_unfinished-*/run-*[0-9].run")] == [made]
    assert command(*flags, "--max_bad_ratio", 0.5).returncode == 0
