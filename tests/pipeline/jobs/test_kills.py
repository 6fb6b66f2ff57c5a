"""Pipeline commands that lose a process or get a signal: nothing hangs, nothing is left behind, the next try finishes.

The commands are real ones with two worker processes, started as a user starts them.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from schemas.manifest import NAME
from tests.forked import Command
from tests.processes import wait_for

THOROUGH = pytest.mark.thorough
TIMEOUT = 120
"""Seconds after which a command counts as hung, on a busy machine too."""


@pytest.fixture(scope="module")
def large_corpus(documents: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve files, so that both workers are busy for some seconds."""
    folder = tmp_path_factory.mktemp("kills") / "corpus"
    folder.mkdir()
    for number in range(12):
        lines = (
            json.dumps({"text": f"File {number}, part {i}. {text}"}) + "\n" for i in range(15) for text in documents
        )
        (folder / f"{number:02d}.jsonl").write_text("".join(lines))
    return folder


def start(corpus: Path, output: Path, cwd: Path | None = None, workers: int = 2) -> subprocess.Popen[str]:
    """`shard` with worker processes, or with one worker in the command itself, in a new process group."""
    words = ["shard", "--input", f"{corpus}/*.jsonl", "--output", str(output), "--direct_num_workers", str(workers)]
    return Command(["clozeline", *words], folder=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def wait_for_workers(process: subprocess.Popen[str], output: Path) -> list[psutil.Process]:
    """All processes below the command, once the first piece shows that its workers are at work."""
    wait_for(lambda: any(output.glob("_unfinished-*/run-*.run")), "no piece was written in time", process)
    return psutil.Process(process.pid).children(recursive=True)


def wait_for_other_workers(process: subprocess.Popen[str], first: list[psutil.Process]) -> list[psutil.Process]:
    """The processes below the command, once all of `first` are gone and as many others have come."""

    def others() -> list[psutil.Process]:
        children = psutil.Process(process.pid).children(recursive=True)
        return [child for child in children if child not in first and child.status() != psutil.STATUS_ZOMBIE]

    wait_for(lambda: len(others()) >= len(first), "no other worker was started in time", process)
    return others()


def ended(processes: list[psutil.Process], within: float) -> bool:
    """Whether all of them end in so many seconds."""
    _, alive = psutil.wait_procs(processes, timeout=within)
    return all(process.status() == psutil.STATUS_ZOMBIE for process in alive if process.is_running())


def fingerprint(output: Path) -> str:
    return json.loads((output / NAME).read_text())["fingerprint"]


def finish(corpus: Path, output: Path) -> str:
    """Run the command to its end and return the fingerprint of what it made."""
    process = start(corpus, output)
    told, _ = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, told
    assert not list(output.glob("_unfinished-*"))
    return fingerprint(output)


@pytest.fixture(scope="module")
def undisturbed(large_corpus: Path) -> str:
    return finish(large_corpus, large_corpus.parent / "undisturbed")


SIGNALS = [(signal.SIGTERM, False), (signal.SIGINT, True)]
SIGNALS_AT_NIGHT = [(signal.SIGINT, False), (signal.SIGHUP, False), (signal.SIGTERM, True), (signal.SIGHUP, True)]


@pytest.mark.parametrize(
    ("number", "to_group"), [*SIGNALS, *(pytest.param(*case, marks=THOROUGH) for case in SIGNALS_AT_NIGHT)]
)
def test_a_signal_ends_the_command_and_its_workers(
    number: signal.Signals, to_group: bool, large_corpus: Path, tmp_path: Path
) -> None:
    """To the process group, as a terminal, scancel and systemd send it; `timeout` sends it to the command twice."""
    output = tmp_path / "text"
    process = start(large_corpus, output)
    workers = wait_for_workers(process, output)

    process.send_signal(number)
    if to_group:
        os.killpg(process.pid, number)
    told, _ = process.communicate(timeout=TIMEOUT)

    assert process.returncode == 130, told
    *before, last = told.splitlines()
    assert last == "clozeline: stopped. Run the same command again to continue; finished pieces are reused."
    assert "Traceback" not in told and not (before and to_group)
    assert ended(workers, within=10)
    assert [path.name[:12] for path in output.iterdir()] == ["_unfinished-"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_a_signal_stops_work_in_the_command_itself(number: signal.Signals, large_corpus: Path, tmp_path: Path) -> None:
    """Beam catches the interrupt wherever the work is, and raises another error."""
    process = start(large_corpus, tmp_path / "text", workers=1)
    wait_for_workers(process, tmp_path / "text")
    told = stopped(process, number)
    assert told.strip().splitlines()[-1].startswith("clozeline: stopped. Run the same command again"), told
    assert "Traceback" not in told


@pytest.mark.parametrize("victims", ["one worker", pytest.param("all workers", marks=THOROUGH)])
def test_a_command_that_is_stopped_while_it_loses_workers_stops(
    victims: str, large_corpus: Path, tmp_path: Path
) -> None:
    """A worker's end may be seen before the signal: something that ends a whole group begins anywhere in it."""
    output = tmp_path / "text"
    process = start(large_corpus, output)
    workers = wait_for_workers(process, output)

    for worker in workers[-1:] if victims == "one worker" else workers:
        worker.kill()
    time.sleep(0.1)
    process.terminate()
    told, _ = process.communicate(timeout=TIMEOUT)

    assert process.returncode == 130, told
    assert "was killed" not in told and "Traceback" not in told
    assert told.strip().splitlines()[-1].startswith("clozeline: stopped."), told
    assert ended(workers, within=10)


def test_a_command_that_is_stopped_after_its_result_is_in_place_says_so(documents: list[str], tmp_path: Path) -> None:
    """It has much to remove, which earlier jobs have left."""
    (tmp_path / "small.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    output = tmp_path / "text"
    left = output / "_unfinished-0123456789abcdef"
    left.mkdir(parents=True)
    for number in range(20_000):
        (left / f"piece-{number}").touch()
    process = start(tmp_path, output, workers=1)
    deadline = time.monotonic() + TIMEOUT
    while not (output / NAME).exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.002)

    os.killpg(process.pid, signal.SIGTERM)
    told, _ = process.communicate(timeout=TIMEOUT)

    assert process.returncode == 130, told
    assert told.splitlines()[-1] == (
        f"clozeline: stopped once {output} was finished: its manifest.json is in place. The same command does only "
        "what is left to do."
    )
    process = start(tmp_path, output, workers=1)
    told, _ = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0 and "is already finished by this command" in told, told
    assert not list(output.glob("_*"))


def test_a_killed_command_leaves_no_worker_and_is_finished_by_the_next(
    large_corpus: Path, undisturbed: str, tmp_path: Path
) -> None:
    output = tmp_path / "text"
    process = start(large_corpus, output)
    workers = wait_for_workers(process, output)

    process.kill()
    process.wait()

    assert ended(workers, within=10)
    told, _ = process.communicate()
    assert told == "", "workers whose launcher is gone say nothing"
    assert finish(large_corpus, output) == undisturbed


def test_a_killed_worker_is_one_line_and_the_job_goes_on(large_corpus: Path, undisturbed: str, tmp_path: Path) -> None:
    output = tmp_path / "text"
    process = start(large_corpus, output)
    workers = wait_for_workers(process, output)

    workers[-1].kill()
    told, _ = process.communicate(timeout=TIMEOUT)

    assert process.returncode == 0, told
    first, *_ = told.strip().splitlines()
    assert first.startswith("clozeline: A worker process was killed") and "Trying again" in first
    assert "Traceback" not in told
    assert fingerprint(output) == undisturbed
    assert ended(workers, within=10)


@THOROUGH
def test_a_second_killed_worker_ends_the_job_and_the_next_try_finishes(
    large_corpus: Path, undisturbed: str, tmp_path: Path
) -> None:
    output = tmp_path / "text"
    process = start(large_corpus, output)
    first = wait_for_workers(process, output)
    first[-1].kill()
    second = wait_for_other_workers(process, first)
    second[-1].kill()
    told, _ = process.communicate(timeout=TIMEOUT)

    assert process.returncode == 1, told
    assert "Traceback" not in told
    assert "worker process" in told.strip().splitlines()[-1]
    assert ended([*first, *second], within=10)
    assert finish(large_corpus, output) == undisturbed


@pytest.fixture(scope="module")
def seconds(large_corpus: Path, undisturbed: str) -> float:
    """How long the command takes if nothing ends it."""
    began = time.monotonic()
    assert finish(large_corpus, large_corpus.parent / "timed") == undisturbed
    return time.monotonic() - began


@THOROUGH
@pytest.mark.parametrize("number", range(20))
def test_kills_at_any_moment_leave_no_trace_in_the_bytes(
    number: int, large_corpus: Path, undisturbed: str, seconds: float, tmp_path: Path
) -> None:
    """SIGKILL to the command, to one worker or to the whole group, from its first moment on."""
    rng = random.Random(number)
    output = tmp_path / "text"
    process = start(large_corpus, output)
    delay = rng.uniform(0, seconds)
    time.sleep(delay)
    if process.poll() is not None:
        pytest.skip("the job was faster than the one that was timed, and ended before its kill")

    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    victim = rng.choice(["command", "worker", "group"])
    if victim == "command":
        process.kill()
    elif victim == "worker":
        family[-1].kill()
    else:
        os.killpg(process.pid, signal.SIGKILL)

    process.communicate(timeout=TIMEOUT)
    print(f"{victim} after {delay:.1f} s: exit {process.returncode}, {len(family) - 1} processes below it")
    assert ended(family, within=10)
    if (output / NAME).exists():
        assert fingerprint(output) == undisturbed
    else:
        assert finish(large_corpus, output) == undisturbed


def wait_for_start_of_workers(process: subprocess.Popen[str]) -> None:
    """Wait until the command has started a worker, which then imports Beam for a second or more."""
    command = psutil.Process(process.pid)
    wait_for(lambda: command.children(recursive=True), "no worker was started", process)


def stopped(process: subprocess.Popen[str], number: signal.Signals) -> str:
    """Send a signal, and return what the command has told once it has ended, which takes a moment."""
    process.send_signal(number)
    try:
        told, _ = process.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    assert process.returncode == 130, told
    return told


@pytest.mark.parametrize(("number", "after"), [(signal.SIGINT, 0.3), (signal.SIGTERM, 0.0)])
def test_a_stop_while_workers_start_ends_the_command(number, after, large_corpus: Path, tmp_path: Path) -> None:
    """Beam would wait forever for a worker that has not connected yet."""
    process = start(large_corpus, tmp_path / "text")
    wait_for_start_of_workers(process)
    time.sleep(after)
    told = stopped(process, number)
    assert told.splitlines()[-1].startswith("clozeline: stopped. Run the same command again"), told
    assert "Traceback" not in told


@THOROUGH
def test_a_stop_at_any_moment_ends_the_command(large_corpus: Path, tmp_path: Path) -> None:
    rng = random.Random(0)
    for attempt in range(50):
        process = start(large_corpus, tmp_path / f"text_{attempt}")
        wait_for_start_of_workers(process)
        time.sleep(rng.uniform(0.0, 3.0))
        if process.poll() is None:
            process.send_signal(rng.choice([signal.SIGINT, signal.SIGTERM]))
        told, _ = process.communicate(timeout=30)
        assert process.returncode in (0, 130) and "Traceback" not in told, told  # 0: the result was in place before


def test_folders_of_the_user_named_like_ours_do_not_reach_the_workers(corpus: Path, tmp_path: Path) -> None:
    for name in ("pipeline", "trainer", "schemas"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the file of the user was run')\n")
    process = start(corpus.parent, tmp_path / "text", cwd=tmp_path)
    told, _ = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, told
