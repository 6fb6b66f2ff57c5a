"""One step in a group of one rank: its sums, its gradient, and when it ends early, against plain autograd."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.trainer.one_rank import VOCABULARY, group_of_one, small_batch, small_engine, small_recipe
from trainer import step as steps
from trainer.anomaly import AnomalyGuard, AnomalyHistory
from trainer.distributed.deepspeed_internals import basic_optimizer
from trainer.metrics.sums import Sums
from trainer.models.batch import PackedBatch
from trainer.models.starting_weights import build_model
from trainer.step import Stepper, count_batch, seed_dropout

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
        optimizer: Any = basic_optimizer(engine)

        def update() -> None:
            self.events.append("skipped" if optimizer.found_inf else "update")
            named = engine.module.named_parameters()
            self.gradient = {name: p.grad.clone() for name, p in named if p.grad is not None}

        optimizer.step = update
        super().__init__(engine, RECIPE.anomaly, history, clip=0.0)

    def expect(self, loss: Tensor) -> None:
        self.events.append(float(loss))
        super().expect(loss)


def plain_sums(model: Any, batches: list[PackedBatch]) -> Tensor:
    """(4,) float64: the two losses and numbers of right answers, summed over the batches."""
    sums = [torch.stack(list(model(batch)[:4])).double() for batch in batches]
    return torch.stack(sums).sum(0)


def plain_gradient(batches: list[PackedBatch], sums: Sums) -> dict[str, Tensor]:
    model = build_model(RECIPE.model, VOCABULARY, seed=0)
    mlm_sum, _, pair_sum, _ = plain_sums(model, batches)
    (mlm_sum / sums.predicted + pair_sum / max(sums.pairs, 1)).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_step_is_the_gradient_of_the_whole_batch(monkeypatch: pytest.MonkeyPatch, ranks: int) -> None:
    """However it is cut. With more ranks of the same batches sums and counts grow, and DeepSpeed divides by them."""
    engine = small_engine(RECIPE, micro_batches=3)
    expected_sums = ranks * plain_sums(engine.module, BATCHES).detach()
    monkeypatch.setattr(steps, "dist", SimpleNamespace(all_reduce=lambda tensor: tensor.mul_(ranks)))
    monkeypatch.setattr(engine, "world_size", ranks)
    guard = WatchedGuard(engine, AnomalyHistory())
    asked = []

    def leaves_step() -> bool:
        asked.append(list(guard.events))
        return False

    stepper = Stepper(engine, guard)
    assert stepper.compute(7, BATCHES, leaves_step)
    stepper.exchange([])
    assert stepper.settle() is None and asked == [[], [], []]
    stepper.update()
    result = stepper.settle()

    assert result is not None and result.step == 7 and result.fault is None
    sums = result.sums
    counts = [sums.predicted, sums.pairs, sums.tokens, sums.computed]
    assert counts == [11.0 * ranks, 6.0 * ranks, 57.0 * ranks, 57.0 * ranks]
    found = [sums.mlm_sum, sums.mlm_correct, sums.pair_sum, sums.pair_correct]
    assert found == pytest.approx(expected_sums.tolist(), rel=1e-12)
    assert result.loss == pytest.approx(sums.mlm_sum / sums.predicted + sums.pair_sum / sums.pairs, rel=1e-12)
    assert guard.events == [result.loss, "update"] and stepper.settle() is None

    # DeepSpeed would divide this gradient, the sum of `ranks` equal ones, by the ranks that are not here.
    gradient = {name: ranks * part for name, part in plain_gradient(BATCHES, sums).items()}
    torch.testing.assert_close(guard.gradient, gradient, rtol=1e-4, atol=1e-7)
    norm = torch.cat([part.flatten() for part in gradient.values()]).norm()
    assert result.grad_norm == pytest.approx(float(norm), rel=1e-4)
    engine.destroy()


def test_counts_are_sums_over_micro_batches() -> None:
    module = SimpleNamespace(labeled_pairs=lambda batch: 10 * batch.paired)
    engine: Any = SimpleNamespace(device="cpu", module=module)
    padded = small_batch(4, rows=2, masked=3)
    padded = replace(padded, tokens=20)

    assert count_batch(engine, [BATCHES[0], padded]).tolist() == [8, 40, 44, 48]
    assert count_batch(engine, []).tolist() == [0, 0, 0, 0]
    large = replace(padded, tokens=2**24 + 1)
    assert count_batch(engine, [large])[2] == 2**24 + 1, "in float32, it would be 2**24"


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
