"""Batch size ramps, and how batches of tokens are divided among ranks and micro-batches."""

from __future__ import annotations

import shutil
from math import gcd
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import UsageError
from tests.trainer.data.test_stream import rows_of
from trainer.config.load import load_recipe
from trainer.config.schema import BatchSection, Recipe
from trainer.data.folder import open_folders
from trainer.data.share import RankShare, assign_rows, places_before, ramp_sizes, share_of, token_micro_batches
from trainer.data.stream import build_stream

TINY = "tests/recipes/small_bert.toml"


def test_sizes_grow_linearly_in_multiples_of_what_both_ends_share() -> None:
    """ModernBERT's from 768 to 4,608 rows: equally many steps at each multiple of 768."""
    batch = BatchSection(global_batch=4608, micro_batch=96, ramp_from=768, ramp_steps=10)
    assert ramp_sizes(batch) == (768, 768, 1536, 1536, 2304, 2304, 3072, 3072, 3840, 3840)
    assert ramp_sizes(BatchSection(global_batch=4608, micro_batch=96)) == ()


@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 40), st.integers(0, 60))
def test_places_are_the_sum_of_the_batches_before(first: int, growth: int, steps: int, number: int) -> None:
    full = first + growth
    batch = BatchSection(global_tokens=full, micro_tokens=64, ramp_from=first, ramp_steps=steps)
    sizes = [*ramp_sizes(batch), *[full] * 60]
    assert sizes[0] == first and sizes == sorted(sizes)
    assert all(size % gcd(first, full) == 0 for size in sizes)
    assert all(abs(size - (first + growth * k / steps)) <= gcd(first, full) for k, size in enumerate(sizes[:steps]))

    share = RankShare(0, 1, 7, full, tuple((size, 3) for size in ramp_sizes(batch)))
    assert share.first_place(number) == places_before(batch, number) == sum(sizes[:number])
    assert share.at(number) == RankShare(0, 1, 3 if number < steps else 7, sizes[number])


def recipe_of(pairs: Path, *changes: str) -> Recipe:
    return load_recipe(TINY, [f"data.pairs={pairs}", *changes])


ROWS = ("batch.global_batch=24", "batch.micro_batch=4", "batch.ramp_from=6", "batch.ramp_steps=7")
TOKENS = (
    "batch.global_batch=none",
    "batch.micro_batch=none",
    "batch.global_tokens=1000",
    "batch.micro_tokens=200",
    "batch.ramp_from=300",
    "batch.ramp_steps=7",
)


def batches(recipe: Recipe, world_size: int, steps: range) -> dict[int, list[str]]:
    """The rows of all ranks by step, sorted; no micro-batch above its limit."""
    found: dict[int, list[str]] = {step: [] for step in steps}
    for rank in range(world_size):
        folders = open_folders(recipe)
        stream = build_stream(recipe, folders, share_of(recipe, rank, world_size, folders))
        for step in steps:
            for batch in stream.batch(step):
                assert batch.tokens <= (recipe.batch.micro_tokens or 10**9)  # type: ignore[operator]
                assert len(batch.pair_labels_S) <= (recipe.batch.micro_batch or 10**9)
                found[step] += rows_of(batch)
        stream.close()
    return {step: sorted(rows) for step, rows in found.items()}


@pytest.mark.parametrize("changes", [ROWS, TOKENS], ids=["rows", "tokens"])
def test_ranks_and_resumes_change_no_batch(pairs: Path, changes: tuple[str, ...]) -> None:
    recipe = recipe_of(pairs, *changes)
    alone = batches(recipe, 1, range(10))
    assert batches(recipe, 2, range(10)) == alone
    assert batches(recipe, 3, range(4, 10)) == {step: alone[step] for step in range(4, 10)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["batch.ramp_from=4"], "batch.ramp_from and batch.ramp_steps go together"),
        (["batch.ramp_from=64", "batch.ramp_steps=5"], "batch.ramp_from 64 is not below the full batch of 64"),
        (["batch.ramp_from=4", "batch.ramp_steps=500000"], "batch.ramp_steps 500000 is above the "),
    ],
)
def test_a_ramp_that_cannot_be_is_refused(changes: list[str], message: str) -> None:
    with pytest.raises(UsageError) as told:
        load_recipe(TINY, ["batch.global_batch=64", *changes])
    assert message in str(told.value) and "\n" not in str(told.value)


def test_a_ramp_with_fewer_rows_than_ranks_is_refused(pairs: Path) -> None:
    recipe = recipe_of(pairs, "batch.global_batch=24", "batch.micro_batch=1", "batch.ramp_from=3", "batch.ramp_steps=5")
    with pytest.raises(UsageError, match=r"batch\.ramp_from 3 is too few rows for 4 micro-batches"):
        share_of(recipe, 0, 4)


# Training

RAMP = {
    "model__hidden_dropout_prob": 0.0,  # dropout is drawn per rank
    "model__attention_probs_dropout_prob": 0.0,
    "run__max_steps": 7,
    "checkpoint__every": 99,
    "batch__ramp_from": 6,
    "batch__ramp_steps": 5,
    "batch__global_batch": 24,
}


def test_a_run_stopped_in_its_ramp_goes_on_in_another_layout(training, tmp_path: Path) -> None:
    """Steps of 6 to 24 rows in one to six micro-batches: every layout computes the same losses."""

    def go(name: str, ranks: int, **changes: object) -> dict[int, tuple]:
        training.trained(ranks, tmp_path / name, **RAMP | changes)
        return training.losses(tmp_path / name)

    expected = go("straight", 2, batch__micro_batch=2, engine__zero_stage=2)
    go("stopped", 2, batch__micro_batch=2, engine__zero_stage=2, run__stop_at=3)
    shutil.copytree(tmp_path / "stopped", tmp_path / "other")
    refused = training.warm(1, tmp_path / "other", **RAMP | {"batch__ramp_steps": 4}, batch__micro_batch=24)
    assert refused.returncode == 4
    assert "batch.ramp_from and batch.ramp_steps was [6, 5], is [6, 4]" in refused.stderr
    assert go("stopped", 2, batch__micro_batch=2, engine__zero_stage=2) == expected
    assert training.tensors(tmp_path / "stopped", 7) == training.tensors(tmp_path / "straight", 7)

    layouts = {
        "other": go("other", 1, batch__micro_batch=24, engine__zero_stage=0),
        "stage 1": go("stage 1", 2, batch__micro_batch=3, engine__zero_stage=1),
        "stage 3": go("stage 3", 1, batch__micro_batch=4, engine__zero_stage=3),
    }
    for name, found in layouts.items():
        assert [line[8] for line in found.values()] == [line[8] for line in expected.values()], f"{name}: tokens"
        losses = [line[1] for line in found.values()]
        assert losses == pytest.approx([line[1] for line in expected.values()], rel=1e-5), name


def test_bf16_sums_of_a_ramp_are_those_of_any_micro_batches(training, tmp_path: Path) -> None:
    """Where bf16_updates.py reduces in the last micro-batch of each step, however many that has."""
    losses = []
    for name, ranks, micro_batch in (("one", 1, 24), ("two", 2, 2)):
        changes = RAMP | {"batch__micro_batch": micro_batch, "engine__zero_stage": 1, "engine__precision": "bf16"}
        training.trained(ranks, tmp_path / name, **changes)
        losses.append([line[1] for line in training.losses(tmp_path / name).values()])
    assert losses[0] == pytest.approx(losses[1], rel=2e-3)


# Micro-batches of tokens


@given(
    lengths=st.lists(st.integers(1, 64), min_size=40, max_size=200),
    micro_tokens=st.integers(128, 400),
    world_size=st.integers(1, 3),
)
@settings(max_examples=60)
def test_the_number_of_micro_batches_is_enough(lengths: list[int], micro_tokens: int, world_size: int) -> None:
    """For any rows that make up one batch, whatever their lengths."""
    lengths_B = np.array(lengths)
    size = max(int(lengths_B.sum()) - 64, 1)  # a batch exceeds its size by up to a row
    micro_batches = token_micro_batches(size, micro_tokens, [64], world_size)
    share = RankShare(0, world_size, micro_batches, size)
    if len(lengths) < share.micro_batches_per_step:
        return
    for rank in range(world_size):
        for rows in assign_rows(lengths_B, RankShare(rank, world_size, micro_batches, size)):
            assert lengths_B[rows].sum() <= micro_tokens
