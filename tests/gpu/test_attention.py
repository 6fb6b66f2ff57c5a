"""The Triton attention kernel on a card: compared with plain attention, twice, and compiled."""

from __future__ import annotations

import importlib
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.gpu.conftest import DRY
from tests.gpu.test_model import batch_of, model_of, small_shape
from trainer.attention_choice import MIN_SPEEDUP, outcome_of, rules_of, set_triton, try_kernel
from trainer.models.attention import SEED_RANGE, AttentionRule, attend_triton
from trainer.models.attention_trial import Check, fault_of_kernel, random_rows, with_gradients

pytestmark = pytest.mark.gpu
pytest.importorskip("triton", reason="the package triton is not installed")

RULE = AttentionRule(heads=16, dropout=0.1, triton=True)  # BERT-large's
ROWS = {
    "rows of 128": [128] * 512,
    "rows of 8 to 500": [8 + 492 * (i * 89 % 257) // 256 for i in range(257)],
    "rows of 512": [512] * 128,
}


@pytest.fixture(autouse=True)
def card(device: torch.device) -> torch.device:
    if DRY:
        pytest.skip("needs a card")
    importlib.import_module("trainer.models.attention_triton")
    return device


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("head_size", [32, 64, 128])
@pytest.mark.parametrize("longest", [33, 64, 128, 512, 8192])
def test_outputs_and_gradients_are_right(card, dtype: torch.dtype, head_size: int, longest: int) -> None:
    like = torch.empty(0, dtype=dtype, device=card)
    for dropout, window in ((0.1, None), (0.5, None), (0.0, None), (0.0, 64), (0.0, 7), (0.1, 100)):
        rule = RULE._replace(heads=3, dropout=dropout, window=window)
        assert fault_of_kernel(Check(rule, longest), head_size, like) is None


def test_a_wrong_mask_is_found(card) -> None:
    """The trial must see one: here the plain attention drops twice as many."""
    rows = random_rows([100] * 9, 128, 2, torch.empty(64, dtype=torch.bfloat16, device=card))
    seed = torch.randint(SEED_RANGE, (2,), device=card)
    one, other = (
        with_gradients(lambda qkv, p=p: attend_triton(qkv, rows, RULE._replace(heads=2, dropout=p), seed), rows)
        for p in (0.1, 0.2)
    )
    for name, expected in one.items():
        assert float((other[name] - expected).norm() / expected.norm()) > 0.05, name


@pytest.mark.parametrize("name", ROWS)
def test_equal_calls_are_equal_bit_by_bit(card, name: str) -> None:
    rows = random_rows(ROWS[name], max(ROWS[name]), RULE.heads, torch.empty(64, dtype=torch.bfloat16, device=card))
    seed = torch.tensor([3, 4], device=card)
    one, other = (with_gradients(lambda qkv: attend_triton(qkv, rows, RULE, seed), rows) for _ in range(2))
    assert all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("recompute", [False, True])
def test_a_model_trains_equally_for_one_state_of_the_generator(card, compiled: bool, recompute: bool) -> None:
    """Compiled layers draw other numbers than eager ones, as all dropout in them does."""
    torch._dynamo.reset()
    shape = replace(small_shape("bert_base"), hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.1)
    model = model_of(shape).to(card, torch.bfloat16)
    set_triton(model, rules_of(model))
    batch = batch_of(shape).to(card)
    if compiled:
        model.compile_parts()

    def gradients(seed: int) -> Tensor:
        torch.manual_seed(seed)
        loss = model(batch).mlm_sum
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.encoder.layers.parameters()))])

    expected = gradients(0)
    assert torch.isfinite(expected).all()
    assert float((gradients(1) - expected).norm() / expected.norm()) > 0.02
    model.encoder.recompute = recompute
    assert float((gradients(0) - expected).norm() / expected.norm()) < 1e-2


def test_the_choice_of_a_run(card, monkeypatch) -> None:
    """Prints what it finds; which kernel is faster is for the card to say."""
    monkeypatch.setenv("LOCAL_RANK", "0")
    model = model_of(replace(small_shape("bert_base"), attention_probs_dropout_prob=0.1))
    before = torch.cuda.get_rng_state()
    trial = try_kernel(rules_of(model), [70, 30] * 300, 128, torch.bfloat16)
    print(trial, outcome_of([trial], any_speed=False))
    assert trial.fault is None and trial.speedup > 0
    assert (outcome_of([trial], any_speed=False).fault is None) == (trial.speedup >= MIN_SPEEDUP)
    assert torch.equal(before, torch.cuda.get_rng_state())
