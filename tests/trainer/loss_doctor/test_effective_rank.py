"""The effective rank at predicted places: of all micro-batches together, with memory for one of them."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from deepspeed import DeepSpeedEngine
from torch import Tensor

from tests.trainer.one_rank import group_of_one, small_batch, small_engine, small_recipe
from trainer.loss_doctor import examination
from trainer.loss_doctor.effective_rank import effective_rank, second_moments
from trainer.loss_doctor.examination import rank_at_masked_places


@pytest.fixture(scope="module")
def engine() -> Iterator[DeepSpeedEngine]:
    with group_of_one():
        engine = small_engine(small_recipe())
        yield engine
        engine.destroy()


def test_the_rank_is_that_of_the_vectors_of_all_micro_batches(engine: DeepSpeedEngine) -> None:
    micro_batches = [small_batch(number) for number in range(3)]
    model: Any = engine.module
    vectors: list[Tensor] = []
    hook = model.mlm_head.register_forward_pre_hook(lambda _, inputs: vectors.append(inputs[0].detach()))
    found = rank_at_masked_places(engine, micro_batches)
    hook.remove()

    assert len(vectors) == 3
    assert found == pytest.approx(effective_rank(second_moments(torch.cat(vectors))))
    assert found == rank_at_masked_places(engine, micro_batches), "added up in the same order each time"
    assert found != pytest.approx(rank_at_masked_places(engine, micro_batches[:1]))
    assert model.training


def test_memory_does_not_grow_with_the_number_of_micro_batches(
    engine: DeepSpeedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[weakref.ref[Tensor]] = []

    def watched(vectors_ND: Tensor) -> Tensor:
        in_memory = [moments for moments in computed if moments() is not None]
        assert len(in_memory) <= 1, "only their sum is kept"
        moments_DD = second_moments(vectors_ND)
        computed.append(weakref.ref(moments_DD))
        return moments_DD

    monkeypatch.setattr(examination, "second_moments", watched)
    rank_at_masked_places(engine, [small_batch(number) for number in range(4)])
    assert len(computed) == 4
