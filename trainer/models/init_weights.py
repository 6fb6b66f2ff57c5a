"""Initial weights from a seed, with the distributions of the published models.

BERT, ALBERT (google-research/bert and albert) and ModernBERT draw matrices from a normal distribution truncated at two
standard deviations. RoBERTa, Megatron-BERT (fairseq, Megatron-LM) and the others use an untruncated one. Megatron-BERT
and ModernBERT divide the standard deviation of the matrices that add to the residual stream by sqrt(2 * layers), so
that the stream's variance does not grow with depth (arXiv:1909.08053). ELECTRA draws like BERT, except for two matrices
(families.py). Norms begin with weights of one. All biases are zero, except XLNet's attention biases, which are drawn.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from schemas.randomness import key
from trainer.models.shape import EncoderShape

RESIDUAL_MATRICES = ("attention.out", "down")
"""Name endings of the matrices whose output is added to the residual stream."""

DRAWN_WEIGHTS = ("q", "k", "v", "o", "r", "r_w_bias", "r_r_bias", "r_s_bias", "seg_embed", "mask_emb")
"""XLNet's weights that are not in torch modules. All are drawn, biases included, as in zihangdai/xlnet, modeling.py."""


@torch.no_grad()
def initialize(model: nn.Module, shape: EncoderShape, std: float, seed: int) -> None:
    """Fill in all weights, in place. They depend only on the seed, the shape and `std`."""
    drawn = drawn_weights(model, shape, std, seed)
    for (_, values), parameter in zip(drawn, model.parameters(), strict=True):
        parameter.copy_(values)


@torch.no_grad()
def drawn_weights(model: nn.Module, shape: EncoderShape, std: float, seed: int) -> Iterator[tuple[str, Tensor]]:
    """Yield the name and the initial values of every parameter, in float32, in the order of the model.

    Only the model's names and shapes are read, so it may be on the meta device. A single generator draws all matrices,
    so the values also depend on the order in which they are drawn.
    """
    generator = torch.Generator().manual_seed(key(seed, "initial weights") >> 1)  # torch takes 63 bits

    for name, module in model.named_modules():
        for kind, parameter in module.named_parameters(recurse=False):
            is_matrix = isinstance(module, nn.Linear | nn.Embedding) and kind == "weight"
            if is_matrix or kind in DRAWN_WEIGHTS:
                values = torch.empty(parameter.shape)
                _draw(values, name, shape, std, generator)
            elif isinstance(module, nn.LayerNorm | nn.RMSNorm) and kind == "weight":
                values = torch.ones(parameter.shape)
            else:
                assert kind == "bias", f"no initial values are known for {name}.{kind}"
                values = torch.zeros(parameter.shape)
            yield f"{name}.{kind}", values


def _draw(values: Tensor, name: str, shape: EncoderShape, std: float, generator: torch.Generator) -> None:
    """Draw the values of the module `name`, in place."""
    if shape.scaled_residuals and name.endswith(RESIDUAL_MATRICES):
        std = std / (2 * shape.num_hidden_layers) ** 0.5

    if name.endswith(shape.glorot):
        nn.init.xavier_uniform_(values, generator=generator)
    elif shape.truncated is not None:
        bound = shape.truncated * std
        nn.init.trunc_normal_(values, std=std, a=-bound, b=bound, generator=generator)
    else:
        nn.init.normal_(values, std=std, generator=generator)
