"""Effective ranks of known matrices, which cause measurements point to, and when a run is examined."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.one_rank import small_recipe
from trainer.config.phases import Phase, phases_of
from trainer.config.schema import PhaseSection
from trainer.loss_doctor.causes import CAUSES, Measurements, advice, likely_cause, worded
from trainer.loss_doctor.effective_rank import MAX_WIDTH, effective_rank, second_moments
from trainer.loss_doctor.examination import (
    ExaminedRun,
    examined_loss,
    first_examination,
    is_due,
    leaves_tokens,
    movement,
)
from trainer.metrics.interval import Interval
from trainer.optim.lr_schedule import learning_rate_of

STUCK = Measurements(
    step=500,
    baseline=6.9,
    loss=6.88,
    kept_loss=6.8,
    masked_share=0.15,
    recipe_share=0.15,
    movement=20.0,
    update=0.04,
    skipped_steps=0,
    epochs=1.0,
    batch_tokens=1_000,
    effective_rank=30.0,
)


@pytest.mark.parametrize(("replacement", "leaves"), [("80/10/10", True), ("100/0/0", False), ("90/0/10", False)])
def test_copying_is_suspected_only_if_training_leaves_tokens(replacement: str, leaves: bool) -> None:
    """Evaluations always leave some, so there is a loss at them in any case."""
    assert leaves_tokens(small_recipe(f"masking.replacement={replacement}")) == leaves


@pytest.mark.parametrize("width", [1, 3, 64])
def test_the_rank_of_equal_vectors_is_1_and_of_an_orthogonal_basis_their_number(width: int) -> None:
    one_ND = torch.randn(1, width).expand(20, width)
    assert effective_rank(second_moments(one_ND)) == pytest.approx(1)
    assert effective_rank(second_moments(torch.eye(width))) == pytest.approx(width)


def test_the_rank_of_known_matrices() -> None:
    # Eigenvalues 9, 1, 1: (9 + 1 + 1)^2 / (81 + 1 + 1).
    assert effective_rank(second_moments(torch.diag(torch.tensor([3.0, 1.0, 1.0])))) == pytest.approx(121 / 83)
    assert effective_rank(second_moments(torch.zeros(4, 4))) == 0
    assert effective_rank(second_moments(torch.full((4, 4), float("nan")))) == 0
    assert second_moments(torch.zeros(2, MAX_WIDTH + 5)).shape == (MAX_WIDTH, MAX_WIDTH)


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 99))
def test_the_rank_is_that_of_the_singular_values(vectors: int, width: int, seed: int) -> None:
    x_ND = torch.randn(vectors, width, generator=torch.Generator().manual_seed(seed)).double()
    eigenvalues = torch.linalg.svdvals(x_ND).square()
    expected = float(eigenvalues.sum().square() / eigenvalues.square().sum())
    assert effective_rank(second_moments(x_ND)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("cause", "changes"),
    [
        ("masks", {"masked_share": 0.02}),
        ("masks", {"masked_share": 0.0001, "recipe_share": 0.0001, "loss": 9.0}),
        ("learning_rate_low", {"movement": 0.1, "effective_rank": 1.0, "loss": 9.0}),
        ("learning_rate_high", {"loss": 9.0}),
        ("learning_rate_high", {"skipped_steps": 100}),
        ("learning_rate_high", {"update": 2.5, "effective_rank": 1.0}),
        ("repeated_rows", {"epochs": 50.0}),
        ("copying", {"kept_loss": 0.7}),
        ("collapsed_output", {"effective_rank": 2.2}),
        ("few_steps", {"batch_tokens": 1e6}),
        ("few_steps", {"step": 60, "effective_rank": 1.4}),
        ("unknown", {}),
        ("unknown", {"kept_loss": None}),
    ],
)
def test_the_likely_cause(cause: str, changes: dict[str, Any]) -> None:
    measured = replace(STUCK, **changes)
    assert likely_cause(measured) == cause
    sentence = worded(cause, measured)
    assert "\n" not in sentence and "{" not in sentence and sentence.endswith(advice(cause))


def test_every_cause_is_worded_and_an_unknown_name_has_no_advice() -> None:
    assert all(worded(name, replace(STUCK, kept_loss=1.0)) for name in CAUSES)
    assert advice("of a later version") == ""


def test_a_run_is_examined_past_its_warm_up_and_then_ever_more_seldom() -> None:
    phase = only_phase("run.max_steps=10000", "schedule.warmup_steps=100")
    assert first_examination(phase) == 500
    assert first_examination(only_phase("run.max_steps=1000", "schedule.warmup_steps=100")) == 200
    assert first_examination(only_phase("run.max_steps=10000", "schedule.warmup_steps=900")) == 900
    ratio = ("schedule.warmup_steps=0", "schedule.warmup_ratio=0.07")
    assert first_examination(only_phase("run.max_steps=10000", *ratio)) == 700
    assert first_examination(only_phase("run.max_steps=12", "schedule.warmup_steps=1")) == 50

    examined = [0]
    for step in range(1, 10_001):
        if is_due(phase, step, examined[-1]):
            examined.append(step)
    assert examined[1:] == [500, 1000, 2000, 4000, 8000]


def only_phase(*changes: str) -> Phase:
    return phases_of(small_recipe(*changes))[0]


def test_a_later_phase_is_examined_past_its_own_first_steps() -> None:
    own_schedule = {"kind": "linear", "warmup_steps": 900}
    phases = [PhaseSection(steps=6000), PhaseSection(steps=3000, schedule=own_schedule), PhaseSection(steps=1000)]
    recipe = small_recipe("run.max_steps=10000", "schedule.warmup_steps=100")
    first, second, third = phases_of(recipe.model_copy(update={"phases": phases}))

    assert first_examination(first) == 500
    assert first_examination(second) == 6900
    assert first_examination(third) == 9200
    assert not is_due(second, 6899, examined=1000) and is_due(second, 6900, examined=1000)


def test_the_weights_moved_in_earlier_phases_too() -> None:
    """Ten steps at a low rate after a thousand at a high one do not mean that the rate was too low."""
    low = PhaseSection(steps=1000, optimizer={"lr": 1e-6}, schedule={"kind": "linear"})
    recipe = small_recipe("run.max_steps=2000", "schedule.warmup_steps=0", "optimizer.lr=1e-3")
    phases = phases_of(recipe.model_copy(update={"phases": [PhaseSection(steps=1000), low]}))
    run = ExaminedRun(
        recipe=phases[1].recipe,
        step=1010,
        first_step=1001,
        learning_rate_at=partial(learning_rate_of, phases),
        corpus_tokens=1,
        tokens=1,
        skipped_steps=0,
        interval=Interval(),
    )
    assert movement(run) > 10


def test_masks_that_become_fewer_by_the_recipe_are_no_fault() -> None:
    falling = small_recipe("masking.prob=0.3", "masking.final_prob=0.1")
    assert falling.least_predicted_share == 0.1 and falling.predicted_share == 0.3
    assert small_recipe("masking.prob=0.2").least_predicted_share == 0.2
    measured = replace(STUCK, masked_share=0.1, recipe_share=falling.least_predicted_share)
    assert likely_cause(measured) == likely_cause(STUCK)


def test_places_that_show_the_mask_decide_where_there_are_any() -> None:
    figures = {"mlm_loss": 5.0, "mlm_loss_masked": 6.9, "unigram_loss": 6.92}
    examined = examined_loss(figures)
    assert examined is not None and examined.loss == 6.9 and examined.is_at_baseline

    examined = examined_loss({"eval_mlm_loss": 5.0, "eval_unigram_loss": 6.9}, "eval_")
    assert examined is not None and examined.loss == 5.0 and not examined.is_at_baseline
    examined = examined_loss({"mlm_loss": 6.9, "mlm_loss_masked": None, "unigram_loss": 6.9})
    assert examined is not None and examined.loss == 6.9, "no place shows [MASK] with replacement = '0/0/100'"
    assert examined_loss({"mlm_loss": 5.0}) is None and examined_loss({"mlm_loss": None, "unigram_loss": 5.0}) is None
