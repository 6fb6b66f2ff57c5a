"""Initial weights as published, from a seed.

BERT and ALBERT draw matrices from a normal distribution truncated at two standard deviations (google-research/bert and
albert); RoBERTa and Megatron-BERT from a full one (fairseq, Megatron-LM). Megatron-BERT divides the standard deviation
of the matrices that add to the residual stream by sqrt(2 * layers), so that the stream's variance does not grow with
depth (arXiv:1909.08053). Biases are zero; norms keep torch's weights of one and biases of zero.
"""

from __future__ import annotations

import torch
from torch import nn

from schemas.randomness import key
from trainer.models.encoder import EncoderShape

TRUNCATED_FAMILIES = ("bert", "albert")

RESIDUAL_MATRICES = ("attention.out", "down")
"""Ends of the names of the matrices whose output is added to the residual stream."""


@torch.no_grad()
def initialize(model: nn.Module, shape: EncoderShape, std: float, seed: int) -> None:
    """Fill in all weights. They depend on the seed, the shape and `std` alone."""
    generator = torch.Generator().manual_seed(key(seed, "initial weights") >> 1)  # torch takes 63 bits

    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            module_std = std
            if shape.pre_norm and name.endswith(RESIDUAL_MATRICES):
                module_std = std / (2 * shape.num_hidden_layers) ** 0.5

            if shape.family in TRUNCATED_FAMILIES:
                bound = 2 * module_std
                nn.init.trunc_normal_(module.weight, std=module_std, a=-bound, b=bound, generator=generator)
            else:
                nn.init.normal_(module.weight, std=module_std, generator=generator)

        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)
