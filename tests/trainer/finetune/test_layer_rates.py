"""Layer-wise rates of each family, and what has weight decay."""

from __future__ import annotations

from typing import Any, cast

import pytest
from transformers import AutoModelForSequenceClassification, FunnelConfig, FunnelForSequenceClassification, Trainer

from trainer.finetune.fit import depths_of, layer_groups


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

    names = {id(parameter): name for name, parameter in model.named_parameters()}
    trained = []
    decaying = set(Trainer.get_decay_parameter_names(cast(Any, None), model))
    assert decaying and not [name for name in decaying if "bias" in name or "norm" in name.lower()]
    for group in layer_groups(model, 1.0, 0.5, 0.01, decaying):
        for parameter in group["params"]:
            name = names[id(parameter)]
            trained.append(name)
            assert group["lr"] == 0.5 ** (3 - depths[name])
            assert group["weight_decay"] == (0.01 if name in decaying else 0.0)
    assert sorted(trained) == sorted(names.values()), "every weight is trained once"


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
