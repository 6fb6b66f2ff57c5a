"""A signal to one rank: all save the same step and exit with 75, and nothing is lost."""

import contextlib
import json
import os
import random
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.trainer.conftest import SHRUNK
from trainer.checkpoint import format as checkpoints
from trainer.distributed.preemption import LISTENED, STOPPING, StopRequest
from trainer.metrics.log import TIMED


def wait_for(path: Path, process) -> None:
    while process.poll() is None and not (path.exists() and path.stat().st_size):
        time.sleep(0.005)


@pytest.mark.parametrize(
    ("launcher", "rank"), [pytest.param("deepspeed", 1, marks=pytest.mark.thorough), ("python", 0)]
)
def test_a_signaled_run_saves_and_resumes(training, straight, tmp_path, launcher: str, rank: int) -> None:
    """Twice in a row while the first steps are taken, and once before there are any."""
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
    asked_at = time.monotonic()
    told, _ = process.communicate()
    assert process.returncode == 75, told
    if launcher == "python":
        assert time.monotonic() - asked_at < 5 and "asked to stop before training began" in told
    done = training.run(launcher, out)
    assert done.returncode == 0, done.stderr
    if launcher == "deepspeed":
        assert training.losses(out) == training.losses(straight)
        assert training.tensors(out, 12) == training.tensors(straight, 12)


@pytest.fixture(scope="module")
def evaluated(training, held_out, tmp_path_factory) -> tuple[Path, dict[str, object]]:
    """An unbroken run on one rank that measures itself every 4 steps, and what makes it differ from others."""
    out = tmp_path_factory.mktemp("evaluated") / "run"
    changes = {"evaluation__pairs": held_out, "evaluation__every": 4, "checkpoint__keep": 9}
    done = training.warm(1, out, **changes)
    assert done.returncode == 0, done.stderr
    return out, changes


@pytest.mark.parametrize("step", [4, pytest.param(12, marks=pytest.mark.thorough)])
def test_a_signal_in_an_evaluation_stops_it_and_it_is_rerun_on_resume(
    training, evaluated, held_out, tmp_path, step: int
) -> None:
    """In the middle of it, at the run's end too; metrics and the best checkpoint become what they would have been."""
    straight, changes = evaluated
    out = tmp_path / "run"
    rows = json.loads((held_out / "manifest.json").read_text())["totals"]["rows"]
    batches = min(rows // 16, SHRUNK["evaluation.batches"])
    forward = 4 * step + 4 * batches * (step // 4 - 1) + 2  # four micro-batches of every batch
    fault = f"ask:0:{forward}:{forward}"
    done = training.warm(1, out, fault, **changes)
    assert done.returncode == 75, done.stderr
    assert (
        f"asked to stop; step {step} of 12 is saved" in done.stderr and done.stdout.count("held out") == step // 4 - 1
    )
    assert list(metrics(out)) == list(range(1, step + 1)) and "eval_mlm_loss" not in metrics(out)[step]
    for _ in range(2):
        done = training.warm(1, out, **changes)
        assert done.returncode == 0, done.stderr
    assert "held out" not in done.stdout, "measured once and for all"
    assert metrics(out) == metrics(straight) and metrics(out)[step]["eval_mlm_loss"] > 0
    assert checkpoints.best_step(str(out)) == checkpoints.best_step(str(straight)) is not None


def metrics(out: Path) -> dict[int, dict]:
    """What a run logged at each step, but for times."""
    found: dict[int, dict] = {}
    for text in (out / "metrics.jsonl").read_text().splitlines():
        line = json.loads(text)
        values = {name: v for name, v in line.items() if name not in TIMED}
        found[line["step"]] = found.get(line["step"], {}) | values
    return found


@pytest.mark.thorough
def test_twenty_signals_at_random_moments(training, held_out, tmp_path, steps: int = 2000) -> None:
    """To one rank of two, from the moment that it listens on: start, steps, evaluations, saves, the end."""
    changes = {"run__max_steps": steps, "evaluation__pairs": held_out, "evaluation__every": 4, "evaluation__batches": 4}
    draws = random.Random(1)
    out = tmp_path / "run"
    straight = tmp_path / "straight"
    for _ in range(20):
        process = training.start("deepspeed", out, **changes)
        rank = draws.randrange(2)
        ranks = []
        while process.poll() is None and len(ranks) < 2:
            ranks = training.ranks(process)
        while process.poll() is None and not listens(ranks[rank].pid):
            time.sleep(0.005)
        time.sleep(draws.random() * 14)
        with contextlib.suppress(psutil.NoSuchProcess):
            ranks[rank].send_signal(draws.choice(STOPPING))
        told, _ = process.communicate()
        assert process.returncode == 75 and "Traceback" not in told, told
    for where in (out, straight):
        done = training.run("deepspeed", where, **changes)
        assert done.returncode == 0, done.stderr
    assert metrics(out) == metrics(straight)
    assert training.tensors(out, steps) == training.tensors(straight, steps)
    print("20 signals: exit code 75 each time, and nothing lost")


def listens(pid: int) -> bool:
    """Whether a process has a handler for SIGUSR1, as Linux tells it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = next((line for line in status.splitlines() if line.startswith("SigCgt")), "SigCgt: 0")
    return bool(int(caught.split()[1], 16) & 1 << (signal.SIGUSR1 - 1))


def test_a_request_of_one_of_several_ranks_is_noted_once_and_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    before = [signal.getsignal(number) for number in LISTENED]
    try:
        stop = StopRequest().listen()
        assert not stop.asked
        os.kill(os.getpid(), signal.SIGUSR1)
        assert stop.asked
        stop.ignore()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.asked
    finally:
        for number, handler in zip(LISTENED, before, strict=True):
            signal.signal(number, handler)
