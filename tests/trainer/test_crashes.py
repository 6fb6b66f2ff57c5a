"""Killed at any moment a run goes on from a checkpoint that verifies, and becomes what it would have been.

The kills come from outside: at moments drawn once and for all, and whenever a given file of a save has just appeared.
"""

import contextlib
import os
import random
import signal
import time
from pathlib import Path

import pytest

from trainer import checkpoints

SAVE = [  # what is there after each file operation of a save, in order
    "step-*.partial",
    "step-*.partial/model.safetensors",
    "step-*.partial/exp_avg.safetensors",
    "step-*.partial/state.json",
    "step-*.partial/.manifest.json.*",
    "step-*.partial/manifest.json",
    "step-????????/manifest.json",
]


def kill_when(process, out: Path, at: str | float) -> None:
    """SIGKILL to launcher and ranks so many seconds after the first step, or when a new file matches."""
    before = set((out / "checkpoints").glob(at)) if isinstance(at, str) else set()
    deadline, metrics = None, out / "metrics.jsonl"
    size = metrics.stat().st_size if metrics.exists() else 0
    while process.poll() is None:
        if isinstance(at, str) and set((out / "checkpoints").glob(at)) - before:
            break
        if isinstance(at, float) and metrics.exists() and metrics.stat().st_size > size:
            deadline = deadline or time.monotonic() + at
        if deadline and time.monotonic() > deadline:
            break
        time.sleep(0.0005)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def crash(training, launcher: str, out: Path, at: str | float, **changes: object) -> None:
    process = training.start(launcher, out, **changes)
    kill_when(process, out, at)
    process.communicate()


def check(out: Path) -> None:
    """Whatever was published verifies."""
    for step in checkpoints.steps_saved(str(out)):
        assert checkpoints.verify(checkpoints.checkpoint_path(str(out), step)) is None


@pytest.mark.parametrize(("launcher", "kills"), [("python", 4), ("deepspeed", 2)])
def test_a_run_that_is_killed_again_and_again_equals_an_unbroken_one(
    training, straight, tmp_path, launcher: str, kills: int
) -> None:
    draws = random.Random(kills)
    moments = [draws.choice([*SAVE, draws.random() / 4]) for _ in range(kills)]
    out = tmp_path / "run"
    for moment in moments:
        crash(training, launcher, out, moment, checkpoint__every=1)
        check(out)
    done = training.run(launcher, out, checkpoint__every=1)
    assert done.returncode == 0, done.stderr
    assert not list((out / "checkpoints").glob("*.partial"))
    if launcher == "python":
        straight = tmp_path / "straight"
        assert training.run(launcher, straight, checkpoint__every=1).returncode == 0
    assert training.losses(out) == training.losses(straight), moments
    assert training.tensors(out, 12) == training.tensors(straight, 12)
