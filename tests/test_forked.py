"""A forked command is what `python -m` is: what it finds when it starts, what it prints and how it ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests import forked

FACTS = ["python", "-m", "tests.command_facts"]
ENDS = {"exit:0": 0, "exit:75": 75, "say:words": 1, "raise": 1, "interrupt": -signal.SIGINT}


def environment(folder: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(forked.ROOT), "TMPDIR": str(folder), "ONLY": "here"}


@pytest.mark.parametrize("end", ENDS)
def test_a_command_finds_and_does_what_a_new_process_does(end: str, tmp_path: Path) -> None:
    words = [*FACTS, end, "--torch" if end == "exit:75" else "--flag", "a b"]
    done = forked.run(words, environment(tmp_path), tmp_path)
    new = as_new_process(words, tmp_path)
    assert done.returncode == new.returncode == ENDS[end]
    found, own = facts(done.stdout)
    assert found == facts(new.stdout)[0]
    other = facts(forked.run(words, environment(tmp_path), tmp_path).stdout)[1]
    assert all(drawn != again for drawn, again in zip(own["random"], other["random"], strict=True))
    assert done.stdout.splitlines()[1:] == new.stdout.splitlines()[1:]
    assert done.stderr.splitlines()[::-1][:1] == new.stderr.splitlines()[::-1][:1]


def as_new_process(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words[1:]],
        cwd=folder,
        env=environment(folder),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize("end", ["exit:75", "raise"])
def test_what_a_command_starts_finds_and_does_what_a_new_process_does(end: str, tmp_path: Path) -> None:
    words = [*FACTS, f"start:{end}"]
    done = forked.run(words, environment(tmp_path), tmp_path)
    new = as_new_process(words, tmp_path)

    assert done.returncode == new.returncode == ENDS[end]
    [first, second, *others] = done.stdout.splitlines()
    assert [facts(first)[0], facts(second)[0]] == [facts(line)[0] for line in new.stdout.splitlines()[:2]]
    assert facts(first)[1]["random"][0] != facts(second)[1]["random"][0]
    assert others == new.stdout.splitlines()[2:]
    assert done.stderr.splitlines()[-1] == new.stderr.splitlines()[-1]


def facts(printed: str) -> list[Any]:
    return json.loads(printed.splitlines()[0])


def test_a_command_reads_its_input_and_writes_to_files(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as out:
        command = forked.Command([*FACTS, "exit:3"], stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT)
        assert command.communicate("typed") == ("", "")
    assert command.poll() == 3
    written = (tmp_path / "out").read_text()
    assert facts(written)[0]["stdin"] == "typed"
    assert "to stderr" in written


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_signals_end_a_command(number: signal.Signals) -> None:
    command = forked.Command([*FACTS, "wait"], stdout=subprocess.PIPE)
    assert command.stdout is not None
    pid = facts(command.stdout.readline())[1]["pid"]
    assert pid == command.pid
    with pytest.raises(subprocess.TimeoutExpired):
        command.wait(0.01)
    assert command.poll() is None

    command.send_signal(number)
    assert command.wait(10) == -number
    assert not psutil.pid_exists(pid)


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        (["python", "-c", "import sys; print('torch' in sys.modules, sys.flags.optimize)"], {}),
        (["python", "-O", "-m", "tests.command_facts", "exit:0"], {}),
        ([*FACTS, "exit:0", "--torch"], {"OMP_NUM_THREADS": "2"}),
    ],
    ids=["code", "flag", "variable"],
)
def test_what_cannot_be_forked_is_a_new_process(words: list[str], changes: dict[str, str]) -> None:
    command = forked.Command(words, os.environ | changes, stdout=subprocess.PIPE)
    out, _ = command.communicate()
    assert command.returncode == 0
    if words[1] == "-c":
        assert out == "False 0\n"
    if words[1] == "-O":
        assert facts(out)[0]["optimize"] == 1
    if changes:
        assert facts(out)[0]["torch"][0] == 2


@pytest.mark.thorough
def test_a_server_and_its_commands_end_with_the_tests(tmp_path: Path) -> None:
    code = (
        "import os, signal, subprocess; from tests import forked\n"
        f"command = forked.Command({[*FACTS, 'wait']}, stdout=subprocess.PIPE)\n"
        "command.stdout.readline()\n"
        "print(command.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    alone = {name: value for name, value in environment(tmp_path).items() if name != forked.ADDRESS}
    done = subprocess.run([sys.executable, "-c", code], env=alone, capture_output=True, text=True, cwd=forked.ROOT)
    pid = int(done.stdout)
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(pid).wait(timeout=20)
    assert not psutil.pid_exists(pid)
