"""Attention over a packed batch: every token looks at every token of its own sequence.

There are three ways, which compute the same up to rounding, dropout of attention weights included:

    packed      flash attention takes the whole batch by the places where sequences end. Only CUDA, 16-bit numbers.
    padded      sequences side by side in a grid, filled up to the longest, in one call with a mask. Everywhere else
                on CUDA: float32, GPUs older than Ampere, large heads. No way back to the host, one call a layer.
    one by one  each sequence by itself, on CPUs. Forward and backward on one core, that takes 0.5 of a padded grid's
                time with a mask on rows to 512 that fill two thirds of it, 0.7 to 0.8 on fuller rows, and as long on
                32 rows of 64 with heads of 32; two or four grids of rows of like lengths took longer in each case.

Letters: T tokens, S sequences, L tokens of the longest sequence, D width, H heads, d = D / H.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from trainer.models.batch import SequenceOffsets

AMPERE = (8, 0)  # compute capability; flash attention has no kernels for older GPUs
LARGEST_HEAD = 256  # of flash attention
LARGEST_HEAD_ANYWHERE = 192
"""Above it, flash attention's backward pass needs the shared memory of an A100, H100 or B200 multiprocessor.

GPUs of compute capability 8.6, 8.9 and 12.x have 100 KB. There torch refuses to train heads of 193 to 224, and those of
225 to 256 with dropout.
"""
MUCH_SHARED_MEMORY = ((8, 0), (9, 0), (10, 0))

Way = Literal["packed", "padded", "one by one"]


def attend(qkv_TN: Tensor, heads: int, spans: SequenceOffsets, dropout: float) -> Tensor:
    """Return the heads' results side by side, (T, D), for queries, keys and values side by side, (T, 3D).

    `dropout` is the share of attention weights that is dropped.
    """
    qkv = qkv_TN.view(len(qkv_TN), 3, heads, -1)
    way = kernel_for(qkv.device.type, qkv.dtype, qkv.shape[-1], capability_of(qkv.device))
    if way == "packed":
        return attend_packed(qkv, spans, dropout)
    if way == "padded":
        return attend_padded(qkv, spans, dropout)
    return attend_one_by_one(qkv, spans, dropout)  # type: ignore[call-arg]


def kernel_for(device: str, dtype: torch.dtype, head_size: int, capability: tuple[int, int]) -> Way:
    """Return which way to take for heads of `head_size` on a device of a compute capability."""
    if device != "cuda":
        return "one by one"
    half = dtype in (torch.bfloat16, torch.float16)
    if not half or capability < AMPERE or head_size % 8 != 0:
        return "padded"

    largest = LARGEST_HEAD if capability in MUCH_SHARED_MEMORY else LARGEST_HEAD_ANYWHERE
    return "packed" if head_size <= largest else "padded"


def capability_of(device: torch.device) -> tuple[int, int]:
    """Return a GPU's compute capability, or (0, 0) for any other device."""
    return _capability(device.index) if device.type == "cuda" else (0, 0)


@torch.compiler.assume_constant_result
def _capability(index: int) -> tuple[int, int]:
    return torch.cuda.get_device_capability(index)


def attend_packed(qkv: Tensor, spans: SequenceOffsets, dropout: float) -> Tensor:
    """(T, 3, H, d) -> (T, D), in one kernel.

    The ATen operator instead of torch.nn.attention.varlen.varlen_attn, which has no dropout. Its mask comes from the
    device's generator, so recomputed layers draw the same one again.
    """
    q_THd, k_THd, v_THd = qkv.unbind(1)
    y_THd, *_ = torch.ops.aten._flash_attention_forward(
        q_THd,
        k_THd,
        v_THd,
        spans.ends_S1,
        spans.ends_S1,
        spans.longest,
        spans.longest,
        dropout,
        False,  # not causal
        False,  # no debug mask
    )
    return y_THd.flatten(1)


def attend_padded(qkv: Tensor, spans: SequenceOffsets, dropout: float) -> Tensor:
    """(T, 3, H, d) -> (T, D), in one call over a grid of S rows of L tokens."""
    _, _, heads, head_size = qkv.shape
    sequences = len(spans.ends_S1) - 1
    grid = qkv.new_zeros(sequences * spans.longest, 3, heads, head_size).index_copy(0, spans.places_T, qkv)
    q_SHLd, k_SHLd, v_SHLd = grid.view(sequences, spans.longest, 3, heads, head_size).permute(2, 0, 3, 1, 4)

    y_SHLd = F.scaled_dot_product_attention(
        q_SHLd, k_SHLd, v_SHLd, attn_mask=spans.filled_S11L.expand(-1, 1, spans.longest, -1), dropout_p=dropout
    )
    return y_SHLd.transpose(1, 2).flatten(0, 1).index_select(0, spans.places_T).flatten(1)


@torch.compiler.disable
def attend_one_by_one(qkv: Tensor, spans: SequenceOffsets, dropout: float) -> Tensor:
    """(T, 3, H, d) -> (T, D), sequence by sequence."""
    results = []
    for part in qkv.split(spans.lengths):
        q, k, v = part[None].permute(2, 0, 3, 1, 4)  # each (1, H, tokens, d): the fast kernels take no less
        y_1HTd = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)
        results.append(y_1HTd[0].transpose(0, 1).flatten(1))
    return torch.cat(results)
