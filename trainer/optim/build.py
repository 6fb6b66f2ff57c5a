"""Builds a recipe's optimizer, and decides which parameters get weight decay and which count as several matrices."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from trainer.config.sections import OptimizerSection
from trainer.distributed.deepspeed_internals import full_shape_of
from trainer.models.encoder import Attention, Layer
from trainer.optim.whole_tensors import Lamb, StableAdamW


def build_optimizer(model: nn.Module, section: OptimizerSection) -> torch.optim.Optimizer:
    """Return the recipe's optimizer over a model's parameters.

    The learning rate is 0 until one is set, because DeepSpeed may make an update while it builds an engine.

    Whatever it is, its `step` must change nothing where `found_inf` is 1, by which a bad step is skipped
    (trainer/anomaly.py), and a state that is saved must be named in `MOMENTS` (trainer/distributed/zero.py). torch's
    fused optimizers and those on WholeTensorOptimizer keep to the first.
    """
    groups = parameter_groups(model, section.weight_decay)

    if section.kind == "stable_adamw":
        return StableAdamW(groups, 0.0, section.betas, section.eps)

    if section.kind == "lamb":
        _, vectors = groups
        vectors["adapts"] = False
        return Lamb(groups, 0.0, section.betas, section.eps, stacked_matrices(model))

    # fused: one kernel updates all parameters, on CPUs as well.
    return torch.optim.AdamW(groups, lr=0.0, betas=section.betas, eps=section.eps, fused=True)


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return two groups: matrices, which are decayed, and vectors, which are not.

    Vectors are biases and layer norms; google-research/bert excludes the same ones.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    # If ZeRO has partitioned it already, a parameter is an empty placeholder that knows its full shape.
    matrices = [parameter for parameter in parameters if len(full_shape_of(parameter)) > 1]
    vectors = [parameter for parameter in parameters if len(full_shape_of(parameter)) <= 1]
    return [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]


def stacked_matrices(model: nn.Module) -> dict[Tensor, list[int]]:
    """Return, for each parameter that stacks several matrices, the number of rows of each matrix.

    This model stacks query, key and value in one parameter, and also the two halves of a gated feed-forward layer. They
    multiply the same input but are separate matrices: the published BERT, ALBERT and RoBERTa have a parameter for each.
    """
    stacked: dict[Tensor, list[int]] = {}
    for module in model.modules():
        if isinstance(module, Attention):
            queries = module.out.in_features
            others = (module.qkv.out_features - queries) // 2
            stacked[module.qkv.weight] = [queries, others, others]
        elif isinstance(module, Layer) and module.gated:
            inner = module.down.in_features
            stacked[module.up.weight] = [inner, inner]
    return stacked
