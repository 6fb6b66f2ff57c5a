"""Attention over a packed batch: every token attends to all tokens of the same sequence.

There are four kernels. They give the same result up to rounding, and all support dropout of attention weights:

    packed      Flash attention runs on the whole batch, given the offsets at which sequences end. CUDA and 16-bit
                floats only. flash.py has several implementations.
    padded      The sequences are copied into a grid, padded to the longest, and computed in one call with a mask.
                For CUDA where flash attention does not work: float32, GPUs older than Ampere, large heads. Copies
                nothing to the host, and needs one call per layer.
    one by one  Each sequence is computed separately; for CPUs. Measured on one core, forward and backward, this takes
                half the time of a masked grid on rows of up to 512 tokens that fill two thirds of the grid, 0.7 to 0.8
                of it on fuller rows, and the same time on 32 rows of 64 tokens with heads of 32. Splitting the batch
                into two or four grids of rows of similar length was slower in each case.
    windows     Blocks of packed tokens and their neighbors (windows.py): for layers with a window where flash attention
                does not work and the longest sequence exceeds the window.

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
"""The largest head size of flash attention on the GPUs of MUCH_SHARED_MEMORY."""

MAX_HEAD_SIZE_ELSEWHERE = 192
"""The largest head size on other GPUs.

Above it, flash attention's backward pass needs as much shared memory as an A100, H100 or B200 multiprocessor has. GPUs
of compute capability 8.6, 8.9 and 12.x have 100 KB, and there torch refuses to train heads of 193 to 224 values, and
with dropout also those of 225 to 256.
"""

MUCH_SHARED_MEMORY = ((8, 0), (9, 0), (10, 0))
"""Compute capabilities of A100, H100 and B200."""


def attend(
    qkv_TNd: Tensor, offsets: SequenceOffsets, rule: AttentionRule, flash: AttendPacked = attend_with_torch
) -> Tensor:
    """Return the heads' outputs side by side, (T, D), given the heads of queries, keys and values, (T, N, d).

    flash: the implementation to call if the packed kernel is chosen.
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
    """Return the fastest kernel for heads of `head_size`. device: the type, such as "cuda". capability: see AMPERE."""
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

    # All heads and queries of a sequence may attend to the same keys: its real tokens. If causal, only to earlier ones.
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
