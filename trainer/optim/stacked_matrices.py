"""Finds the parameters of a model that stack several matrices, each of which has its own factor."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn


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
