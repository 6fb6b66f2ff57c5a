"""The optimizer of a recipe, and which parameters it decays."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from trainer.recipe import OptimizerSection


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
