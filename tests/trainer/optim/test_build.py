import torch
from torch import nn

from trainer.optim.build import parameter_groups


def test_biases_and_norms_are_not_decayed() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Embedding(5, 4))
    decayed, other = parameter_groups(model, 0.01)
    assert [tuple(p.shape) for p in decayed["params"]] == [(4, 3), (5, 4)]
    assert (decayed["weight_decay"], other["weight_decay"]) == (0.01, 0.0)
    assert sum(p.numel() for group in (decayed, other) for p in group["params"]) == sum(
        p.numel() for p in model.parameters()
    )
    assert all(isinstance(p, torch.nn.Parameter) for p in decayed["params"])
