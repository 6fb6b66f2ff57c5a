"""ELECTRA: parameters, initial weights, FLOPs, and generators that are refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from schemas.errors import UsageError
from tests.small_models import random_model, section
from tests.trainer.models.electra_models import electra, electra_case, one_row, shared_table
from trainer.config.load import load_recipe
from trainer.models.electra import ReplacedTokenModel, parts_of
from trainer.models.families import encoder_shape
from trainer.models.flops import ExecutedWork, executed_flops, flops_per_token
from trainer.models.pretraining import Losses, build_model


@pytest.fixture(scope="module")
def case(pairs: Path, tmp_path_factory) -> SimpleNamespace:
    return electra_case(pairs, tmp_path_factory.mktemp("electra"))


PUBLISHED = {
    "electra_small": (13_483_008, 13_549_057, 4_620_026),
    "electra_base": (108_891_648, 109_483_009, 33_740_602),
}
"""transformers' ElectraModel and ElectraForPreTraining of the published config.json, 14M and 110M in the README of
google-research/electra; and ElectraForMaskedLM of the paper's generator, which has no published folder."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_parameter_counts(name: str) -> None:
    recipe = load_recipe(name, [])
    with torch.device("meta"):
        model = ReplacedTokenModel(encoder_shape(recipe.model, recipe.model.vocab_size or 0))
    discriminator, generator = parts_of(model)
    modules = (discriminator.model.encoder, discriminator.model, generator.model)
    assert tuple(sum(p.numel() for p in module.parameters()) for module in modules) == PUBLISHED[name]

    shared = model.encoder.embeddings
    assert model.discriminator.encoder.embeddings is shared
    total = sum(p.numel() for p in model.parameters())
    assert total == sum(PUBLISHED[name][1:]) - sum(p.numel() for p in shared.parameters())


def test_initial_weights_are_those_of_google_s_code() -> None:
    """Truncated at two standard deviations, but the projection and the last matrix are Glorot's."""
    model: Any = build_model(section("electra", "embedding_size=32"), 700, 1)
    small, large = 2 * 0.05, (6 / (48 + 32)) ** 0.5
    assert float(model.discriminator.encoder.widen.weight.abs().max()) == pytest.approx(large, rel=0.02)
    assert float(model.discriminator.prediction.weight.abs().max()) == pytest.approx((6 / 49) ** 0.5, rel=0.1)
    for weight in (model.discriminator.dense.weight, model.mlm_head.dense.weight, shared_table(model)):
        assert 0.9 * small < float(weight.abs().max()) <= small


@pytest.mark.parametrize("recompute", [False, True])
def test_executed_operations_are_those_that_torch_counts(case, recompute: bool) -> None:
    model = random_model(electra(), case.vocabulary).train()
    for encoder in model.encoders():
        encoder.recompute = recompute
    rows = [one_row(case.batch, s) for s in range(12)]
    work = ExecutedWork()
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        for row in rows:
            work.add(row)
            model(row).total().backward()

    lengths = [row.tokens for row in rows]
    mean_seen = sum(length**2 for length in lengths) / sum(lengths)
    executed = executed_flops(model.shape, work, mean_seen, recompute)
    assert executed == pytest.approx(counter.get_total_flops(), rel=0.005)
    if not recompute:
        masked = case.batch.predicted / case.batch.tokens
        assert executed < flops_per_token(model.shape, mean_seen, masked) * case.batch.tokens


def test_a_sum_of_losses_has_all_that_a_model_has() -> None:
    one = torch.tensor(1.0)
    assert Losses(one, one, one, one).stacked().tolist() == [1, 1, 1, 1] + [0] * 12
    assert Losses(one, one, one, one).total() == 2 and Losses(one, one, one, one, one, one, one).total() == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["family=electra", "generator_size=0.001"], "a generator of width 0 with 1 heads"),
        (["family=electra", "generator_size=0.41", "num_attention_heads=8"], "a generator of width 52 with 3 heads"),
        (["generator_size=0.5"], r'model\.generator_size belongs to "electra"; model\.family is "bert"'),
        (["discriminator_weight=3"], r'model\.discriminator_weight belongs to "electra"'),
    ],
)
def test_a_generator_that_cannot_be_built_is_refused(changes: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_recipe("tests/recipes/small_bert.toml", [f"model.{change}" for change in changes])


def test_a_causal_phase_is_refused() -> None:
    settings = ["model.family=electra", "objective.kind=clm"]
    with pytest.raises(UsageError, match=r'objective.kind "clm" is not for model.family "electra"'):
        load_recipe("tests/recipes/small_bert.toml", settings)
