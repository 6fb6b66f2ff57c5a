import pytest
import torch
from torch import nn

from schemas.errors import UsageError
from tests.small_models import section
from trainer.config.load import load_recipe
from trainer.models.starting_weights import build_model
from trainer.optim.optimizers import parameter_groups, stacked_matrices

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


def test_stage_3_is_refused_for_optimizers_of_whole_tensors() -> None:
    with pytest.raises(UsageError, match=r"optimizer\.kind stable_adamw works under engine\.zero_stage 0, 1 and 2"):
        load_recipe(TINY, ["optimizer.kind=stable_adamw", "engine.zero_stage=3"])


def test_stacked_matrices_are_found_by_the_shapes_of_their_partners() -> None:
    """Three query heads of 16 share one head of keys and values, and the feed-forward network is gated."""
    model = build_model(section("eurobert", "num_hidden_layers=1"), 61, seed=0)
    stacked = stacked_matrices(model)
    found = {name: stacked[parameter] for name, parameter in model.named_parameters() if parameter in stacked}
    assert found == {"encoder.layers.0.attention.qkv.weight": [48, 16, 16], "encoder.layers.0.up.weight": [80, 80]}
