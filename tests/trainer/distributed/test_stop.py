"""Signals to one rank or to all: what is complete is saved, and the run resumes to the last bit."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests import forked
from tests.trainer.conftest import SHRUNK, TIMED, logged
from trainer.checkpoint import format as checkpoints
from trainer.cli import check_launcher, main
from trainer.command_line import raise_at_ctrl_c
from trainer.distributed.stop import STOPPING, StopRequest, listened
from trainer.report import main as report


def wait_for(path: Path, process) -> None:
    while process.poll() is None and not (path.exists() and path.stat().st_size):
        time.sleep(0.005)


@pytest.mark.parametrize(
    ("launcher", "rank"), [pytest.param("deepspeed", 1, marks=pytest.mark.thorough), ("python", 0)]
)
def test_a_signaled_run_saves_and_resumes(training, straight, tmp_path, launcher: str, rank: int) -> None:
    """Twice in a row while the first steps are taken, and once before there are any."""
    out = tmp_path / "run"
    # The signals must come before the last step. With DeepSpeed's launcher the whole run is compared.
    steps = 12 if launcher == "deepspeed" else 5000
    process = training.start(launcher, out, run__max_steps=steps)
    wait_for(out / "metrics.jsonl", process)
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
        training.ranks(process)[rank].send_signal(number)
    told, _ = process.communicate()
    assert process.returncode == 75, told
    assert "Traceback" not in told and told.count("asked to stop") == 1
    saved = sorted((out / "checkpoints").iterdir())
    step = int(saved[-1].name[5:])
    assert f"step {step} of {steps} is saved" in told

    process = training.start(launcher, out, run__max_steps=steps)
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
    done = training.run(launcher, out, run__max_steps=steps, run__stop_at=min(steps, step + 4))
    assert done.returncode == 0, done.stderr
    if launcher == "deepspeed":
        assert training.losses(out) == training.losses(straight)
        assert training.tensors(out, 12) == training.tensors(straight, 12)


@pytest.fixture(scope="module")
def evaluated(training, held_out, tmp_path_factory) -> tuple[Path, dict[str, object]]:
    """An unbroken run on one rank that measures itself every 4 steps, and what makes it differ from others."""
    out = tmp_path_factory.mktemp("evaluated") / "run"
    changes = {"evaluation__pairs": held_out, "evaluation__every": 4, "checkpoint__keep": 9}
    training.trained(1, out, **changes)
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
        done = training.trained(1, out, **changes)
    assert "held out" not in done.stdout, "measured once and for all"
    assert metrics(out) == metrics(straight) and metrics(out)[step]["eval_mlm_loss"] > 0
    assert checkpoints.best_step(str(out)) == checkpoints.best_step(str(straight)) is not None


def test_a_signal_to_one_of_two_ranks_stops_both_within_an_evaluation(training, held_out, tmp_path: Path) -> None:
    """Two batches after the signal at most, as in a step."""
    changes = {"evaluation__pairs": held_out, "evaluation__every": 4}
    forward = 2 * 4 + 3  # two micro-batches a step of each rank, and the second batch of the evaluation
    done = training.warm(2, tmp_path, f"ask:1:{forward}:{forward}", **changes)
    assert done.returncode == 75 and "Traceback" not in done.stderr, done.stderr
    assert "asked to stop; step 4 of 12 is saved" in done.stderr and "held out" not in done.stdout
    assert checkpoints.steps_saved(str(tmp_path)) == [4]


def metrics(out: Path) -> dict[int, dict]:
    """What a run logged at each step, but for times."""
    found: dict[int, dict] = {}
    for line in logged(out):
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
    before = {number: signal.getsignal(number) for number in listened()}
    try:
        stop = StopRequest().listen()
        assert not stop.asked
        os.kill(os.getpid(), signal.SIGUSR1)
        assert stop.asked
        stop.ignore()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


LISTENER = """
import sys, time
from trainer.distributed.stop import StopRequest
stop = StopRequest().listen()
if sys.argv[1] == "training":
    stop.training_begins()
print("ready", flush=True)
for _ in range(500):
    time.sleep(0.02)
    if stop.asked and sys.argv[2] == "obeys":
        sys.exit(75)
"""


def listener(*arguments: str) -> subprocess.Popen[str]:
    """A process that listens to signals, in its first phase or in training, and obeys them or not."""
    process = subprocess.Popen(
        [sys.executable, "-c", LISTENER, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_an_ignored_signal_stays_ignored(number: signal.Signals) -> None:
    """`nohup` starts commands so, and a shell those in the background of a script."""
    before = signal.signal(number, signal.SIG_IGN)
    try:
        obeyed = {one for one in (*STOPPING, signal.SIGINT) if signal.getsignal(one) is not signal.SIG_IGN}
        assert set(listened()) == obeyed and number not in obeyed
        raise_at_ctrl_c()
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)


def test_hundreds_of_signals_are_one_request() -> None:
    process = listener("training", "is deaf")
    for _ in range(400):
        process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    time.sleep(0.7)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate()
    assert process.returncode == 130 and told.count("clozeline:") == 2 and "Traceback" not in told, told
    assert told.splitlines()[-1].startswith("clozeline: interrupted again, ended without saving.")


@pytest.mark.parametrize(("task", "told"), [(0, 1), (1, 0)], ids=["first-task", "second-task"])
def test_tasks_of_srun_without_ranks_are_refused(training, tmp_path, monkeypatch, capsys, task: int, told: int) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    monkeypatch.setenv("SLURM_PROCID", str(task))
    assert main(training.flags(tmp_path / "run"), StopRequest()) == 2
    assert capsys.readouterr().err.count("clozeline: srun started 4 tasks, but RANK is not set") == told
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [("MASTER_PORT", ""), ("LOCAL_WORLD_SIZE", "0"), ("RANK", "one"), ("LOCAL_RANK", "abc"), ("WORLD_SIZE", "2x")],
)
def test_variables_that_are_no_numbers_are_named(monkeypatch, capsys, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    assert main(["--config", "tests/recipes/small_bert.toml"]) == 2
    told = f"clozeline: The environment variable {name} is {value!r}, not a whole number"
    assert capsys.readouterr().err.startswith(told)


def test_a_task_of_a_scheduler_tells_errors_of_commands_without_ranks(monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.setenv("SLURM_PROCID", "2")
    assert report([str(tmp_path / "none")]) == 2
    assert f"clozeline: {tmp_path}/none" in capsys.readouterr().err


@pytest.mark.parametrize(
    "environment",
    [
        {"SLURM_STEP_NUM_TASKS": "4", "RANK": "2"},
        {"SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "4"},
        {"SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_JOB_ID": "1"},
        {},
    ],
    ids=["ranks", "one-task-of-a-larger-job", "script-of-sbatch-without-srun", "no-slurm"],
)
def test_other_starts_are_not_refused(monkeypatch, environment: dict[str, str]) -> None:
    for name in ("RANK", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    check_launcher()


def test_an_interrupt_before_training_ends_at_once() -> None:
    process = listener("starting", "is deaf")
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=20)
    assert process.returncode == 130 and "Traceback" not in error
    assert error.splitlines()[-1].startswith("clozeline: interrupted before training began. Nothing was lost")


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
    # -B: in a new process, because a fork has imported torch already.
    process = training.start_words(["python", "-B", *training.command("python", tmp_path / "run")[1:]])
    while process.poll() is None and not listens(process.pid):
        time.sleep(0.01)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    told, _ = process.communicate(timeout=120)
    assert process.returncode == 130, told
    assert told.count("clozeline:") == 1 and "Traceback" not in told


LONG_STEPS = {"batch__micro_batch": 1, "run__max_steps": 3, "checkpoint__every": 10, "run__log_every": 3}
LONG_STEPS["schedule__warmup_steps"] = 2


@pytest.mark.parametrize(
    ("ranks", "fault", "saved", "changes"),
    [
        (1, "interrupt:0:5:5", 0, {}),
        (2, "interrupt:1:18:18", 2, {}),
        (2, "ask:0:11:11", 1, {"engine__zero_stage": 3}),
    ],
    ids=["first-step", "two-ranks-interrupt", "two-ranks-zero-3"],
)
def test_a_stop_inside_a_step_saves_the_step_before(
    training, tmp_path: Path, ranks: int, fault: str, saved: int, changes: dict[str, object]
) -> None:
    """A step has 16 micro-batches on one rank, 8 on two; the one in which the signal comes makes no update."""
    changes = LONG_STEPS | changes
    straight = tmp_path / "straight"
    out = tmp_path / "run"
    training.trained(ranks, straight, **changes)
    done = training.warm(ranks, out, fault, **changes)
    assert done.returncode == 75 and "Traceback" not in done.stderr, done.stderr
    assert f"asked to stop; step {saved} of 3 is saved" in done.stderr
    assert checkpoints.steps_saved(str(out)) == [saved]

    training.trained(ranks, out, **changes)
    assert training.losses(out) == training.losses(straight)
    assert training.tensors(out, 3) == training.tensors(straight, 3)


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


CTRL_C = """
import os, signal
from trainer.distributed.stop import StopRequest
stop = StopRequest().listen()
stop.training_begins()
os.kill(os.getpid(), signal.SIGINT)
assert stop.asked and stop.interrupted
"""


def test_a_request_is_known_as_that_of_ctrl_c_at_once() -> None:
    """Otherwise a suite whose jobs end quickly would exit with 75, as after SIGTERM."""
    assert forked.run(["python", "-m", "tests.run_code", CTRL_C]).returncode == 0


LATE = """
import os, signal, sys
from trainer.distributed.stop import StopRequest
class Late:
    def __del__(self, kill=os.kill, pid=os.getpid()):
        kill(pid, 2)
StopRequest().listen().ignore()
sys.late = Late()
sys.exit(75)
"""


def test_a_late_ctrl_c_does_not_change_the_exit_code() -> None:
    """While the interpreter ends, it has no handlers."""
    assert subprocess.run([sys.executable, "-c", LATE], timeout=60).returncode == 75
