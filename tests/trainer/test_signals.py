"""A signal to one rank: all save the same step and exit with 75, and nothing is lost."""

import os
import signal
import time
from pathlib import Path

import pytest

from trainer.signals import STOPPING, StopRequest


def wait_for(path: Path, process) -> None:
    while process.poll() is None and not path.exists():
        time.sleep(0.005)


@pytest.mark.parametrize(("launcher", "rank"), [("deepspeed", 1), ("python", 0)])
def test_a_signalled_run_saves_and_goes_on(training, straight, tmp_path, launcher: str, rank: int) -> None:
    """Once while the first steps are taken, once in warm-up, twice in a row."""
    out = tmp_path / "run"
    process = training.start(launcher, out)
    wait_for(out / "metrics.jsonl", process)
    for number in (signal.SIGTERM, signal.SIGUSR1):
        training.ranks(process)[rank].send_signal(number)
    told, _ = process.communicate()
    assert process.returncode == 75, told
    assert "Traceback" not in told and told.count("asked to stop") == 1
    saved = sorted((out / "checkpoints").iterdir())
    assert f"step {int(saved[-1].name[5:])} of 12 is saved" in told

    process = training.start(launcher, out)
    ranks = []
    while process.poll() is None and len(ranks) <= rank:
        ranks = training.ranks(process)
    while process.poll() is None and not listens(ranks[rank].pid):
        time.sleep(0.005)
    ranks[rank].send_signal(signal.SIGTERM)
    told, _ = process.communicate()
    assert process.returncode == 75, told
    done = training.run(launcher, out)
    assert done.returncode == 0, done.stderr
    if launcher == "deepspeed":
        assert training.losses(out) == training.losses(straight)
        assert training.tensors(out, 12) == training.tensors(straight, 12)


def listens(pid: int) -> bool:
    """Whether a process has a handler for SIGUSR1, as Linux tells it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = next((line for line in status.splitlines() if line.startswith("SigCgt")), "SigCgt: 0")
    return bool(int(caught.split()[1], 16) & 1 << (signal.SIGUSR1 - 1))


def test_a_request_is_noted_once_and_for_all() -> None:
    before = [signal.getsignal(number) for number in STOPPING]
    try:
        stop = StopRequest().listen()
        assert not stop.asked
        os.kill(os.getpid(), signal.SIGUSR1)
        assert stop.asked
        stop.ignore()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.asked
    finally:
        for number, handler in zip(STOPPING, before, strict=True):
            signal.signal(number, handler)
