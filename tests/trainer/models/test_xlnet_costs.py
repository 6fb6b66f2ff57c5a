"""XLNet: parameters, FLOPs, memory, initial weights, and recipes that are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from schemas.errors import UsageError
from schemas.randomness import key
from schemas.vocabulary import read_vocabulary
from tests.small_models import section
from tests.xlnet_batches import random_batch
from trainer.config.load import load_recipe
from trainer.data.batches import BatchShape, pad_to_shape
from trainer.memory import activation_bytes, working_bytes
from trainer.models.families import encoder_shape
from trainer.models.flops import ExecutedWork, executed_flops, flops_per_token
from trainer.models.pretraining import PretrainingModel, build_model
from trainer.optim.build import parameter_groups
from trainer.trial_pass import trial_batch

COUNTS = {"xlnet_base": (116_718_336, 116_750_336), "xlnet_large": (360_268_800, 360_300_800)}


@pytest.mark.parametrize("name", COUNTS)
def test_published_parameter_counts(name: str) -> None:
    """The encoder, and with the head's bias; transformers counts the same in a model of its own."""
    import transformers

    described = load_recipe(name, []).model
    assert described.vocab_size == 32_000
    with torch.device("meta"):
        shape = encoder_shape(described, described.vocab_size)
        model = PretrainingModel(shape)
        config = transformers.XLNetConfig(
            d_model=shape.hidden_size, n_layer=shape.num_hidden_layers, n_head=shape.num_attention_heads,
            d_inner=shape.intermediate_size,
        )  # fmt: skip
        theirs = transformers.XLNetLMHeadModel(config)
    counts = tuple(sum(p.numel() for p in part.parameters()) for part in (model.encoder, model))
    assert counts == COUNTS[name]
    assert sum(p.numel() for p in theirs.parameters()) == counts[1]


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("is_filled", [False, True])
def test_executed_operations_are_those_that_torch_counts(vocab: Path, is_filled: bool, recompute: bool) -> None:
    length = 24
    vocabulary = read_vocabulary(str(vocab))
    batch = random_batch(vocabulary, [(12, 9)] * 4)
    if is_filled:
        shape = BatchShape(tokens=6 * length, sequences=7, masked=24, longest=length)
        batch = pad_to_shape(batch, shape, 0)
    model = build_model(section("xlnet"), vocabulary.size, seed=0).train()
    model.encoder.recompute = recompute
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(batch).mlm_sum.backward()

    work = ExecutedWork()
    work.add(batch)
    executed = executed_flops(model.shape, work, mean_seen=length, recompute=recompute)
    assert executed == pytest.approx(counter.get_total_flops(), rel=0.005)


def test_the_second_stream_and_relative_positions_cost_a_fifth() -> None:
    """XLNet-base beside BERT-base on rows of 512: half as many scores again, and a sixth of the tokens twice."""
    bert = load_recipe("bert_base", []).model
    xlnet = load_recipe("xlnet_base", []).model
    costs = [flops_per_token(encoder_shape(model, 32_000), 512, 1 / 6) for model in (xlnet, bert)]
    assert 1.15 < costs[0] / costs[1] < 1.25


def test_memory_counts_scores_and_targets() -> None:
    recipe = load_recipe("xlnet_base", [])
    shape = encoder_shape(recipe.model, 32_000)
    one_stream = replace(shape, two_streams=False)
    scores = 12 * 12 * 512 * 2
    assert activation_bytes(shape, recipe) > activation_bytes(one_stream, recipe) + scores
    assert working_bytes(shape, recipe) > working_bytes(one_stream, recipe)
    batch = trial_batch(shape, recipe, 4096, 400.0)
    assert batch.predicted == len(batch.masked_positions_K) >= 0.16 * len(batch.ids_T)
    assert int(torch.bincount(batch.sequence_T[batch.masked_positions_K]).max()) < 512 / 5


def test_initial_weights_are_drawn_and_biases_of_attention_not_decayed() -> None:
    model = build_model(section("xlnet", "hidden_size=96", "intermediate_size=384", "initializer_range=0.02"), 700, 1)
    groups = parameter_groups(model, 0.01)
    not_decayed = {id(p) for p in groups[1]["params"]}
    for name, weight in model.named_parameters():
        module, _, kind = name.rpartition(".")
        if kind == "weight" and module.endswith("norm"):
            assert (weight == 1).all()
        elif kind == "bias":
            assert (weight == 0).all()
        else:
            assert float(weight.detach().std()) == pytest.approx(0.02, rel=0.05 if weight.numel() > 5000 else 0.3), name
        is_bias = kind == "bias" or kind in ("r_w_bias", "r_r_bias", "r_s_bias") or module.endswith("norm")
        assert (id(weight) in not_decayed) == is_bias, name
    first = torch.Generator().manual_seed(key(1, "initial weights") >> 1)
    expected = torch.empty(1, 96).normal_(0, 0.02, generator=first)
    assert torch.equal(next(model.parameters()), expected), "mask_emb is drawn first"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("masking.stored=true", 'masking.stored is not for model.family "xlnet", which masks nothing'),
        ("model.rope_base=10000.0", "model.rope_base belongs to "),
        ("objective.kind=clm", 'objective.kind "clm" is not for model.family "xlnet", whose attention has an order of'),
        ("model.hidden_size=33", 'model.hidden_size 33 is odd; positions in "xlnet"'),
    ],
)
def test_recipes_that_cannot_be(change: str, message: str) -> None:
    small = ["model.family=xlnet", "model.num_attention_heads=1", "masking.prob=0.15", change]
    with pytest.raises(UsageError, match=message):
        load_recipe("tests/recipes/small_bert.toml", small)
