"""One job at a time in a folder: on a disk and on an object store, whatever ends a job, and when many come at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.commit import leases
from schemas import storage
from schemas.errors import ClozelineError, StorageError, UsageError

HOLD = (
    "from pipeline.commit import leases\nwith leases.held({!r}, 'other'):\n    print('held', flush=True)\n    input()"
)


@pytest.fixture(params=["disk", "memory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A folder for a job's output."""
    if request.param == "disk":
        yield str(tmp_path / "out")
        return
    if request.param == "memory":
        yield f"memory://leases/{tmp_path.name}"
        return
    request.getfixturevalue("s3").bucket("leases")
    yield f"s3://leases/{tmp_path.name}"


def elsewhere(out: Path, age: float) -> Path:
    """The lease of a process of another machine, last renewed `age` seconds ago."""
    owner = {"host": "far", "machine": "boot", "process": 7, "started": "1", "holds": True}
    out.mkdir(exist_ok=True)
    path = out / "_lease-far.json"
    path.write_text(json.dumps(owner))
    os.utime(path, (time.time() - age, time.time() - age))
    return path


def test_a_held_folder_is_refused_and_then_free_again(place) -> None:
    with leases.held(place, "first"):
        leases.check_held(place, "first")
        with (
            pytest.raises(UsageError, match=rf"in use by another job \(process {os.getpid()} on "),
            leases.held(place, "second"),
        ):
            pass
        assert storage.names(place) == ["_lease-first.json"]
    with leases.held(place, "second"):
        pass
    assert storage.names(place) == []


def test_of_many_that_come_at_once_one_holds(place) -> None:
    """Two never do. Those refused see who holds the folder, or who was about to."""
    barrier = threading.Barrier(4)
    inside: list[str] = []
    most = [0]
    ended: list[str] = []

    def job(token: str) -> None:
        barrier.wait()
        try:
            with leases.held(place, token):
                inside.append(token)
                most[0] = max(most[0], len(inside))
                time.sleep(0.05)
                inside.remove(token)
            ended.append("done")
        except UsageError:
            ended.append("refused")

    for _ in range(3):
        threads = [threading.Thread(target=job, args=(f"job{i}",)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert most == [1]
    assert len(ended) == 12 and ended.count("done") >= 3
    assert storage.names(place) == []


def test_the_lease_of_a_killed_process_ends_with_it(tmp_path) -> None:
    out = str(tmp_path / "out")
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD.format(out)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    with pytest.raises(UsageError, match=f"process {process.pid} on"), leases.held(out, "mine"):
        pass
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert storage.names(out) == ["_lease-other.json"]
    with leases.held(out, "mine"):
        assert storage.names(out) == ["_lease-mine.json"]
    assert storage.names(out) == []


def test_the_lease_of_another_machine_ends_when_it_expires(tmp_path) -> None:
    path = elsewhere(tmp_path / "out", age=0)
    with (
        pytest.raises(UsageError, match=r"process 7 on far.*expires 120 s after .*_lease-far\.json"),
        leases.held(str(tmp_path / "out"), "mine"),
    ):
        pass
    assert path.exists()
    elsewhere(tmp_path / "out", age=leases.EXPIRES_AFTER + 5)
    with leases.held(str(tmp_path / "out"), "mine"):
        assert not path.exists()


def test_a_lease_is_renewed_while_its_job_lives(place, monkeypatch) -> None:
    monkeypatch.setattr(leases, "RENEW_EVERY", 0.1)
    url = leases.lease_url(place, "mine")
    with leases.held(place, "mine"):
        first = storage.modified(url)
        deadline = time.monotonic() + 20
        while storage.modified(url) == first:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_a_damaged_lease_holds_until_it_expires(tmp_path) -> None:
    path = tmp_path / "_lease-x.json"
    path.write_text("{")
    with pytest.raises(UsageError, match="an unknown machine"), leases.held(str(tmp_path), "mine"):
        pass
    os.utime(path, (0, 0))
    with leases.held(str(tmp_path), "mine"):
        pass


def test_a_lease_that_was_taken_away_lets_nothing_be_published(place) -> None:
    with leases.held(place, "mine"):
        storage.remove(leases.lease_url(place, "mine"))
        with pytest.raises(StorageError, match="no longer held by this job"):
            leases.check_held(place, "mine")


def test_a_block_that_fails_leaves_no_folder(tmp_path) -> None:
    with pytest.raises(ClozelineError), leases.held(str(tmp_path / "out"), "mine"):
        raise StorageError("full")
    assert not (tmp_path / "out").exists()


# the jobs


@pytest.fixture
def other_work(tmp_path: Path) -> Path:
    """An output folder with the unfinished work of another job."""
    out = tmp_path / "out"
    (out / "_unfinished-0123").mkdir(parents=True)
    (out / "_unfinished-0123" / "run-000000-0000.arrow").write_text("hours of work")
    (out / ".text.0123456789ab.partial").write_text("half a piece")
    return out


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_second_job_is_refused_and_touches_nothing(command, corpus, other_work) -> None:
    with leases.held(str(other_work), "first"):
        before = contents(other_work)
        done = command("shard", "--input", corpus, "--output", other_work, "--seed", 9)
        assert done.returncode == 2 and "is in use by another job" in done.stderr
        assert contents(other_work) == before


def test_a_job_that_cannot_be_built_touches_nothing(command, corpus, other_work) -> None:
    before = contents(other_work)
    done = command("shard", "--input", corpus, "--output", other_work, "--runner", "NoSuchRunner")
    assert done.returncode == 2 and "NoSuchRunner" in done.stderr and "Traceback" not in done.stderr
    assert contents(other_work) == before


def test_a_job_that_fails_keeps_the_work_of_others_and_one_that_ends_removes_it(command, corpus, other_work) -> None:
    shard = ("shard", "--input", corpus, "--output", other_work)
    assert command(*shard, "--text_key", "none").returncode == 3
    assert (other_work / "_unfinished-0123" / "run-000000-0000.arrow").exists()
    assert command(*shard).returncode == 0
    found = sorted(path.name for path in other_work.iterdir())
    assert found == ["card.html", "ledger.parquet", "manifest.json", "text-00000-of-00001.arrow"]


def test_pieces_of_an_older_version_are_not_reused(command, corpus, tmp_path, monkeypatch) -> None:
    """A piece that an older version left must not reach the result, even under equal options and inputs."""
    from pipeline.commit import staging

    shard = ("shard", "--input", corpus, "--output", tmp_path / "out", "--text_key", "none")
    monkeypatch.setattr(staging, "PIECES_VERSION", staging.PIECES_VERSION - 1)
    assert command(*shard).returncode == 3
    (older,) = (tmp_path / "out").iterdir()
    monkeypatch.undo()
    assert command(*shard).returncode == 3
    assert len(list((tmp_path / "out").iterdir())) == 2 and older.exists()
