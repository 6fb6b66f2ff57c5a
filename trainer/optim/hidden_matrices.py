"""Says which parameters of a model are hidden matrices, and which of them stack several matrices.

Nothing here needs DeepSpeed, so that `--describe` can count the parameters that Muon updates.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from trainer.models.xlnet_hf import MATRICES

LAYERS = "layers"
"""The name of the module list that holds a model's Transformer layers."""

MATRIX_NAMES = ("weight", *MATRICES)
"""The names of matrices in their modules: torch's, and the five of XLNet's attention, which are plain parameters."""


def hidden_matrices(model: nn.Module) -> list[nn.Parameter]:
    """Return the matrices inside a model's Transformer layers, in the order of its parameters.

    These are what Muon is meant for: "all 2D hidden layers", not embeddings, heads, norms and biases
    (https://kellerjordan.github.io/posts/muon). ALBERT's projection of the embeddings counts as embedding, the pooler
    and the dense layer before the vocabulary as heads.
    """
    return [parameter for name, parameter in model.named_parameters() if _is_hidden_matrix(name, parameter)]


def _is_hidden_matrix(name: str, parameter: nn.Parameter) -> bool:
    *modules, kind = name.split(".")
    return LAYERS in modules and kind in MATRIX_NAMES and parameter.dim() == 2 and parameter.requires_grad


def stacked_matrices(model: nn.Module) -> dict[Tensor, list[int]]:
    """Return, for each parameter that stacks several matrices, the number of rows of each matrix.

    This model stacks query, key and value in one parameter, and also the two halves of a gated feed-forward layer. They
    multiply the same input but are separate matrices: the published BERT, ALBERT and RoBERTa have a parameter for each,
    and Muon works better on query, key and value separately (https://kellerjordan.github.io/posts/muon).
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
