"""One step in a group of one rank: its sums, its gradient, and when it ends early, against plain autograd."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from schemas.errors import DataError
from tests.trainer.one_rank import VOCABULARY, group_of_one, small_batch, small_engine, small_recipe
from trainer import step as steps
from trainer.anomaly import AnomalyGuard, AnomalyHistory
from trainer.distributed.zero import basic_optimizer
from trainer.models.batch import PackedBatch
from trainer.models.pretraining import build_model
from trainer.step import BatchCounts, check_masked, count_batch, seed_dropout, take_step

RECIPE = small_recipe("engine.zero_stage=0", "engine.precision=fp32")
BATCHES = [small_batch(1, masked=5), small_batch(2, rows=3, length=7, masked=4), small_batch(3, rows=1, masked=2)]


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    with group_of_one():
        yield


class WatchedGuard(AnomalyGuard):
    """Notes what the guard was given, among the updates that the optimizer was asked for, and their gradient."""

    def __init__(self, engine: Any, history: AnomalyHistory):
        self.events: list[Any] = []
        self.gradient: dict[str, Tensor] = {}

        def update() -> None:
            self.events.append("update")
            named = engine.module.named_parameters()
            self.gradient = {name: p.grad.clone() for name, p in named if p.grad is not None}

        optimizer: Any = basic_optimizer(engine)
        optimizer.step = update
        super().__init__(engine, RECIPE.anomaly, history, clip=0.0)

    def expect(self, loss: float) -> None:
        self.events.append(loss)
        super().expect(loss)


def plain_sums(model: Any, batches: list[PackedBatch]) -> Tensor:
    """(4,) float64: the two losses and numbers of right answers, summed over the batches."""
    sums = [torch.stack(list(model(batch))).double() for batch in batches]
    return torch.stack(sums).sum(0)


def plain_gradient(batches: list[PackedBatch], counts: BatchCounts) -> dict[str, Tensor]:
    model = build_model(RECIPE.model, VOCABULARY, seed=0)
    mlm_sum, _, pair_sum, _ = plain_sums(model, batches)
    (mlm_sum / counts.masked + pair_sum / max(counts.pairs, 1)).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("pairs", [6.0, 0.0])
def test_a_step_is_the_gradient_of_the_whole_batch(pairs: float) -> None:
    """However it is cut. The counts are those of all ranks, so they need not be this rank's own."""
    counts = BatchCounts(masked=22.0, pairs=pairs, tokens=57.0, computed=57.0, stop=False)
    engine = small_engine(RECIPE, micro_batches=3)
    expected_sums = plain_sums(engine.module, BATCHES).detach()
    guard = WatchedGuard(engine, AnomalyHistory())
    asked = []

    def leaves_step(i: int, n: int) -> bool:
        asked.append((i, n, list(guard.events)))
        return False

    step = take_step(engine, BATCHES, counts, guard, leaves_step)

    assert step is not None and step.fault is None and step.counts is counts
    found = [step.mlm_sum, step.mlm_correct, step.pair_sum, step.pair_correct]
    assert found == pytest.approx(expected_sums.tolist(), rel=1e-12)
    assert step.loss == pytest.approx(step.mlm_sum / 22 + step.pair_sum / max(pairs, 1), rel=1e-12)
    assert asked == [(0, 3, []), (1, 3, []), (2, 3, [])]
    assert guard.events == [step.loss, "update"]

    gradient = plain_gradient(BATCHES, counts)
    torch.testing.assert_close(guard.gradient, gradient, rtol=1e-4, atol=1e-7)
    norm = torch.cat([part.flatten() for part in gradient.values()]).norm()
    assert step.grad_norm == pytest.approx(float(norm), rel=1e-4) and guard.norm == step.grad_norm
    engine.destroy()


def test_sums_and_scale_are_of_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a second rank of the same batches: twice the sums; DeepSpeed would halve the gradient that is seen here."""
    counts = BatchCounts(masked=10.0, pairs=4.0, tokens=24.0, computed=24.0, stop=False)
    engine = small_engine(RECIPE)
    sums = plain_sums(engine.module, BATCHES[:1]).detach()
    monkeypatch.setattr(
        steps, "dist", SimpleNamespace(get_world_size=lambda: 2, all_reduce=lambda tensor: tensor.mul_(2))
    )
    monkeypatch.setattr(steps, "loss_scale", lambda engine: 8.0)
    guard = WatchedGuard(engine, AnomalyHistory())

    step = take_step(engine, BATCHES[:1], counts, guard, lambda i, n: False)

    assert step is not None
    assert [step.mlm_sum, step.pair_sum] == pytest.approx([2 * float(sums[0]), 2 * float(sums[2])], rel=1e-6)
    assert guard.events[0] == step.loss
    gradient = {name: 16 * part for name, part in plain_gradient(BATCHES[:1], counts).items()}
    torch.testing.assert_close(guard.gradient, gradient, rtol=1e-4, atol=1e-6)
    engine.destroy()


def test_a_step_that_is_left_makes_no_update() -> None:
    counts = BatchCounts(masked=11.0, pairs=6.0, tokens=57.0, computed=57.0, stop=False)
    engine = small_engine(RECIPE, micro_batches=3)
    guard = WatchedGuard(engine, AnomalyHistory())

    assert take_step(engine, BATCHES, counts, guard, lambda i, n: i == 2) is None
    assert guard.events == []
    engine.destroy()


def test_a_loss_that_is_not_finite_is_a_fault() -> None:
    counts = BatchCounts(masked=11.0, pairs=6.0, tokens=57.0, computed=57.0, stop=False)
    engine = small_engine(RECIPE, micro_batches=1)
    model: Any = engine.module
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    history = AnomalyHistory()
    guard = WatchedGuard(engine, history)

    step = take_step(engine, BATCHES[:1], counts, guard, lambda i, n: False)

    assert step is not None and step.fault == "the loss is not finite"
    assert "update" not in guard.events and history.skipped == 1
    engine.destroy()


@pytest.mark.parametrize("stop", [False, True])
def test_counts_are_sums_over_batches_and_ranks(monkeypatch: pytest.MonkeyPatch, stop: bool) -> None:
    module = SimpleNamespace(labeled_pairs=lambda batch: 10 * batch.paired)
    engine: Any = SimpleNamespace(device="cpu", module=module)
    padded = small_batch(4, rows=2, masked=3)
    padded = PackedBatch(**{**vars(padded), "tokens": 20})

    assert count_batch(engine, [BATCHES[0], padded], stop) == BatchCounts(8, 40, 44, 48, stop)

    monkeypatch.setattr(steps, "dist", SimpleNamespace(all_reduce=lambda tensor: tensor.mul_(2)))
    found = count_batch(engine, [BATCHES[0]], stop)
    assert found == BatchCounts(10, 40, 48, 48, stop) and found.stop is stop


def test_large_counts_are_exact() -> None:
    """In float32, 2**24 + 1 tokens would be 2**24."""
    module = SimpleNamespace(labeled_pairs=lambda batch: 0)
    engine: Any = SimpleNamespace(device="cpu", module=module)
    large = PackedBatch(**{**vars(BATCHES[0]), "tokens": 2**24 + 1})
    assert count_batch(engine, [large], False).tokens == 2**24 + 1


def test_a_batch_without_masks_is_named() -> None:
    check_masked(BatchCounts(1, 0, 9, 9, False), 7)
    with pytest.raises(DataError) as caught:
        check_masked(BatchCounts(0, 4, 9, 9, False), 7)
    assert str(caught.value) == (
        "The batch of step 7 has no masked token: its rows hold only unknown words, or their stored masks "
        "are empty. Use a vocabulary that covers the text, or rebuild the pairs."
    )


@pytest.mark.parametrize("device", ["cpu", "cuda", "another"])
def test_dropout_is_seeded_as_torch_does(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    seeded: list[int] = []
    accelerator = SimpleNamespace(device_name=lambda: device, manual_seed=seeded.append)
    monkeypatch.setattr(steps, "get_accelerator", lambda: accelerator)
    torch.manual_seed(41)
    expected = torch.rand(3)

    seed_dropout(41)

    assert torch.equal(torch.rand(3), expected)
    assert seeded == ([] if device == "cpu" else [41])
