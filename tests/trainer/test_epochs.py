"""run.max_epochs: the steps of a run are fixed from its data at the start, and the run is one of that many steps."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import UsageError
from schemas.manifest import read_manifest
from trainer.config.load import load_recipe
from trainer.config.schema import BatchSection, Recipe
from trainer.data.share import batches_within, places_before
from trainer.describe import describe_recipe
from trainer.length import steps_of_epochs

TINY = "tests/recipes/small_bert.toml"


def recipe_of(pairs: Path, *changes: str) -> Recipe:
    return load_recipe(TINY, [f"data.pairs={pairs}", "schedule.warmup_steps=0", *changes])


def total(pairs: Path, unit: str) -> int:
    return read_manifest(str(pairs), "pairs").totals[unit]


@given(st.integers(1, 50), st.integers(1, 9), st.integers(0, 2000), st.booleans())
def test_no_further_batch_lies_within_as_many_rows(size: int, ramp_steps: int, rows: int, has_ramp: bool) -> None:
    batch = BatchSection(global_batch=size, micro_batch=1)
    if has_ramp and size > 1:
        batch = BatchSection(global_batch=size, micro_batch=1, ramp_from=1, ramp_steps=ramp_steps)
    steps = batches_within(batch, rows)
    assert places_before(batch, steps) <= rows < places_before(batch, steps + 1)


@pytest.mark.parametrize(("epochs", "steps"), [(1, 1), (2, 3), (3, 4), ("0.7", 1)])
def test_steps_are_whole_and_passes_at_most_that_many(pairs: Path, epochs: object, steps: int) -> None:
    """A batch has two thirds of the rows, so that a second step would begin a second pass."""
    batch = total(pairs, "rows") * 2 // 3
    changes = [f"run.max_epochs={epochs}", f"batch.global_batch={batch}", f"batch.micro_batch={batch}"]
    assert steps_of_epochs(recipe_of(pairs, *changes)) == steps


def test_batches_of_tokens_are_counted_in_tokens(pairs: Path) -> None:
    in_tokens = ["batch.global_batch=none", "batch.micro_batch=none", "batch.global_tokens=2048"]
    recipe = recipe_of(pairs, "run.max_epochs=3", "batch.micro_tokens=512", *in_tokens)
    assert steps_of_epochs(recipe) == 3 * total(pairs, "tokens") // 2048


def test_a_pass_over_a_mixture_has_the_rows_of_all_its_folders(pairs: Path, byte_rows: Path) -> None:
    """Whatever the weights take from each."""
    rows = total(pairs, "rows") + total(byte_rows, "rows")
    for weights in ([], ["data.weights=[0.9, 0.1]"]):
        recipe = recipe_of(pairs, f'data.pairs=["{pairs}", "{byte_rows}"]', "run.max_epochs=2", *weights)
        assert steps_of_epochs(recipe) == 2 * rows // 32


def test_describe_knows_the_steps_once_there_are_pairs(pairs: Path, tmp_path: Path) -> None:
    described = describe_recipe(recipe_of(pairs, "run.max_epochs=2"))
    assert (described["max_epochs"], described["steps"]) == (2, 2 * total(pairs, "rows") // 32)
    assert describe_recipe(recipe_of(pairs, "run.max_epochs=2", "run.max_steps=3"))["steps"] == 3
    described = describe_recipe(recipe_of(tmp_path / "none", "run.max_epochs=2", "model.vocab_size=500"))
    assert described["steps"] == "at most 1,800, and fewer if run.max_epochs makes fewer of the pairs"


def test_describe_tells_of_passes_and_hours_together(pairs: Path) -> None:
    described = describe_recipe(recipe_of(pairs, "run.max_epochs=2", "run.max_hours=1", "schedule.warmup_steps=8"))
    assert (described["max_epochs"], described["max_hours"]) == (2, 1)
    steps = 2 * total(pairs, "rows") // 32
    assert described["steps"] == f"as many as fit into 1 hour, at most {steps:,}; measured at the start"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["run.max_epochs=0"], r"run\.max_epochs: .*greater than 0"),
        (
            ["run.max_epochs=0.01"],
            r"run\.max_epochs 0\.01 of .* rows is less than a batch: batch\.global_batch is 32\.",
        ),
        (["run.max_epochs=1", "schedule.warmup_steps=500"], r"makes \d+ steps: schedule\.warmup_steps 500 is above"),
        (["run.max_epochs=1", "batch.ramp_from=16", "batch.ramp_steps=500"], r"ramp_steps 500 is above the \d+ steps"),
    ],
)
def test_what_does_not_fit_is_told(pairs: Path, changes: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        steps_of_epochs(recipe_of(pairs, *changes))


def test_a_run_of_passes_is_one_of_that_many_steps_also_after_a_resume(training, pairs: Path, tmp_path: Path) -> None:
    batch = total(pairs, "rows") // 4
    length = {"run__max_epochs": 1.5, "run__max_steps": 1000, "batch__global_batch": batch, "batch__micro_batch": batch}
    shape = {"schedule__warmup_steps": 0, "schedule__warmup_ratio": 0.5, "checkpoint__every": 2}
    for stop in (2, 1000):
        done = training.trained(1, tmp_path / "run", **length, **shape, run__stop_at=stop)
        assert "run.max_epochs 1.5 makes 6 steps" in done.stdout and "run.max_steps was" not in done.stdout
    assert "6 updates of batch.global_batch" not in done.stdout, "told once, when the run begins"
    recorded = tomllib.loads((tmp_path / "run/recipe.toml").read_text())["run"]
    assert (recorded["max_epochs"], recorded["max_steps"]) == (1.5, 6)

    known = length | {"run__max_epochs": "none", "run__max_steps": 6}
    training.trained(1, tmp_path / "steps", **known, **shape)
    assert training.losses(tmp_path / "run") == training.losses(tmp_path / "steps")
    assert training.tensors(tmp_path / "run", 6) == training.tensors(tmp_path / "steps", 6)


def test_few_updates_and_a_lower_max_steps_are_told(training, pairs: Path, tmp_path: Path) -> None:
    done = training.trained(1, tmp_path / "run", run__max_epochs=50, run__max_steps=4)
    assert "run.max_steps 4 ends before run.max_epochs 50." in done.stdout
    (line,) = [line for line in done.stdout.splitlines() if " updates of batch.global_batch 16" in line]
    assert "4 updates" in line and line.endswith("a larger run.max_epochs or run.max_steps trains longer.")
