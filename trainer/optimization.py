"""What is decayed, and the learning rate of each step."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from trainer.recipe import OptimizerSection, ScheduleSection


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Matrices are decayed; biases and layer norms, which are vectors, are not (google-research/bert)."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]


def build_optimizer(model: nn.Module, section: OptimizerSection) -> torch.optim.Optimizer:
    groups = parameter_groups(model, section.weight_decay)
    # fused: one kernel over all parameters, on CPU too
    return torch.optim.AdamW(groups, lr=section.lr, betas=section.betas, eps=section.eps, fused=True)


def learning_rate(step: int, optimizer: OptimizerSection, schedule: ScheduleSection, max_steps: int) -> float:
    """Of the update that completes `step`, counted from 1: a linear rise, then a linear fall to 0 after max_steps."""
    if step <= schedule.warmup_steps:
        return optimizer.lr * step / schedule.warmup_steps
    return optimizer.lr * max(0, max_steps - step + 1) / max(1, max_steps - schedule.warmup_steps)


def set_learning_rate(optimizer: Any, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate
