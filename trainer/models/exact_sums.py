"""Embeddings and layer norms whose gradients are summed over tokens in float32, also by torch's CPU kernels.

In 16 bits, torch's CPU kernels add up the gradient of an embedding and of a layer norm's weights in 16 bits, one token
after the other. Such a sum stops growing: after 2,400 masked tokens, the gradient of the embedding of [MASK] is 57 %
off, and after 24,000 tokens the gradient of a layer norm's bias is 90 % off. Here both compute in float32 on a
CPU, and round the result. CUDA kernels sum in float32, as do sums, matrix products and RMSNorm on every device.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def is_summed_in_16_bits(values: Tensor) -> bool:
    """Return whether torch would add up gradients of this dtype in 16 bits on this device."""
    return values.device.type == "cpu" and values.dtype in (torch.bfloat16, torch.float16)


class Embedding(nn.Embedding):
    """torch's embedding, with gradients summed in float32."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the rows of the table at these ids, in the dtype of the table."""
        if is_summed_in_16_bits(self.weight):
            return F.embedding(input, self.weight.float()).to(self.weight.dtype)
        return super().forward(input)


class LayerNorm(nn.LayerNorm):
    """torch's layer norm, with gradients summed in float32."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the normalized vectors, in the dtype of the input."""
        if is_summed_in_16_bits(input):
            bias = None if self.bias is None else self.bias.float()
            normalized = F.layer_norm(input.float(), self.normalized_shape, self.weight.float(), bias, self.eps)
            return normalized.to(input.dtype)
        return super().forward(input)
