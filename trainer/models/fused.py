"""Dropout and GELU in fewer instructions, for layers that torch.compile fuses on GPUs.

There, torch's own take longer to compute than their tensors to read and write: its dropout draws a number by ten rounds
of mixing (Philox) for each value, and its error function has two branches. docs/measurements.md has the times. Layers
that are not compiled, and those on CPUs, have torch's; so has GELU in float32, which would show a difference.

Shape suffixes: N rows, D values of a row.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

KEYS = 2**31
"""Keys of dropout are in [-KEYS, KEYS), the range of int32."""

# Odd constants whose products spread bits, as signed numbers: the primes of xxHash (Collet).
PRIME_1 = 0x9E3779B1 - 2**32
PRIME_2 = 0x85EBCA77 - 2**32

TAIL = (-1.0, -1.1511941, -0.45859790, -0.053835530, 0.0084510725, -0.00091704412, 6.0001981e-5, -1.7603236e-6)
"""Coefficients of a polynomial in z >= 0: log2 of the normal distribution's tail, Phi(-z), within 9e-6 up to z = 6.5.

Fitted by least squares that were reweighted until the largest error was the least.
"""

BELL = -0.5 * math.log2(math.e)
"""exp(-x * x / 2) is 2 ** (BELL * x * x)."""


def is_fused(x: Tensor) -> bool:
    """Return whether torch.compile is fusing operations on this tensor for a GPU."""
    return torch.compiler.is_compiling() and x.device.type == "cuda"


class Dropout(nn.Dropout):
    """torch's dropout, with masks that are cheap to draw where layers are fused."""

    def forward(self, input: Tensor) -> Tensor:
        """Return (N, D) with values set to 0 with probability p in training, and the others divided by 1 - p."""
        if self.training and self.p > 0 and is_fused(input):
            return keyed_dropout(input, self.p)
        return super().forward(input)


def keyed_dropout(x_ND: Tensor, p: float) -> Tensor:
    """Drop values with probability `p`, as a function of a random key for each row and one for each column.

    The backward pass computes the mask again from these keys. They come from the device's generator, so recomputed
    layers draw the same ones again.
    """
    rows_N1 = torch.randint(-KEYS, KEYS, (x_ND.shape[0], 1), device=x_ND.device).int()
    columns_D = torch.randint(-KEYS, KEYS, (x_ND.shape[1],), device=x_ND.device).int()
    return x_ND * is_kept(rows_N1, columns_D, p) * (1 / (1 - p))


def is_kept(rows_N1: Tensor, columns_D: Tensor, p: float) -> Tensor:
    """Return which values to keep, (N, D), with probability 1 - p each. Keys: uniformly distributed int32.

    The exclusive ors of two pairs of keys are independent and uniform. Those of the corners of a rectangle are not:
    they cancel out. Two products mix their bits, so that this does not show in the highest bits, which decide.
    """
    drawn_ND = (rows_N1 ^ columns_D) * PRIME_1
    drawn_ND = drawn_ND ^ ((drawn_ND >> 15) & 0x1FFFF)  # a shift that brings in zeros
    return drawn_ND * PRIME_2 >= round(p * 2**32) - KEYS


def gelu(x: Tensor) -> Tensor:
    """Return x * Phi(x), where Phi is the normal distribution (Hendrycks and Gimpel, arXiv:1606.08415)."""
    if is_fused(x) and x.dtype in (torch.bfloat16, torch.float16):
        return FusedGelu.apply(x)
    return F.gelu(x)


class FusedGelu(torch.autograd.Function):
    """GELU within 1e-6, of which 16 bits show nothing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Return the activations, in the dtype of x."""
        ctx.save_for_backward(x)
        return (x.float() * phi(x.float())).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # pyrefly: ignore[bad-override]
        """Return the gradient of x."""
        x = ctx.saved_tensors[0].float()
        bell = torch.exp2(x * x * BELL) * (1 / math.sqrt(2 * math.pi))
        return (gradient.float() * (phi(x) + x * bell)).to(gradient.dtype)


def phi(x: Tensor) -> Tensor:
    """Return the normal distribution at float32 numbers."""
    z = x.abs()
    log_tail = torch.full_like(z, TAIL[-1])
    for coefficient in reversed(TAIL[:-1]):
        log_tail = log_tail * z + coefficient
    tail = torch.exp2(log_tail)
    return torch.where(x < 0, tail, 1 - tail)
