"""The optimizer of a recipe, and which parameters it decays."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from trainer.config.schema import OptimizerSection
from trainer.optim.lamb import Lamb


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Matrices are decayed; biases and layer norms, which are vectors, are not (google-research/bert)."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]


def build_optimizer(model: nn.Module, section: OptimizerSection) -> torch.optim.Optimizer:
    """Its learning rate is 0 until one is set: DeepSpeed may take a step of its own while it makes ready."""
    groups = parameter_groups(model, section.weight_decay)
    if section.kind == "lamb":
        groups[1]["adapts"] = False
        return Lamb(groups, 0.0, section.betas, section.eps, stacked_matrices(model))
    # fused: one kernel over all parameters, on CPU too
    return torch.optim.AdamW(groups, lr=0.0, betas=section.betas, eps=section.eps, fused=True)


def stacked_matrices(model: nn.Module) -> dict[torch.Tensor, int]:
    """Query, key and value lie in one parameter; the published models have a matrix, and so a ratio, for each."""
    return {p: 3 for name, p in model.named_parameters() if name.endswith("qkv.weight")}
