"""A run killed at any moment resumes from a checkpoint that verifies, and ends up equal to an uninterrupted run.

The kills come from outside: at moments drawn once and for all, and whenever a given file of a save has just appeared.
"""

import contextlib
import glob
import os
import random
import signal
import time
from pathlib import Path

import psutil
import pytest

from trainer.checkpoint import format as layout

SAVE = [  # what is there after each file operation of a save, in order
    "step-*.partial",
    "step-*.partial/rank-00000.safetensors",
    "step-*.partial/rank-00001.safetensors",
    "step-*.partial/state.json",
    "step-*.partial/.manifest.json.*",
    "step-*.partial/manifest.json",
    "step-????????/manifest.json",
]


def wait_until(process, out: Path, at: str | float) -> None:
    """Wait for a number of seconds after the first step, or until a new file matches a pattern."""

    def found() -> set[str]:  # by glob, because Path.glob fails where a folder vanishes under it
        return set(glob.glob(str(out / "checkpoints" / at))) if isinstance(at, str) else set()

    before = found()
    deadline = None
    metrics = out / "metrics.jsonl"
    size = metrics.stat().st_size if metrics.exists() else 0
    while process.poll() is None:
        if found() - before:
            break
        if isinstance(at, float) and metrics.exists() and metrics.stat().st_size > size:
            deadline = deadline or time.monotonic() + at
        if deadline and time.monotonic() > deadline:
            break
        time.sleep(0.0005)


def crash(training, launcher: str, out: Path, at: str | float, whom: int | None, **changes: object) -> None:
    """SIGKILL to one rank, or to all of them and the launcher."""
    process = training.start(launcher, out, **changes)
    ranks = []
    while process.poll() is None and whom is not None and len(ranks) <= whom:
        ranks = training.ranks(process)
    wait_until(process, out, at)
    with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
        if whom is None:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            ranks[whom].kill()
    process.communicate()


def check(out: Path) -> None:
    """Whatever was published verifies."""
    for step in layout.steps_saved(str(out)):
        assert layout.fault_of_checkpoint(layout.checkpoint_path(str(out), step)) is None


@pytest.mark.parametrize(
    ("launcher", "ranks", "kills", "steps"),
    [
        ("python", 1, 3, 12),
        pytest.param("torchrun", 2, 2, 12, marks=pytest.mark.thorough),
        pytest.param("deepspeed", 2, 30, 60, marks=pytest.mark.thorough),
    ],
)
def test_a_run_that_is_killed_again_and_again_equals_an_unbroken_one(
    training, tmp_path, launcher: str, ranks: int, kills: int, steps: int
) -> None:
    draws = random.Random(kills)
    moments = []
    for _ in range(kills):
        moment = draws.choice([*SAVE, draws.random() / 4])
        moments.append((moment, draws.choice([None, *range(ranks)])))

    out = tmp_path / "run"
    straight = tmp_path / "straight"
    changes = {"checkpoint__every": 1, "run__max_steps": steps}
    for at, whom in moments:
        crash(training, launcher, out, at, whom, **changes)
        check(out)
    taken = max(layout.steps_saved(str(out)), default=0)
    for where in (out, straight):
        training.trained(ranks, where, **changes)
    assert not list((out / "checkpoints").glob("*.partial"))
    assert training.losses(out) == training.losses(straight), moments
    assert training.tensors(out, steps) == training.tensors(straight, steps)
    print(f"{kills} kills of {launcher} by step {taken} of {steps}: nothing differs from an unbroken run")
