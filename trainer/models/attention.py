"""Attention over a packed batch: every token looks at every token of its own sequence.

On CUDA in bf16 or fp16 one kernel takes the whole batch by the places where sequences end. Elsewhere each sequence is
computed by itself. Forward and backward on one CPU core, that takes 0.5 of a padded grid's time with a mask on rows to
512 that fill two thirds of it, 0.7 to 0.8 on fuller rows, and as long on 32 rows of 64 with heads of 32; two or four
grids of rows of like lengths took longer in each case.

Letters: T tokens, D width, H heads, d = D / H.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.varlen import varlen_attn

from trainer.models.packing import Spans


def attend(qkv_TN: Tensor, heads: int, spans: Spans, dropout: float) -> Tensor:
    """Queries, keys and values side by side (T, 3D) -> the heads' results side by side (T, D).

    `dropout` drops attention weights, except in the kernel for packed batches, which has none.
    """
    qkv = qkv_TN.view(len(qkv_TN), 3, heads, -1)
    if has_packed_kernel(qkv):
        q_THd, k_THd, v_THd = qkv.unbind(1)
        ends, longest = spans.ends_S1, spans.longest
        return varlen_attn(q_THd, k_THd, v_THd, ends, ends, longest, longest).flatten(1)  # type: ignore[union-attr]
    return attend_one_by_one(qkv, spans, dropout)  # type: ignore[call-arg]


def has_packed_kernel(qkv: Tensor) -> bool:
    """Whether the kernel takes these numbers: flash attention, half precision, heads of a multiple of 8."""
    return qkv.is_cuda and qkv.dtype in (torch.bfloat16, torch.float16) and qkv.shape[-1] % 8 == 0


@torch.compiler.disable
def attend_one_by_one(qkv: Tensor, spans: Spans, dropout: float) -> Tensor:
    """(T, 3, H, d) -> (T, D), sequence by sequence."""
    results = []
    for part in qkv.split(spans.lengths):
        q, k, v = part[None].permute(2, 0, 3, 1, 4)  # each (1, H, tokens, d): the fast kernels take no less
        y_1HTd = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)
        results.append(y_1HTd[0].transpose(0, 1).flatten(1))
    return torch.cat(results)
