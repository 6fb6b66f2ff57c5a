"""Folders that are no run's, and file systems without locks: one line, nothing changed."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest

from schemas.errors import StorageError, UsageError
from trainer.checkpoint import run_folder, run_lock

FOREIGN = {
    "metrics.jsonl": '{"my": "own metrics"}\n',
    "recipe.toml": "[mine]\n",
    "report.html": "<p>mine</p>",
    "lock": "my own lock\n",
    "tensorboard/events": "mine",
    "ranks/1.json": "mine",
    "vocabulary/vocab.txt": "mine",
    "checkpoints/notes.txt": "mine",
    "checkpoints/other.partial/x": "mine",
}


def make(run: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text(text)
    return run


def content(run: Path) -> dict[str, str]:
    return {str(path.relative_to(run)): path.read_text() for path in run.rglob("*") if path.is_file()}


def failing(number: int) -> Callable[..., None]:
    """A system call that always fails with this number."""

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


OURS = {"lock": "process 7 on somewhere\n"}
TRIES: dict[str, tuple[dict[str, str], str]] = {
    "M-foreign-folder": (FOREIGN, "holds files of something else (checkpoints, lock, metrics.jsonl)"),
    "M-foreign-notes": ({"thesis.tex": "mine"}, "holds files of something else (thesis.tex)"),
    "M-foreign-manifest": ({"checkpoints/step-1/manifest.json": "[]"}, "holds files of something else"),
    "M-nested-manifest": ({"checkpoints/step-1/manifest.json": "[" * 100_000}, "holds files of something else"),
}


@pytest.mark.parametrize("name", TRIES)
def test_folders_are_refused_untouched(tmp_path: Path, name: str) -> None:
    files, message = TRIES[name]
    run = make(tmp_path / "run", files)
    before = content(run)
    with pytest.raises(UsageError) as caught:
        run_folder.claim(str(run))
    assert message in str(caught.value) and str(run) in str(caught.value)
    assert content(run) == before


ACCEPTED = {
    "new": {},
    "log-of-the-shell": {"train.log": "x", ".nfs01": "", "slurm-1.out": ""},
    "ours": OURS,
    "killed-at-once": {"lock": ""},
    "checkpoints-alone": {"checkpoints/step-00000001/manifest.json": '{"format_version": 1, "files": []}'},
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_folders_of_runs_are_accepted(tmp_path: Path, name: str) -> None:
    run = make(tmp_path / "run", ACCEPTED[name])
    lock = run_folder.claim(str(run))
    assert (run / "lock").read_text().startswith(f"process {os.getpid()} on ")
    with pytest.raises(UsageError, match="in use by a live run"):
        run_folder.claim(str(run))
    lock.release()
    run_folder.claim(str(run)).release()


def test_ranks_that_cannot_meet_because_the_run_is_alive_say_so(tmp_path: Path) -> None:
    """As after a kill of their launcher: the ranks train on and keep the port."""
    run, told = str(tmp_path / "run"), "The ranks cannot meet"

    def fail(named: str) -> None:
        with pytest.raises(UsageError, match=named), run_lock.live_run_named(run):
            raise UsageError(told)

    fail(told)
    assert not Path(run).exists()
    lock = run_folder.claim(run)
    fail(rf"in use by a live run \(process {os.getpid()} on ")
    lock.release()
    fail(told)


def test_a_lock_file_that_was_removed_keeps_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that was refused removes its lock file just after another process has opened it."""
    refused = run_folder.claim(str(tmp_path / "run"))
    flock = fcntl.flock

    def end_first(file: object, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        run_folder.remove_beginnings(str(tmp_path / "run"))
        refused.release()
        flock(file, operation)  # type: ignore[arg-type]

    monkeypatch.setattr(fcntl, "flock", end_first)
    lock = run_folder.claim(str(tmp_path / "run"))
    with pytest.raises(UsageError, match="in use by a live run"):
        run_folder.claim(str(tmp_path / "run"))
    lock.release()


def test_what_a_run_has_begun_stays(tmp_path: Path) -> None:
    for files in ({"recipe.toml": ""}, {"checkpoints/step-00000001/manifest.json": "{}"}):
        run = make(tmp_path / "-".join(files).replace("/", "-"), {"lock": "", "unigram.json": "{}"} | files)
        (run / "checkpoints").mkdir(exist_ok=True)
        before = content(run)
        run_folder.remove_beginnings(str(run))
        run_folder.remove_empty(str(run))
        assert content(run) == before


def test_a_folder_under_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for run in (tmp_path / "file", tmp_path / "file/run"):
        with pytest.raises(UsageError, match=r"run\.output .* cannot be a folder: "):
            run_folder.claim(str(run))


def test_a_disk_that_refuses_is_a_storage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", failing(errno.EROFS))
    with pytest.raises(StorageError, match="cannot be written: Read-only file system"):
        run_folder.claim(str(tmp_path / "run"))


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP], ids=errno.errorcode.get)
def test_without_flock_a_file_holds_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys, number: int
) -> None:
    """A live run keeps it; what a run has left that was killed is taken over."""
    monkeypatch.setattr(fcntl, "flock", failing(number))
    monkeypatch.setattr(run_lock, "LEASE", 0.6)
    run = str(tmp_path / "run")
    lock = run_folder.claim(run)
    assert "has no flock" in capsys.readouterr().err
    left = (tmp_path / "run/lock.owner").read_text()
    with pytest.raises(UsageError, match=rf"in use by a live run \(process {os.getpid()} on "):
        run_folder.claim(run)
    lock.release()
    assert not (tmp_path / "run/lock.owner").exists()
    (tmp_path / "run/lock.owner").write_text(left)
    run_folder.claim(run).release()


def test_a_run_ends_when_another_one_is_the_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """As after a process was frozen for longer than the lease lasts."""
    codes: list[int] = []
    ended = Event()
    monkeypatch.setattr(fcntl, "flock", failing(errno.ENOSYS))
    monkeypatch.setattr(run_lock, "LEASE", 0.3)
    monkeypatch.setattr(os, "_exit", lambda code: (codes.append(code), ended.set()))
    lock = run_folder.claim(str(tmp_path / "run"))
    (tmp_path / "run/lock.owner").unlink()
    assert ended.wait(10)
    assert codes == [2]
    assert "This run no longer holds its folder (lock.owner: " in capsys.readouterr().err
    lock.release()


@pytest.mark.parametrize("fault", ["noflock", "badflock"])
def test_no_rank_is_left_waiting(training, tmp_path: Path, fault: str) -> None:
    """File locks fail on rank 0 alone; two ranks learn of it."""
    done = training.warm(2, tmp_path, f"{fault}:0:1:1", run__stop_at=1)
    assert "Traceback" not in done.stderr
    if fault == "noflock":
        assert done.returncode == 0 and "has no flock (Function not implemented)" in done.stderr
    else:
        assert done.returncode == 5 and "Input/output error" in done.stderr


def test_what_rank_0_cannot_write_is_an_error_of_all_ranks(training, tmp_path: Path) -> None:
    """The disk refuses metrics.jsonl at the run's beginning."""
    done = training.warm(2, tmp_path, "unwritable:0:1:1", run__stop_at=1, engine__timeout_seconds=20)
    assert done.returncode == 5 and "Traceback" not in done.stderr, done.stderr
    assert f"{tmp_path}/metrics.jsonl cannot be written: Permission denied" in done.stderr
    training.trained(2, tmp_path, run__stop_at=1)
