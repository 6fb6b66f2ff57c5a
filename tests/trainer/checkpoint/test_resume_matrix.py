"""A run stopped at any number of ranks and ZeRO stage resumes at any other, on the same rows and masks."""

import shutil
from itertools import product
from pathlib import Path

import pytest

STAGES = range(4)
STEPS = 5
STOP = 2
PLAIN = {
    "model__hidden_dropout_prob": 0.0,  # dropout is drawn per rank
    "model__attention_probs_dropout_prob": 0.0,
    "run__max_steps": STEPS,
    "checkpoint__every": 99,
    "deepspeed__zero_optimization__stage3_param_persistence_threshold": 0,  # or small parameters are not shared out
}


def changes(stage: int, **more: object) -> dict[str, object]:
    return PLAIN | {"engine__zero_stage": stage} | more


def named(folder: Path, ranks: int, stage: int) -> Path:
    return folder / f"{ranks} ranks stage {stage}"


@pytest.fixture(scope="module", params=[(1, 2), pytest.param((1, 2, 4), marks=pytest.mark.thorough)], ids=str)
def worlds(request: pytest.FixtureRequest) -> tuple[int, ...]:
    """Numbers of ranks."""
    return request.param


@pytest.fixture(scope="module")
def runs(training, worlds, tmp_path_factory) -> Path:
    """Of every layout an unbroken run and one that was stopped; then every stopped one resumed in every layout."""
    folder = tmp_path_factory.mktemp("matrix")

    def go(out: Path, ranks: int, stage: int, copy_of: Path | None = None, **more: object) -> None:
        if copy_of is not None:
            shutil.copytree(copy_of, out)
        done = training.warm(ranks, out, **changes(stage, **more))
        assert done.returncode == 0, done.stderr

    for ranks, stage in product(worlds, STAGES):
        go(named(folder / "straight", ranks, stage), ranks, stage)
        go(named(folder / "stopped", ranks, stage), ranks, stage, run__stop_at=STOP)
    for ranks, stage, to_ranks, to_stage in product(worlds, STAGES, worlds, STAGES):
        stopped = named(folder / "stopped", ranks, stage)
        go(named(named(folder, ranks, stage), to_ranks, to_stage), to_ranks, to_stage, copy_of=stopped)
    # a chain: stopped at stage 3 on two ranks, gone on at stage 2 on one, then at stage 1 on two
    go(folder / "chain", 2, 1, copy_of=named(named(folder, 2, 3), 1, 2), run__max_steps=STEPS + 2)
    return folder


@pytest.mark.parametrize("stage", STAGES)
def test_every_layout_goes_on_in_every_other(training, worlds, runs: Path, stage: int) -> None:
    """Losses are equal up to the order of summation, counts exactly; in the same layout everything, to the last bit."""
    worst = 0.0
    for ranks, to_ranks, to_stage in product(worlds, worlds, STAGES):
        unbroken = named(runs / "straight", ranks, stage)
        expected = training.losses(unbroken)
        out = named(named(runs, ranks, stage), to_ranks, to_stage)
        found = training.losses(out)
        assert list(found) == list(range(1, STEPS + 1))
        if (to_ranks, to_stage) == (ranks, stage):
            assert found == expected
            assert training.tensors(out, STEPS) == training.tensors(unbroken, STEPS)
        for step, (_, loss, *_) in found.items():
            worst = max(worst, abs(loss / expected[step][1] - 1))
            assert found[step][8] == expected[step][8], "tokens"
    print(f"from stage {stage}, {len(worlds) ** 2 * len(STAGES)} changes: losses differ by {worst:.1e} at most")
    assert worst < 1e-5


def test_a_chain_of_three_layouts(training, runs: Path) -> None:
    found = training.losses(runs / "chain")
    assert list(found) == list(range(1, STEPS + 3))
    before = training.losses(named(runs / "straight", 2, 3))
    assert [found[step][1] for step in before] == pytest.approx([line[1] for line in before.values()], rel=1e-5)
