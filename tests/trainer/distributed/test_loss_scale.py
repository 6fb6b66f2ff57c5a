"""fp16 and bf16 at every ZeRO stage: the same training, resumed to the last bit, and a loss scale that falls and stays.

torch computes in fp16 on any CPU, if slowly; what a GPU's kernels do with it is for a GPU's own tests.
"""

import json
import shutil
from pathlib import Path

import pytest

from tests.trainer.checkpoint.saved import seal
from trainer.checkpoint import format as checkpoints

STAGES = range(4)
STEPS = 5
STOP = 2
TOO_LARGE = 2.0**19  # gradients of some tenths times this are beyond fp16's 65,504


def changes(precision: str, stage: int) -> dict[str, object]:
    return {
        "run__max_steps": STEPS,
        "checkpoint__every": STOP,
        "checkpoint__keep": 9,
        "engine__precision": precision,
        "engine__zero_stage": stage,
    }


def with_scale(run: Path, scale: float, to: Path) -> Path:
    """A copy of a run whose newest checkpoint has another loss scale, and a field that another DeepSpeed may have."""
    shutil.copytree(run, to)
    folder = checkpoints.checkpoint_path(str(to), STOP)
    state = json.loads((folder / "state.json").read_text())
    state["loss_scale"] |= {"cur_scale": scale, "of another version": 1.0}
    (folder / "state.json").write_text(json.dumps(state))
    seal(folder)
    return to


@pytest.fixture(scope="module", params=["fp16", pytest.param("bf16", marks=pytest.mark.thorough)])
def precision(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def runs(training, precision: str, tmp_path_factory) -> Path:
    """For each stage an unbroken run, one resumed after STOP, and in fp16 another one at too large a scale."""
    folder = tmp_path_factory.mktemp("half")
    output = ""

    def go(name: str, stage: int) -> None:
        nonlocal output
        done = training.trained(2, folder / f"{name} {precision} {stage}", **changes(precision, stage))
        assert ("Resuming from" in done.stdout) == (name != "straight")
        output += done.stdout

    for stage in STAGES:
        go("straight", stage)
        straight, resumed = (folder / f"{name} {precision} {stage}" for name in ("straight", "resumed"))
        later = [f"step-{step:08d}" for step in range(STOP + 1, STEPS + 1)]
        shutil.copytree(straight, resumed, ignore=shutil.ignore_patterns(*later))
        if precision == "fp16":
            with_scale(resumed, TOO_LARGE, folder / f"fallen fp16 {stage}")
            go("fallen", stage)
        go("resumed", stage)
    (folder / "output").write_text(output)
    return folder


def test_every_stage_trains_the_same_and_resumes_to_the_last_bit(training, runs: Path, precision: str) -> None:
    """Closely after the first update; later one stage's scale may fall where another's need not."""
    expected = losses(training, runs / f"straight {precision} 1")
    for stage in STAGES:
        straight, resumed = (runs / f"{how} {precision} {stage}" for how in ("straight", "resumed"))
        found = losses(training, straight)
        assert found[:2] == pytest.approx(expected[:2], rel=1e-4)
        assert found == pytest.approx(expected, rel=0.03)
        assert training.losses(resumed) == training.losses(straight)
        assert training.tensors(resumed, STEPS) == training.tensors(straight, STEPS)


def losses(training, run: Path) -> list[float]:
    return [line[1] for line in training.losses(run).values()]


@pytest.mark.parametrize("precision", ["fp16"], indirect=True)
@pytest.mark.parametrize("stage", STAGES)
def test_a_loss_scale_that_is_too_large_falls_and_is_no_trouble(runs: Path, stage: int) -> None:
    folder = checkpoints.checkpoint_path(str(runs / f"fallen fp16 {stage}"), STEPS)
    state = json.loads((folder / "state.json").read_text())
    assert STOP <= state["updates"] < STEPS and state["anomaly"]["skipped"] == 0
    assert state["loss_scale"]["cur_scale"] < TOO_LARGE
    assert (runs / "output").read_text().count("fp16 overflowed and the loss scale falls") >= len(STAGES)
