"""Initial weights as published, from a seed.

BERT and ALBERT draw matrices from a normal distribution truncated at two deviations (google-research/bert and albert);
RoBERTa and Megatron-BERT from a whole one (fairseq, Megatron-LM). Megatron-BERT divides the deviation of the matrices
that add to the residual stream by sqrt(2 layers), so that its variance does not grow with depth (arXiv:1909.08053).
Biases are zero, norms one.
"""

from __future__ import annotations

import torch
from torch import nn

from schemas.randomness import key
from trainer.models.encoder import EncoderShape

TRUNCATED = ("bert", "albert")
INTO_THE_RESIDUAL = ("attention.out", "down")


@torch.no_grad()
def initialize(model: nn.Module, shape: EncoderShape, std: float, seed: int) -> None:
    """Fill in all weights, which then depend on the seed alone."""
    generator = torch.Generator().manual_seed(key(seed, "initial weights") >> 1)  # torch takes 63 bits
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            scaled = shape.pre_norm and name.endswith(INTO_THE_RESIDUAL)
            deviation = std / (2 * shape.num_hidden_layers) ** 0.5 if scaled else std
            if shape.family in TRUNCATED:
                edge = 2 * deviation
                nn.init.trunc_normal_(module.weight, std=deviation, a=-edge, b=edge, generator=generator)
            else:
                nn.init.normal_(module.weight, std=deviation, generator=generator)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)
