"""Sums of losses by what the model sees, against a plain loop, and the means that are logged, over any resume."""

from __future__ import annotations

from dataclasses import astuple, replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from tests.trainer.conftest import logged
from tests.trainer.one_rank import VOCABULARY, small_batch, small_recipe
from trainer.metrics.sums import PLACE_NAMES, Interval, StepResult, Sums, evaluation_figures
from trainer.models.batch import IGNORE_INDEX, PackedBatch
from trainer.models.pretraining import PLACE_KINDS, SUMS, Losses, Predictions, predictions, sums_by_place
from trainer.models.starting_weights import build_model

MASK = 4
LABELS = st.integers(0, 3) | st.just(IGNORE_INDEX)


def step(mlm_sum: float, predicted: float, pairs: float = 0.0, norm: float = 1.0, loss: float = 1.0) -> StepResult:
    sums = Sums(
        mlm_sum=mlm_sum,
        mlm_correct=predicted / 2,
        pair_sum=pairs,
        pair_correct=pairs / 4,
        predicted=predicted,
        pairs=pairs,
        tokens=10 * predicted,
        computed=20 * predicted,
    )
    return StepResult(1, sums, loss, norm, None)


def interval_of(*steps: StepResult) -> Interval:
    interval = Interval()
    for one in steps:
        interval.add(one)
    return interval


def test_sums_are_divided_by_the_sums_of_their_counts() -> None:
    means = interval_of(step(30.0, 10, pairs=4, norm=1.0), step(10.0, 30, pairs=12, norm=2.0)).means()
    assert means["mlm_loss"] == 1.0  # the mean of the steps' own losses would be 1.67
    assert means["pair_loss"] == 1.0 and means["pair_accuracy"] == 0.25
    assert means["loss"] == 2.0 and means["mlm_accuracy"] == 0.5
    assert means["grad_norm"] == 1.5 and means["padding_fraction"] == 0.5


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_steps_that_are_not_finite_are_left_out(bad: float) -> None:
    means = interval_of(step(30.0, 10), step(bad, 10, loss=bad, norm=-1.0)).means()
    assert means["mlm_loss"] == 3.0 and means["grad_norm"] == 1.0
    alone = interval_of(step(bad, 10, loss=bad, norm=bad)).means()
    assert alone["loss"] is None and alone["grad_norm"] is None and alone["pair_loss"] is None


def test_a_run_logs_means_and_resumes_inside_an_interval(training, tmp_path: Path) -> None:
    """Stopped after 3 and 7 of 12 steps with a line every 5."""
    every, whole, resumed = (tmp_path / name for name in ("every", "whole", "resumed"))
    training.trained(2, every, checkpoint__every=100)
    training.trained(2, whole, run__log_every=5, checkpoint__every=100)
    for stop in (3, 7, 12):
        training.trained(2, resumed, run__log_every=5, checkpoint__every=100, run__stop_at=stop)
    assert list(training.losses(whole)) == [1, 5, 10, 12]
    assert training.losses(resumed) == training.losses(whole)

    each, means = ({line["step"]: line for line in logged(run)} for run in (every, whole))
    for first, last in ((2, 5), (6, 10), (11, 12)):
        inside = [each[number] for number in range(first, last + 1)]
        assert means[last]["grad_norm"] == pytest.approx(sum(line["grad_norm"] for line in inside) / len(inside))
        assert means[last]["lr"] == each[last]["lr"] and means[last]["tokens"] == each[last]["tokens"]
        # all steps have 16 labeled rows, and nearly as many masked tokens
        assert means[last]["pair_loss"] == pytest.approx(sum(line["pair_loss"] for line in inside) / len(inside))
        mean = sum(line["mlm_loss"] for line in inside) / len(inside)
        assert means[last]["mlm_loss"] == pytest.approx(mean, rel=0.01)


def test_each_sum_keeps_the_name_that_it_was_stacked_under() -> None:
    seven = [torch.tensor(float(number)) for number in range(1, 8)]
    places_33 = torch.arange(10.0, 19.0, dtype=torch.float64).reshape(3, 3)
    losses = Losses(*seven, places_33=places_33)
    sums = Sums(*losses.stacked().tolist())
    for name in Losses._fields[:-1]:
        assert getattr(sums, name) == float(getattr(losses, name)), name
    for kind, row in zip(PLACE_KINDS, places_33.tolist(), strict=True):
        assert [getattr(sums, f"{kind}_{what}") for what in ("sum", "correct", "places")] == row
    assert astuple(sums)[SUMS:] == (0.0,) * 5 and sums + sums == Sums(*(2 * value for value in astuple(sums)))

    without = Sums(*Losses(*seven[:4]).stacked().tolist())
    assert without == Sums(mlm_sum=1, mlm_correct=2, pair_sum=3, pair_correct=4)


def test_kinds_without_places_have_no_mean() -> None:
    assert not set(PLACE_NAMES) & set(Sums(mlm_sum=1.0, predicted=1.0).means(False))
    means = Sums(masked_sum=6.0, masked_correct=1, masked_places=4).means(False)
    assert [means[name] for name in PLACE_NAMES] == [1.5, None, None, 0.25]


def test_only_a_model_that_detects_replaced_tokens_has_figures_of_that() -> None:
    sums = Sums(mlm_sum=2.0, predicted=1.0, rtd_sum=3.0, rtd_correct=4.0, replaced=1.0, tokens=8.0)
    figures = evaluation_figures(sums, detects_replaced=True)
    assert figures["rtd_loss"] == 0.375 and figures["rtd_accuracy"] == 0.5 and figures["replaced_fraction"] == 0.125
    assert "rtd_loss" not in evaluation_figures(sums, detects_replaced=False)

    interval = interval_of(StepResult(1, sums, loss=sums.loss(50.0), grad_norm=1.0, fault=None, rtd_weight=50.0))
    assert interval.means()["loss"] == sums.loss(50.0) == 2 + 50 * 0.375


def batch_of(places: list[tuple[int, int]]) -> PackedBatch:
    """A batch whose places show the first number of each pair and have the second as their label."""
    seen, labels = torch.tensor(places).T
    return replace(
        small_batch(0),
        ids_T=torch.cat([torch.tensor([0]), seen]),
        masked_positions_K=torch.arange(1, len(places) + 1),
        labels_K=labels,
        mask_id=MASK,
    )


def kind_of(seen: int, label: int) -> str:
    if seen == MASK:
        return "masked"
    return "kept" if seen == label else "random"


@given(places=st.lists(st.tuples(st.integers(0, MASK), LABELS), min_size=1, max_size=40), seed=st.integers(0, 9))
def test_sums_are_those_of_a_plain_loop(places: list[tuple[int, int]], seed: int) -> None:
    logits_KV = torch.randn(len(places), MASK + 1, generator=torch.Generator().manual_seed(seed))
    batch = batch_of(places)
    mlm = predictions(logits_KV, batch.labels_K)

    expected = {kind: [0.0, 0, 0] for kind in PLACE_KINDS}
    for logits_V, (seen, label) in zip(logits_KV, places, strict=True):
        if label == IGNORE_INDEX:
            continue
        sums = expected[kind_of(seen, label)]
        sums[0] += float(F.cross_entropy(logits_V, torch.tensor(label)))
        sums[1] += int(logits_V.argmax()) == label
        sums[2] += 1

    places_33 = sums_by_place(batch, mlm)
    assert places_33 is not None
    for kind, found in zip(PLACE_KINDS, places_33.tolist(), strict=True):
        assert found == pytest.approx(expected[kind], rel=1e-5, abs=1e-5)

    # The three kinds together are all places.
    loss, correct, _ = places_33.sum(0).tolist()
    assert loss == pytest.approx(float(mlm.loss), rel=1e-5, abs=1e-4) and correct == float(mlm.correct)


@given(st.integers(1, 300), st.integers(2, 200), st.integers(0, 99), st.sampled_from([torch.float32, torch.bfloat16]))
@settings(max_examples=50)
def test_the_trained_loss_and_its_gradient_are_torchs_to_the_last_bit(
    places: int, tokens: int, seed: int, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(places, tokens, generator=generator).to(dtype)
    logits[:, -1] = float("-inf")  # as the tokens that pad a vocabulary
    labels = torch.randint(0, tokens - 1, (places,), generator=generator)
    labels[1::3] = IGNORE_INDEX

    ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    loss = predictions(ours, labels).loss
    expected = F.cross_entropy(theirs.float(), labels, reduction="sum", ignore_index=IGNORE_INDEX)
    loss.backward()
    expected.backward()
    assert ours.grad is not None and theirs.grad is not None
    assert torch.equal(loss, expected) and torch.equal(ours.grad, theirs.grad)


def test_knowing_the_kinds_changes_no_loss_and_no_gradient() -> None:
    plain = small_batch(3, masked=9)
    gradients = []
    sums = []
    for batch in (plain, replace(plain, mask_id=MASK)):
        model = build_model(small_recipe().model, VOCABULARY, seed=0).eval()
        losses = model(batch)
        losses.total().backward()
        sums.append(losses.stacked())
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])

    without, with_kinds = sums
    assert torch.equal(without[:7], with_kinds[:7]) and len(without) == SUMS
    assert not without[7:].any() and with_kinds[7:].any()
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_a_loss_that_is_not_finite_stays_in_its_kind() -> None:
    batch = batch_of([(MASK, 1), (2, 2), (3, 2)])
    losses_K = torch.tensor([float("nan"), 1.0, 2.0])
    places_33 = sums_by_place(batch, Predictions(losses_K.sum(), losses_K, losses_K, torch.tensor([False] * 3)))
    assert places_33 is not None and places_33[1:, 0].tolist() == [1.0, 2.0]
