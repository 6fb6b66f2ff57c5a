"""Ctrl-C, and stops in the middle of a step: what is complete is saved, and the run resumes to the last bit."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trainer.checkpoint import format as checkpoints
from trainer.cli import check_launcher, main
from trainer.distributed.preemption import StopRequest

LISTENER = """
import sys, time
from trainer.distributed.preemption import StopRequest
stop = StopRequest().listen()
if sys.argv[1] in ("training", "between"):
    stop.training_begins()
if sys.argv[1] == "between":
    stop.training_ends()
print("ready", flush=True)
for _ in range(500):
    time.sleep(0.02)
    if stop.asked and sys.argv[2] == "obeys":
        sys.exit(75)
"""


def listener(*arguments: str) -> subprocess.Popen[str]:
    """A process that listens to signals, in its first phase, in training or after it, and obeys them or not."""
    process = subprocess.Popen(
        [sys.executable, "-c", LISTENER, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def test_hundreds_of_signals_are_one_request() -> None:
    process = listener("training", "is deaf")
    for _ in range(400):
        process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    time.sleep(0.7)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate()
    assert process.returncode == 130 and told.count("clozeline:") == 2 and "Traceback" not in told, told


@pytest.mark.parametrize(("task", "told"), [(0, 1), (1, 0)], ids=["first-task", "second-task"])
def test_tasks_of_srun_without_ranks_are_refused(training, tmp_path, monkeypatch, capsys, task: int, told: int) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("SLURM_NTASKS", "4")
    monkeypatch.setenv("SLURM_PROCID", str(task))
    assert main(training.flags(tmp_path / "run"), StopRequest()) == 2
    assert capsys.readouterr().err.count("clozeline: srun started 4 tasks, but RANK is not set") == told
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "environment",
    [{"SLURM_NTASKS": "4", "RANK": "2"}, {"SLURM_NTASKS": "1"}, {"SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "1"}, {}],
    ids=["ranks", "one-task", "one-task-of-a-larger-job", "no-slurm"],
)
def test_other_starts_are_not_refused(monkeypatch, environment: dict[str, str]) -> None:
    for name in ("RANK", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    check_launcher()


@pytest.mark.parametrize(
    ("phase", "pauses", "code", "message"),
    [
        ("starting", [], 130, "clozeline: interrupted before training began. Nothing was lost"),
        ("between", [], 130, "clozeline: interrupted between two trainings. Nothing was lost; the same command cont"),
        ("training", [0.7], 130, "clozeline: interrupted again, ended without saving."),
    ],
    ids=["before-training", "between-trainings", "second-interrupt"],
)
def test_an_interrupt_ends_at_once(phase: str, pauses: list[float], code: int, message: str) -> None:
    process = listener(phase, "is deaf")
    process.send_signal(signal.SIGINT)
    for pause in pauses:
        time.sleep(pause)
        process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=20)
    assert process.returncode == code
    assert error.splitlines()[-1].startswith(message) and "Traceback" not in error


def test_a_doubled_interrupt_is_one_request() -> None:
    """As `timeout -s INT` sends it: to the process, and to its group."""
    process = listener("training", "obeys")
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=20)
    assert process.returncode == 75
    assert error.count("clozeline: interrupted: saving the last complete step.") == 1


def test_an_interrupt_while_the_program_starts(training, tmp_path: Path) -> None:
    """Before torch is imported; exit 130 with one line of ours."""
    process = training.start("python", tmp_path / "run")
    while process.poll() is None and not catches_interrupts(process.pid):
        time.sleep(0.01)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    told, _ = process.communicate(timeout=120)
    assert process.returncode == 130, told
    assert told.count("clozeline:") == 1 and "Traceback" not in told


def catches_interrupts(pid: int) -> bool:
    """Whether a process has the handler of `StopRequest`: Python's own is there for SIGINT, but none for SIGUSR1."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = next((line for line in status.splitlines() if line.startswith("SigCgt")), "SigCgt: 0")
    return bool(int(caught.split()[1], 16) & 1 << (signal.SIGUSR1 - 1))


LONG_STEPS = {"batch__micro_batch": 1, "run__max_steps": 4, "checkpoint__every": 10, "run__log_every": 3}


@pytest.mark.parametrize(
    ("ranks", "fault", "saved", "changes"),
    [
        (1, "ask:0:35:35", 2, {}),
        (1, "interrupt:0:5:5", 0, {}),
        (2, "interrupt:1:18:18", 2, {}),
        (2, "ask:0:11:11", 1, {"engine__zero_stage": 3}),
    ],
    ids=["one-rank", "first-step", "two-ranks-interrupt", "two-ranks-zero-3"],
)
def test_a_stop_inside_a_step_saves_the_step_before(
    training, tmp_path: Path, ranks: int, fault: str, saved: int, changes: dict[str, object]
) -> None:
    """A step has 16 micro-batches on one rank, 8 on two; the one in which the signal comes makes no update."""
    changes = LONG_STEPS | changes
    straight = tmp_path / "straight"
    out = tmp_path / "run"
    assert training.warm(ranks, straight, **changes).returncode == 0
    done = training.warm(ranks, out, fault, **changes)
    assert done.returncode == 75 and "Traceback" not in done.stderr, done.stderr
    assert f"asked to stop; step {saved} of 4 is saved" in done.stderr
    assert checkpoints.steps_saved(str(out)) == [saved]

    done = training.warm(ranks, out, **changes)
    assert done.returncode == 0, done.stderr
    assert training.losses(out) == training.losses(straight)
    assert training.tensors(out, 4) == training.tensors(straight, 4)


@pytest.mark.parametrize("launcher", ["deepspeed", pytest.param("torchrun", marks=pytest.mark.thorough)])
def test_ctrl_c_at_a_launcher_saves(training, tmp_path: Path, launcher: str) -> None:
    """SIGINT to the launcher's process group, as a terminal sends it. The launcher's own exit code is its own."""
    out = tmp_path / "run"
    process = training.start(launcher, out, run__max_steps=100_000, checkpoint__every=100_000)
    metrics = out / "metrics.jsonl"
    while process.poll() is None and (not metrics.exists() or metrics.read_text().count("\n") < 3):
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    told, _ = process.communicate(timeout=120)
    saved = checkpoints.steps_saved(str(out))
    assert len(saved) == 1 and saved[0] >= 3, told
    assert f"step {saved[0]} of 100000 is saved" in told
    assert f'File "{Path.cwd()}/trainer' not in told, "a traceback of ours"


@pytest.mark.parametrize("name", ["RANK", "LOCAL_RANK", "WORLD_SIZE"])
def test_a_rank_that_is_no_number_is_named(name: str, monkeypatch, capsys) -> None:
    monkeypatch.setenv(name, "abc")
    assert main(["--config", "tests/recipes/small_bert.toml"]) == 2
    assert capsys.readouterr().err.startswith(
        f"clozeline: The environment variable {name} is 'abc', not a whole number"
    )
