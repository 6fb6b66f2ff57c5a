import pytest
import torch
from torch import nn

from schemas.errors import UsageError
from tests.small_models import section
from trainer.config.load import load_recipe
from trainer.models.pretraining import build_model
from trainer.optim.build import build_optimizer, parameter_groups
from trainer.optim.hidden_matrices import hidden_matrices, stacked_matrices

TINY = "tests/recipes/small_bert.toml"


def test_biases_and_norms_are_not_decayed() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Embedding(5, 4))
    decayed, other = parameter_groups(model, 0.01)
    assert [tuple(p.shape) for p in decayed["params"]] == [(4, 3), (5, 4)]
    assert (decayed["weight_decay"], other["weight_decay"]) == (0.01, 0.0)
    assert sum(p.numel() for group in (decayed, other) for p in group["params"]) == sum(
        p.numel() for p in model.parameters()
    )
    assert all(isinstance(p, torch.nn.Parameter) for p in decayed["params"])


@pytest.mark.parametrize("family", ["bert", "albert", "megatron-bert"])
def test_muon_moves_the_layers_matrices_and_nothing_else(family: str) -> None:
    """Not embeddings, ALBERT's projection of them, heads, norms or biases; weight decay as for AdamW."""
    model = build_model(section(family), 61, seed=0)
    names = {parameter: name for name, parameter in model.named_parameters()}
    matrices, others, vectors = build_optimizer(
        model, load_recipe(TINY, ["optimizer.kind=muon"]).optimizer
    ).param_groups

    kinds = ("attention.qkv.weight", "attention.out.weight", "up.weight", "down.weight")
    layers = 2 if family == "albert" else 4
    expected = [f"encoder.layers.{layer}.{kind}" for layer in range(layers) for kind in kinds]
    assert [names[parameter] for parameter in matrices["params"]] == expected
    assert "encoder.embeddings.token.weight" in [names[parameter] for parameter in others["params"]]
    assert sum(len(group["params"]) for group in (matrices, others, vectors)) == len(names)
    assert [group["weight_decay"] for group in (matrices, others, vectors)] == [0.01, 0.01, 0.0]


def test_muon_moves_the_attention_of_xlnet_as_well() -> None:
    """Its matrices are no modules of torch. Its embeddings of segments are no matrix products."""
    model = build_model(section("xlnet"), 61, seed=0)
    moved = hidden_matrices(model)
    names = [name for name, parameter in model.named_parameters() if any(parameter is one for one in moved)]
    kinds = [*(f"attention.{kind}" for kind in "qkvor"), "up.weight", "down.weight"]
    assert names == [f"encoder.layers.{layer}.{kind}" for layer in range(4) for kind in kinds]


def test_a_model_without_a_matrix_for_muon_is_refused() -> None:
    model = nn.Sequential(nn.Embedding(5, 4), nn.LayerNorm(4), nn.Linear(4, 5))
    assert hidden_matrices(model) == []
    with pytest.raises(UsageError, match=r"no hidden matrix, so no parameter would move by Muon\. Set optimizer\.kind"):
        build_optimizer(model, load_recipe(TINY, ["optimizer.kind=muon"]).optimizer)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            ["optimizer.kind=muon", "engine.zero_stage=3"],
            "optimizer.kind muon works under engine.zero_stage 0, 1 and 2",
        ),
        (["optimizer.kind=stable_adamw", "engine.zero_stage=3"], "optimizer.kind stable_adamw works under"),
        (["optimizer.muon_momentum=0.9"], "optimizer.muon_momentum belongs to kind muon, not adamw"),
    ],
)
def test_what_cannot_be_right_is_refused(settings: list[str], message: str) -> None:
    with pytest.raises(UsageError) as told:
        load_recipe(TINY, settings)
    assert message in str(told.value) and "\n" not in str(told.value)


class GatedLayer(nn.Module):
    """Six query heads of 2, two heads of keys and values, and a gated feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(5, 12 + 4 + 4)
        self.out = nn.Linear(12, 5)
        self.up = nn.Linear(5, 14)
        self.down = nn.Linear(7, 5)


def test_stacked_matrices_are_found_by_the_shapes_of_their_partners() -> None:
    layer = GatedLayer()
    rows = {name: stacked_matrices(layer).get(parameter) for name, parameter in layer.named_parameters()}
    found = {name: counts for name, counts in rows.items() if counts}
    assert found == {"qkv.weight": [12, 4, 4], "up.weight": [7, 7]}
    assert stacked_matrices(nn.Sequential(nn.Linear(3, 3))) == {}
