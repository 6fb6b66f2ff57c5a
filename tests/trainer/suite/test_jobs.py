"""The scheduler with real processes that only pretend to compute."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from time import monotonic, sleep

import pytest

from schemas.errors import PreemptedError
from trainer.distributed.stop import StopRequest
from trainer.suite.jobs import Job, Scheduler, last_error, slots

CHILD = """\
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_DFL)  # tests of other folders may have left it ignored
folder, name, what = sys.argv[1:]
path = pathlib.Path(folder)
with (path / "order").open("a") as file:
    file.write(f"{name}\\n")
if what == "fail":
    print("clozeline: an older line")
    sys.exit("clozeline: the file is missing")
if what == "die":
    import os, signal
    os.kill(os.getpid(), signal.SIGKILL)
if what == "wait":
    time.sleep(60)
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which `trainer.suite.child` is a small program that notes its start."""
    package = tmp_path / "path/trainer/suite"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").write_text("")
    (package / "child.py").write_text(CHILD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def job(folder: Path, name: str, what: str = "", needs: tuple[str, ...] = ()) -> Job:
    return Job(name, (str(folder), name, what), needs)


def test_needs_come_first_and_failures_stay_alone(program: Path) -> None:
    jobs = [
        job(program, "a/late", needs=("a/early",)),
        job(program, "a/early"),
        job(program, "b/bad", "fail"),
        job(program, "b/after", needs=("b/bad",)),
        job(program, "b/after_that", needs=("b/after",)),
        job(program, "c/dies", "die"),
    ]
    found = Scheduler(jobs, [{}, {}], program / "logs", StopRequest())
    found.run()
    assert found.errors == {
        "b/bad": "the file is missing",
        "b/after": "not started, because b/bad failed",
        "b/after_that": "not started, because b/after failed",
        "c/dies": f"ended by signal 9 (Killed); see {program / 'logs/c/dies.log'}",
    }
    started = (program / "order").read_text().split()
    assert sorted(started) == ["a/early", "a/late", "b/bad", "c/dies"]
    assert started.index("a/early") < started.index("a/late")


def test_what_is_done_is_not_started_again(program: Path) -> None:
    prepared: list[str] = []
    jobs = [
        Job("a", ("x", "a", ""), is_done=lambda: True, prepare=lambda: prepared.append("a")),
        Job("b", (str(program), "b", ""), ("a",), prepare=lambda: prepared.append("b")),
    ]
    Scheduler(jobs, [{}], program / "logs", StopRequest()).run()
    assert (program / "order").read_text() == "b\n"
    assert prepared == ["b"]


def test_the_log_has_scores_failures_and_places(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = [
        Job("a/rte", (str(program), "a", ""), score=lambda: "accuracy 0.7500"),
        job(program, "a/mnli", "fail"),
        job(program, "a/mrpc", needs=("a/mnli",)),
        job(program, "a/export"),
    ]
    Scheduler(jobs, [{}], program / "logs", StopRequest()).run()
    lines = [re.sub(r"\d+ s$", "N s", line) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == f"a/rte: started, with its log in {program / 'logs/a/rte.log'}"
    assert [line for line in lines if ": started" not in line] == [
        "a/rte: done (1 of 4): accuracy 0.7500, N s",
        "a/mnli: failed (2 of 4): the file is missing",
        "a/mrpc: not started (3 of 4), because a/mnli failed",
        "a/export: done (4 of 4): N s",
    ]


def test_a_stop_ends_all_processes(program: Path) -> None:
    stop = StopRequest()
    jobs = [job(program, name, "wait") for name in "abc"]
    found = Scheduler(jobs, [{}, {}], program / "logs", stop)

    def ask_when_started() -> None:
        while not (program / "order").exists() or len((program / "order").read_text().split()) < 2:
            sleep(0.05)
        stop.asked = True

    thread = threading.Thread(target=ask_when_started)
    thread.start()
    began = monotonic()
    with pytest.raises(PreemptedError, match="0 of 3 jobs done") as error:
        found.run()
    thread.join()
    assert error.value.exit_code == 75
    assert monotonic() - began < 50
    assert found.errors == {}


def test_the_last_error_of_a_long_log(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("clozeline: first\n" + "x" * 20_000 + "\nclozeline: last\nafter it\n")
    assert last_error(path) == "last"
    path.write_text("nothing\n")
    assert last_error(path) is None


def test_slots_are_gpus_or_cores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for number in range(8):  # a machine with GPUs, and without nvidia-smi
        (tmp_path / f"nvidia{number}").touch()
    monkeypatch.setattr("schemas.host_limits.DEVICES", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    assert [slot["CUDA_VISIBLE_DEVICES"] for slot in slots(None)] == ["2", "5"]
    assert [slot["CUDA_VISIBLE_DEVICES"] for slot in slots(3)] == ["2", "5", "2"]

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("trainer.suite.jobs.usable_cores", lambda: 3)
    assert [slot["OMP_NUM_THREADS"] for slot in slots(None)] == ["1", "1", "1"]
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert slots(1)[0]["OMP_NUM_THREADS"] == "4"
