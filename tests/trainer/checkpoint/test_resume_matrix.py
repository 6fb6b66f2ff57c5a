"""A run stopped at any number of ranks and ZeRO stage resumes at any other, on the same rows and masks."""

import shutil
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest

STAGES = range(4)
STEPS = 4
STOP = 2
PLAIN = {
    "model__hidden_dropout_prob": 0.0,  # dropout is drawn per rank
    "model__attention_probs_dropout_prob": 0.0,
    "run__max_steps": STEPS,
    "checkpoint__every": STOP,
    "deepspeed__zero_optimization__stage3_param_persistence_threshold": 0,  # or small parameters are not shared out
}


@dataclass(frozen=True)
class Layout:
    ranks: int
    stage: int


def changes(stage: int, **more: object) -> dict[str, object]:
    return PLAIN | {"engine__zero_stage": stage} | more


def named(folder: Path, layout: Layout) -> Path:
    return folder / f"{layout.ranks} ranks stage {layout.stage}"


@dataclass(frozen=True)
class Matrix:
    """Layouts in an order, and how far behind a layout those are that its run goes on in."""

    layouts: list[Layout]
    shifts: range | tuple[int, ...]

    def following(self, layout: Layout) -> list[Layout]:
        place = self.layouts.index(layout)
        return [self.layouts[(place + shift) % len(self.layouts)] for shift in self.shifts]


def matrix_of(ranks: tuple[int, ...], shifts: tuple[int, ...] | None = None) -> Matrix:
    layouts = [Layout(number, stage) for number, stage in product(ranks, STAGES)]
    return Matrix(layouts, shifts or range(len(layouts)))


# Of eight layouts, a shift by 3 changes the stage in all cases, and the ranks in six.
SOME = matrix_of((1, 2), shifts=(0, 3))
ALL = matrix_of((1, 2, 4))


@pytest.fixture(scope="module", params=[SOME, pytest.param(ALL, marks=pytest.mark.thorough)], ids=["some", "all"])
def matrix(request: pytest.FixtureRequest) -> Matrix:
    return request.param


@pytest.fixture(scope="module")
def runs(training, matrix: Matrix, tmp_path_factory) -> Path:
    """Of every layout an unbroken run and the same up to STOP, which is then resumed in the layouts that follow."""
    folder = tmp_path_factory.mktemp("matrix")

    def go(out: Path, layout: Layout, copy_of: Path | None = None, **more: object) -> None:
        if copy_of is not None:
            shutil.copytree(copy_of, out)
        done = training.trained(layout.ranks, out, **changes(layout.stage, **more))
        assert ("Resuming from" in done.stdout) == (copy_of is not None)

    for layout in matrix.layouts:
        straight, stopped = (named(folder / name, layout) for name in ("straight", "stopped"))
        go(straight, layout)
        shutil.copytree(straight, stopped, ignore=shutil.ignore_patterns(f"step-{STEPS:08d}"))
        for to_layout in matrix.following(layout):
            go(named(named(folder, layout), to_layout), to_layout, copy_of=stopped)

    # A chain: stopped at stage 3 on two ranks, gone on at stage 2 on one, then at stage 1 on two.
    two_links = named(named(folder, Layout(2, 3)), Layout(1, 2))
    go(folder / "chain", Layout(2, 1), copy_of=two_links, run__max_steps=STEPS + 2)
    return folder


def test_every_layout_goes_on_in_others(training, matrix: Matrix, runs: Path) -> None:
    """Losses are equal up to the order of summation, counts exactly; in the same layout everything, to the last bit."""
    changes_made = 0
    worst = 0.0
    for layout in matrix.layouts:
        unbroken = named(runs / "straight", layout)
        expected = training.losses(unbroken)
        for to_layout in matrix.following(layout):
            out = named(named(runs, layout), to_layout)
            found = training.losses(out)
            assert list(found) == list(range(1, STEPS + 1))
            if to_layout == layout:
                assert found == expected
                assert training.tensors(out, STEPS) == training.tensors(unbroken, STEPS)

            for step, (_, loss, *_) in found.items():
                worst = max(worst, abs(loss / expected[step][1] - 1))
                assert found[step][8] == expected[step][8], "tokens"
            changes_made += 1

    print(f"{changes_made} changes: losses differ by {worst:.1e} at most")
    assert worst < 1e-5


def test_a_chain_of_three_layouts(training, runs: Path) -> None:
    found = training.losses(runs / "chain")
    assert list(found) == list(range(1, STEPS + 3))
    before = training.losses(named(runs / "straight", Layout(2, 3)))
    assert [found[step][1] for step in before] == pytest.approx([line[1] for line in before.values()], rel=1e-5)
