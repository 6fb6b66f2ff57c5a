"""Builds a recipe's optimizer, and decides which parameters get weight decay and which count as several matrices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from trainer.config.sections import OptimizerSection
from trainer.distributed.deepspeed_internals import full_shape_of
from trainer.optim.whole_tensors import Lamb, StableAdamW


def build_optimizer(model: nn.Module, section: OptimizerSection) -> torch.optim.Optimizer:
    """Return the recipe's optimizer over a model's parameters.

    The learning rate is 0 until one is set, because DeepSpeed may make an update while it builds an engine.
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
        for parameter, rows in _stacks_of(module):
            stacked[parameter] = rows
    return stacked


def _stacks_of(module: nn.Module) -> Iterator[tuple[Tensor, list[int]]]:
    """Yield the stacked parameters of a module, divided according to the shapes of the layers that use their output."""
    qkv = _linear(module, "qkv")
    out = _linear(module, "out")
    if qkv is not None and out is not None:
        # Queries are as wide as the input of `out`. Keys and values share the rest equally.
        queries = out.in_features
        others = (qkv.out_features - queries) // 2
        yield qkv.weight, [queries, others, others]

    up = _linear(module, "up")
    down = _linear(module, "down")
    if up is not None and down is not None and up.out_features == 2 * down.in_features:
        yield up.weight, [down.in_features, down.in_features]


def _linear(module: nn.Module, name: str) -> nn.Linear | None:
    found = getattr(module, name, None)
    return found if isinstance(found, nn.Linear) else None
