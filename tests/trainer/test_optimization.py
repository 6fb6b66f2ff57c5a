import pytest
import torch
from torch import nn

from trainer.optimization import learning_rate, parameter_groups
from trainer.recipe import OptimizerSection, ScheduleSection


def test_the_rate_rises_and_falls_linearly() -> None:
    optimizer, schedule = OptimizerSection(lr=1.0), ScheduleSection(warmup_steps=4)
    rates = [learning_rate(step, optimizer, schedule, 10) for step in range(1, 12)]
    assert rates == pytest.approx([0.25, 0.5, 0.75, 1, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6, 0])
    assert learning_rate(1, optimizer, ScheduleSection(), 10) == 1.0


def test_biases_and_norms_are_not_decayed() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Embedding(5, 4))
    decayed, other = parameter_groups(model, 0.01)
    assert [tuple(p.shape) for p in decayed["params"]] == [(4, 3), (5, 4)]
    assert (decayed["weight_decay"], other["weight_decay"]) == (0.01, 0.0)
    assert sum(p.numel() for group in (decayed, other) for p in group["params"]) == sum(
        p.numel() for p in model.parameters()
    )
    assert all(isinstance(p, torch.nn.Parameter) for p in decayed["params"])
