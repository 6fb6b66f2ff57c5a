import pytest
import torch
from torch import nn

from schemas.errors import UsageError
from trainer.config.load import load_recipe
from trainer.optim.build import parameter_groups, stacked_matrices

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
