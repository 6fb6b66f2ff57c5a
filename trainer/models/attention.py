"""Attention over a packed batch: every token attends to all tokens of the same sequence.

There are four kernels. They compute the same up to rounding, and all drop attention weights:

    packed      Flash attention takes the whole batch, given where its sequences end. Only CUDA, 16-bit numbers.
                flash.py has it, in several implementations.
    padded      The sequences are copied into a grid, padded to the longest, and computed in one call with a mask.
                For CUDA where flash attention does not work: float32, GPUs older than Ampere, large heads. Copies
                nothing to the host, and takes one call a layer.
    one by one  Each sequence is computed by itself; for CPUs. Forward and backward on one core, this takes 0.5 of a
                masked grid's time on rows to 512 that fill two thirds of it, 0.7 to 0.8 on fuller rows, and as long
                on 32 rows of 64 with heads of 32. Two or four grids of rows of similar lengths took longer in each
                case.
    windows     Blocks of packed tokens and their neighbors (windows.py): in layers with a window, where flash attention
                does not work and sequences are longer than the window.

Shape suffixes: T tokens, S sequences, L tokens of the longest sequence, N heads of queries, keys and values together,
H heads of queries, d head size, D = H * d.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from trainer.models.attention_rule import AttentionRule, split_heads
from trainer.models.batch import SequenceOffsets
from trainer.models.flash import AttendPacked, attend_with_torch
from trainer.models.windows import attend_in_windows

Kernel = Literal["packed", "padded", "one by one"]

AMPERE = (8, 0)
"""Compute capability. Flash attention has no kernels for older GPUs."""

HEAD_SIZE_MULTIPLE = 8
"""Flash attention needs head sizes that are multiples of this."""

MAX_HEAD_SIZE = 256
"""The largest head of flash attention on GPUs with much shared memory."""

MAX_HEAD_SIZE_ELSEWHERE = 192
"""The largest head on other GPUs.

Above it, flash attention's backward pass needs the shared memory of an A100, H100 or B200 multiprocessor. GPUs of
compute capability 8.6, 8.9 and 12.x have 100 KB. There torch refuses to train heads of 193 to 224, and those of 225 to
256 with dropout.
"""

MUCH_SHARED_MEMORY = ((8, 0), (9, 0), (10, 0))
"""Compute capabilities of A100, H100 and B200."""


def attend(
    qkv_TNd: Tensor, offsets: SequenceOffsets, rule: AttentionRule, flash: AttendPacked = attend_with_torch
) -> Tensor:
    """Return the heads' outputs side by side, (T, D), given the heads of queries, keys and values, (T, N, d).

    `flash` computes it where flash attention can.
    """
    device = qkv_TNd.device
    kernel = kernel_for(device.type, qkv_TNd.dtype, qkv_TNd.shape[-1], capability_of(device))

    if kernel == "packed":
        return flash(qkv_TNd, offsets.ends_S1, offsets.longest, rule)
    if rule.window is not None and rule.window + 1 < offsets.longest:
        return attend_in_windows(qkv_TNd, offsets.sequence_T, rule)
    if kernel == "padded":
        return attend_padded(qkv_TNd, offsets, rule)
    return attend_one_by_one(qkv_TNd, offsets, rule)  # type: ignore[call-arg]


def kernel_for(device: str, dtype: torch.dtype, head_size: int, capability: tuple[int, int]) -> Kernel:
    """Return the fastest kernel for heads of `head_size` on a device type of this compute capability."""
    if device != "cuda":
        return "one by one"

    is_16_bit = dtype in (torch.bfloat16, torch.float16)
    if not is_16_bit or capability < AMPERE or head_size % HEAD_SIZE_MULTIPLE != 0:
        return "padded"

    max_head_size = MAX_HEAD_SIZE if capability in MUCH_SHARED_MEMORY else MAX_HEAD_SIZE_ELSEWHERE
    return "packed" if head_size <= max_head_size else "padded"


def capability_of(device: torch.device) -> tuple[int, int]:
    """Return a GPU's compute capability, or (0, 0) for any other device."""
    if device.type != "cuda":
        return (0, 0)
    return _gpu_capability(device.index)


@torch.compiler.assume_constant_result
def _gpu_capability(index: int) -> tuple[int, int]:
    return torch.cuda.get_device_capability(index)


def attend_padded(qkv_TNd: Tensor, offsets: SequenceOffsets, rule: AttentionRule) -> Tensor:
    """Compute (T, N, d) -> (T, D) in one call, over a grid of S rows of L tokens."""
    sequences = len(offsets.ends_S1) - 1
    longest = offsets.longest

    # Copy the tokens into the grid, whose other places stay zero.
    zeros = qkv_TNd.new_zeros(sequences * longest, *qkv_TNd.shape[1:])
    grid = zeros.index_copy(0, offsets.grid_places_T, qkv_TNd)
    heads = split_heads(grid, rule.heads)
    q_SHLd, k_SHLd, v_SHLd = (part.unflatten(0, (sequences, longest)).transpose(1, 2) for part in heads)

    # The same keys for all heads and queries of a sequence: those that are tokens of it, and not later if causal.
    mask_S1LL = offsets.grid_mask_S11L.expand(-1, 1, longest, -1)
    if rule.causal:
        mask_S1LL = mask_S1LL & mask_S1LL.new_ones(longest, longest).tril()
    y_SHLd = F.scaled_dot_product_attention(q_SHLd, k_SHLd, v_SHLd, attn_mask=mask_S1LL, dropout_p=rule.dropout)

    # Back from the grid to the packed tokens.
    y_grid = y_SHLd.transpose(1, 2).flatten(0, 1)
    return y_grid.index_select(0, offsets.grid_places_T).flatten(1)


@torch.compiler.disable
def attend_one_by_one(qkv_TNd: Tensor, offsets: SequenceOffsets, rule: AttentionRule) -> Tensor:
    """Compute (T, N, d) -> (T, D), sequence by sequence."""
    outputs = []
    for qkv in qkv_TNd.split(offsets.lengths):
        # Each (1, H, tokens, d): the fast CPU kernels need the batch dimension.
        q, k, v = (part.transpose(0, 1)[None] for part in split_heads(qkv, rule.heads))
        y_1HTd = F.scaled_dot_product_attention(q, k, v, dropout_p=rule.dropout, is_causal=rule.causal)
        outputs.append(y_1HTd[0].transpose(0, 1).flatten(1))
    return torch.cat(outputs)
