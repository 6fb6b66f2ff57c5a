"""What a local job reports when a worker process ends: the loss, or the error that came before it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import psutil
import pytest

from pipeline.beam import local
from pipeline.beam.internals import WORKER_THREADS
from pipeline.beam.local import WorkerLostError, supervised
from pipeline.commit.failures import carried
from pipeline.environment import set_in_environment
from schemas.errors import StorageError
from tests.conftest import Run
from tests.processes import started, wait_for


def end_a_worker(code: int = 1) -> None:
    """Raise in a thread that waits for a worker, as Beam does when the process has ended."""

    def wait_for_worker() -> None:
        raise RuntimeError(f"Worker subprocess exited with return code {code}")

    thread = threading.Thread(target=wait_for_worker, name=WORKER_THREADS[0])
    thread.start()
    thread.join()


@pytest.mark.parametrize(("code", "cause"), [(1, "ended with exit code 1"), (-9, "was killed; when memory")])
def test_a_lost_worker_is_reported_with_its_cause(code: int, cause: str) -> None:
    with pytest.raises(WorkerLostError, match=cause), supervised():
        end_a_worker(code)
        raise RuntimeError("Beam noticed")


def test_a_broken_channel_is_a_lost_worker() -> None:
    with pytest.raises(WorkerLostError), supervised():
        raise RuntimeError("Channel closed prematurely.")


def test_an_error_of_ours_is_the_cause_of_a_worker_that_ends_after_it() -> None:
    with pytest.raises(RuntimeError, match="The disk is full"), supervised():
        end_a_worker()
        raise carried(StorageError("The disk is full"))


def test_other_errors_stay_as_they_are() -> None:
    hook = threading.excepthook
    with pytest.raises(RuntimeError, match="a fault of the program"), supervised():
        raise RuntimeError("a fault of the program")
    assert threading.excepthook is hook


def test_workers_are_reached_without_the_proxy_of_a_company(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("The river is long.\n\nIt rains.\n")
    flags = ("--input", tmp_path / "a.txt", "--output", tmp_path / "text", "--direct_num_workers", "2")
    proxy = "http://127.0.0.1:9"  # nothing listens
    proxies = {"http_proxy": proxy, "https_proxy": proxy, "grpc_proxy": proxy, "no_proxy": "intranet"}
    done = run("python", "-m", "pipeline", "shard", *flags, timeout=60, **proxies)
    assert done.returncode == 0 and "2 documents" in done.stdout, done.stderr


def test_hosts_that_a_user_reaches_without_a_proxy_stay() -> None:
    environment = {"no_proxy": "intranet"}
    assert set_in_environment(environment)
    assert environment["no_grpc_proxy"] == "intranet,localhost,127.0.0.1" and environment["no_proxy"] == "intranet"
    assert not set_in_environment(environment)


def test_a_worker_that_cannot_reach_its_launcher_says_so(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setenv("CONTROL_API_SERVICE_DESCRIPTOR", 'url: "localhost:9"')  # nothing listens
    monkeypatch.setattr(local, "REACH_SECONDS", 0.5)
    with pytest.raises(SystemExit):
        local._reach_launcher()
    assert "cannot reach its launcher at localhost:9" in capsys.readouterr().err


@pytest.mark.parametrize("signals", [[signal.SIGTERM], [signal.SIGINT, signal.SIGINT]])
def test_a_stopped_command_does_not_wait_for_a_worker_that_does_not_answer(tmp_path: Path, signals: list[int]) -> None:
    (tmp_path / "a.txt").write_text("The river is long.\n")
    (tmp_path / "tmp").mkdir()
    flags = ("--input", tmp_path / "a.txt", "--output", tmp_path / "text", "--direct_num_workers", "2")
    command = started(
        [sys.executable, "-m", "pipeline", "shard", *flags], env=os.environ | {"TMPDIR": f"{tmp_path}/tmp"}
    )

    def workers() -> list[psutil.Process]:
        return [one for one in psutil.Process(command.pid).children() if "pipeline.beam.local" in one.cmdline()]

    wait_for(lambda: len(workers()) == 2, "two workers did not start", command)
    began = workers()
    began[0].suspend()
    for number in signals:
        command.send_signal(number)
    told, _ = command.communicate(timeout=30)
    assert command.returncode == 130 and "stopped" in told, told
    assert not any(one.is_running() for one in began) and not os.listdir(tmp_path / "tmp")
