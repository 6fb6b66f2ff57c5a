"""Layer-wise rates of each family, what has weight decay, and the schedule."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, FunnelConfig, FunnelForSequenceClassification

from trainer.finetune.optimizer import build_optimizer, depths_of, has_weight_decay, rate_share, set_rate
from trainer.finetune.task import TaskTrainingSection


def model_of(encoder, family: str) -> Any:
    return AutoModelForSequenceClassification.from_pretrained(encoder(family))


@pytest.mark.parametrize(
    ("family", "embeddings", "first_layer", "last_layer"),
    [
        ("bert", "bert.embeddings.word", "bert.encoder.layer.0.att", "bert.encoder.layer.1.out"),
        ("roberta", "roberta.embeddings.word", "roberta.encoder.layer.0.att", "roberta.encoder.layer.1.out"),
        ("electra", "electra.embeddings_project", "electra.encoder.layer.0.att", "electra.encoder.layer.1.out"),
        ("modernbert", "model.embeddings.tok", "model.layers.0.mlp", "model.layers.1.mlp"),
        ("eurobert", "model.embed_tokens", "model.layers.0.mlp", "model.layers.1.mlp"),
        ("xlnet", "transformer.word_embedding", "transformer.layer.0.rel_attn", "transformer.layer.1.ff"),
    ],
)
def test_layers_learn_at_rates_of_their_own(encoder, family, embeddings, first_layer, last_layer) -> None:
    model = model_of(encoder, family)
    depths = depths_of(model)
    found = [
        {depth for name, depth in depths.items() if name.startswith(prefix)}
        for prefix in (embeddings, first_layer, last_layer)
    ]
    assert found == [{0}, {1}, {2}]
    assert {depths[name] for name in depths if not name.startswith(model.base_model_prefix)} == {3}

    optimizer = build_optimizer(model, TaskTrainingSection(lr=1.0, layer_decay=0.5))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            name = names[id(parameter)]
            assert group["lr"] == 0.5 ** (3 - depths[name])
            assert group["weight_decay"] == (0.01 if parameter.ndim > 1 and not name.endswith("bias") else 0.0)


def test_shared_layers_have_one_rate(encoder) -> None:
    depths = depths_of(model_of(encoder, "albert"))
    assert {depth for name, depth in depths.items() if "albert_layer" in name} == {1}
    assert {depth for name, depth in depths.items() if name.startswith("classifier")} == {2}


def test_layers_in_blocks_have_the_order_of_the_model() -> None:
    """Funnel numbers its layers within blocks."""
    config = FunnelConfig(vocab_size=20, d_model=8, n_head=2, d_head=4, d_inner=8, block_sizes=[1, 2], num_labels=2)
    depths = depths_of(FunnelForSequenceClassification(config))
    for layer, depth in (("0.0", 1), ("1.0", 2), ("1.1", 3)):
        assert {depths[name] for name in depths if f"blocks.{layer}." in name} == {depth}
    assert {depths[name] for name in depths if "embeddings" in name} == {0}
    assert {depths[name] for name in depths if name.startswith("classifier")} == {4}


def test_biases_that_are_matrices_do_not_decay() -> None:
    """The biases of Funnel's queries, as those of XLNet's, are (heads, head size)."""
    config = FunnelConfig(vocab_size=20, d_model=8, n_head=2, d_head=4, d_inner=8, block_sizes=[1, 2], num_labels=2)
    parameters = dict(FunnelForSequenceClassification(config).named_parameters())
    biases = [name for name in parameters if name.endswith(("r_w_bias", "r_r_bias", "r_s_bias"))]
    assert len(biases) == 3 * 3 and all(parameters[name].ndim == 2 for name in biases)
    assert not any(has_weight_decay(name, parameters[name]) for name in biases)
    assert has_weight_decay("classifier.linear_out.weight", parameters["classifier.linear_out.weight"])


def test_every_weight_is_trained_once(encoder) -> None:
    model = model_of(encoder, "bert")
    trained = [p for group in build_optimizer(model, TaskTrainingSection()).param_groups for p in group["params"]]
    assert sorted(map(id, trained)) == sorted(map(id, model.parameters()))


def test_the_rate_rises_and_falls() -> None:
    shares = [rate_share(step, 10, 0.2) for step in range(1, 11)]
    assert shares == pytest.approx([0.5, 1.0, 8 / 9, 7 / 9, 6 / 9, 5 / 9, 4 / 9, 3 / 9, 2 / 9, 1 / 9])
    assert [rate_share(step, 3, 0.0) for step in (1, 2, 3)] == pytest.approx([3 / 4, 2 / 4, 1 / 4])
    assert [rate_share(step, 2, 1.0) for step in (1, 2)] == [0.5, 1.0]


def test_a_share_holds_for_all_groups() -> None:
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.AdamW([{"params": [weight], "lr": 0.4, "full_rate": 0.4}])
    assert set_rate(optimizer, 1, 10, 0.2) == 0.5
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.2)
