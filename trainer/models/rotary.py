"""Rotary position embeddings, RoPE (Su et al., arXiv:2104.09864): queries and keys are rotated by their positions.

Attention scores then depend on positions only through the distance between two tokens. Of a head's d values, i and
i + d/2 form a pair, as in GPT-NeoX and transformers; RoFormer itself pairs neighbors. Pair i of a token at position p
is rotated by the angle p / base ** (2i / d).

Shape suffixes: T tokens, N heads of queries, keys and values together, d head size, h = d / 2.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Rotation(NamedTuple):
    """The cosines and sines of all tokens' angles, (T, 1, h) in float32, which broadcast over heads."""

    cos_T1h: Tensor
    sin_T1h: Tensor


def rotation_of(positions_T: Tensor, base: float, head_size: int) -> Rotation:
    """Return the rotations of tokens at these positions.

    They are computed from the positions each time. A stored table would be rounded to bfloat16 along with the weights,
    and in bfloat16 the positions 256 and 257 are equal.
    """
    exponents_h = torch.arange(0, head_size, 2, device=positions_T.device).float() / head_size
    angles_Th = positions_T.float()[:, None] * (1.0 / base**exponents_h)
    return Rotation(angles_Th.cos()[:, None], angles_Th.sin()[:, None])


def rotate(qkv_TNd: Tensor, rotated: int, rotation: Rotation) -> Tensor:
    """Return (T, N, d) with the first `rotated` heads, those of queries and keys, rotated.

    Computed in float32 whatever the dtype of the input, as in ModernBERT and ESM-2. The result has the input's dtype.
    """
    values_TNd = qkv_TNd[:, rotated:]
    first_TNh, second_TNh = qkv_TNd[:, :rotated].float().chunk(2, dim=-1)

    cos_T1h, sin_T1h = rotation
    turned_TNd = torch.cat(
        [first_TNh * cos_T1h - second_TNh * sin_T1h, second_TNh * cos_T1h + first_TNh * sin_T1h], dim=-1
    )
    return torch.cat([turned_TNd.to(qkv_TNd.dtype), values_TNd], dim=1)
