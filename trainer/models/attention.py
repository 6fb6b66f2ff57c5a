"""Attention over a packed batch: every token attends to all tokens of the same sequence, or to those near it.

There are five kernels. They give the same result up to rounding, and all support dropout of attention weights:

    packed      Flash attention runs on the whole batch, given the offsets at which sequences end. CUDA and 16-bit
                floats only. Short rows with dropout, and windows, have a Triton kernel instead (attention_triton.py)
                where a trial shows that it is right and faster (trainer/attention_choice.py).
    padded      The sequences are copied into a grid, padded to the longest, and computed in one call with a mask.
                For CUDA where flash attention does not work: float32, GPUs older than Ampere, large heads. Copies
                nothing to the host, and needs one call per layer.
    one by one  Each sequence is computed separately; for CPUs. Measured on one core, forward and backward, this takes
                half the time of a masked grid on rows of up to 512 tokens that fill two thirds of the grid, 0.7 to 0.8
                of it on fuller rows, and the same time on 32 rows of 64 tokens with heads of 32. Splitting the batch
                into two or four grids of rows of similar length was slower in each case.
    windows     Blocks of packed tokens and their neighbors: for layers with a window where flash attention does not
                work and the longest sequence exceeds the window.

Before attention, some families rotate queries and keys by their positions (RoPE).

Shape suffixes: T tokens, S sequences, L tokens of the longest sequence, N heads of queries, keys and values together,
H heads of queries, d head size, D = H * d, h = d / 2, C blocks, B tokens of a block, W = B + 2 * window keys that a
block sees. S1 means S + 1.
"""

from __future__ import annotations

import importlib.util
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from trainer.models.batch import SequenceOffsets

Kernel = Literal["packed", "padded", "one by one"]

AMPERE = (8, 0)
"""Compute capability. Flash attention has no kernels for older GPUs."""

HOPPER = (9, 0)
"""Compute capability of H100 and H200, the only GPUs of FlashAttention-3."""

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

FLASH_3_MODULE = "flash_attn_interface"
"""The module of the package flash_attn_3, which torch takes FlashAttention-3 from."""

MIN_BLOCK = 32
"""The minimum number of tokens in a block. A block has 2 * window tokens if that is more.

In blocks of 2 * window, half of the computed scores are needed. Shorter blocks would compute fewer unneeded scores, but
in smaller, less efficient matrix products.
"""

SEED_RANGE = 2**31 - 1
"""Each of the two numbers of a dropout mask's seed is in [0, SEED_RANGE)."""

NO_WINDOW = -1
"""The window of the Triton kernel where a token sees its whole sequence."""

PADDING = -1
"""The sequence number of the zeros before the first token and after the last one."""


def threshold_of(dropout: float) -> int:
    """Return the number below which a drawn uint32 drops its weight in the Triton kernel."""
    return int(dropout * 2**32)


class AttentionRule(NamedTuple):
    """What every attention kernel needs to know, apart from where the sequences end.

    heads: H, the heads of queries. Of the other heads of a (T, N, d) tensor, half are keys and half are values.
    dropout: the probability of dropping an attention weight.
    window: how many tokens on each side a token attends to; None: all of its sequence.
    causal: a token attends only to itself and to earlier tokens.
    triton: use the Triton kernel where there is dropout or a window. Only for heads that share no keys, without causal
        attention; trainer/attention_choice.py sets it.
    """

    heads: int
    dropout: float = 0.0
    window: int | None = None
    causal: bool = False
    triton: bool = False

    @property
    def uses_triton(self) -> bool:
        return self.triton and not self.causal and (self.dropout > 0 or self.window is not None)


class SequenceEnds(Protocol):
    """Where packed sequences end: what flash attention needs of `SequenceOffsets`."""

    @property
    def ends_S1(self) -> Tensor: ...

    @property
    def longest(self) -> int: ...


def attend(qkv_TNd: Tensor, offsets: SequenceOffsets, rule: AttentionRule, rotation: Rotation | None = None) -> Tensor:
    """Return the heads' outputs side by side, (T, D), given the heads of queries, keys and values, (T, N, d).

    rotation: by which queries and keys are rotated before, or None.
    """
    device = qkv_TNd.device
    kernel = kernel_for(device.type, qkv_TNd.dtype, qkv_TNd.shape[-1], capability_of(device))

    if kernel == "packed" and not rule.uses_triton:
        return attend_flash(qkv_TNd, offsets, rule, rotation)
    if rotation is not None:
        qkv_TNd = rotate_projections(qkv_TNd, rule.heads, rotation)
    if kernel == "packed":
        return attend_triton(qkv_TNd, offsets, rule)
    if rule.window is not None and rule.window + 1 < offsets.longest:
        return attend_in_windows(qkv_TNd, offsets.sequence_T, rule)
    if kernel == "padded":
        return attend_padded(qkv_TNd, offsets, rule)
    return attend_one_by_one(qkv_TNd, offsets, rule)


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


def choose_flash(dropout: float) -> str:
    """Let torch compute flash attention with FlashAttention-3 if it can, and return the name of what it uses.

    FlashAttention-3 needs an H100 or H200, the package flash_attn_3, a torch that can activate it, and no dropout of
    attention weights: torch then refuses all flash attention with dropout in this process.
    """
    name = "FlashAttention-2 of torch"
    activate = getattr(torch.nn.attention, "activate_flash_attention_impl", None)
    is_installed = importlib.util.find_spec(FLASH_3_MODULE) is not None
    if activate is None or not is_installed or dropout or torch.cuda.get_device_capability() != HOPPER:
        return name

    try:
        activate("FA3")
    except Exception as error:
        # A package that was built for another torch fails in many ways: a missing symbol, a changed argument.
        return f"{name}; not FlashAttention-3, because of {type(error).__name__}: {str(error).splitlines()[0]}"
    return "FlashAttention-3"


def attend_triton(qkv_TNd: Tensor, offsets: SequenceEnds, rule: AttentionRule, seed: Tensor | None = None) -> Tensor:
    """Compute (T, N, d) -> (T, D) with the Triton kernel.

    seed: of its dropout mask, two int64. By default it comes from the device's generator, as flash attention's mask
    does, so recomputed layers draw the same mask again.
    """
    if seed is None and rule.dropout:
        seed = torch.randint(SEED_RANGE, (2,), device=qkv_TNd.device)
    if seed is None:
        seed = offsets.ends_S1.new_empty(2, dtype=torch.int64)  # which is not read
    window = NO_WINDOW if rule.window is None else rule.window
    y_THd, _ = torch.ops.clozeline.attend_packed(qkv_TNd, offsets.ends_S1, seed, offsets.longest, rule.dropout, window)
    return y_THd.flatten(1)


def attend_flash(
    qkv_TNd: Tensor, offsets: SequenceEnds, rule: AttentionRule, rotation: Rotation | None = None
) -> Tensor:
    """Compute (T, N, d) -> (T, D) with torch's flash attention.

    This calls the ATen operator because torch.nn.attention.varlen.varlen_attn has no dropout.
    """
    q_THd, k_THd, v_THd = split_projections(qkv_TNd, rule.heads)
    if rotation is not None:
        # Values are copied, because a view of them would keep all projections until the backward pass.
        q_THd, k_THd, v_THd = rotate(q_THd, rotation), rotate(k_THd, rotation), v_THd.contiguous()
    y_THd, *_ = torch.ops.aten._flash_attention_forward(
        q_THd,
        k_THd,
        v_THd,
        offsets.ends_S1,  # of the queries
        offsets.ends_S1,  # of the keys
        offsets.longest,
        offsets.longest,
        rule.dropout,
        rule.causal,
        False,  # no debug mask
        window_size_left=rule.window,
        window_size_right=0 if rule.causal and rule.window is not None else rule.window,
    )
    return y_THd.flatten(1)


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


# Windows without flash attention. The packed tokens are cut into blocks regardless of sequence boundaries. The keys of
# a block are its own tokens and `window` more on either side, so time and memory grow with the number of tokens, not
# with the square of a length: T * (B + 2 * window) scores per head instead of the sum of length ** 2.
#
#     tokens            0 1 2 3 4 5 6 7 8 9 ...         window 2, blocks of 4
#     queries, block 1          4 5 6 7
#     keys, block 1         2 3 4 5 6 7 8 9             key w is the token 2 places before query w of the block
#
# A mask then excludes keys of other sequences, and those more than `window` places away from the query.


def attend_in_windows(qkv_TNd: Tensor, sequence_T: Tensor, rule: AttentionRule) -> Tensor:
    """Compute (T, N, d) -> (T, D). sequence_T: the number of each token's sequence."""
    window = rule.window
    assert window is not None, "attention has a window here"
    tokens = len(qkv_TNd)
    block = max(2 * window, MIN_BLOCK)
    after = -tokens % block  # zeros that fill the last block

    # Whole blocks of queries, and for each block its keys and values with the window on both sides.
    q_THd, k_THd, v_THd = split_heads(qkv_TNd, rule.heads)
    q_filled = F.pad(q_THd, (0, 0, 0, 0, 0, after))
    q_CHBd = q_filled.unflatten(0, (-1, block)).transpose(1, 2)
    k_CHWd = _overlapping(k_THd, window, after, block)
    v_CHWd = _overlapping(v_THd, window, after, block)

    mask_C1BW = _mask(sequence_T, window, after, block)
    if rule.causal:
        # Key w of a block is the token `window` places before its query w, so query b may see keys up to b + window.
        mask_C1BW = mask_C1BW.tril(window)

    y_CHBd = F.scaled_dot_product_attention(q_CHBd, k_CHWd, v_CHWd, attn_mask=mask_C1BW, dropout_p=rule.dropout)

    # Back from blocks to packed tokens, without the padding of the last block.
    y_THd = y_CHBd.transpose(1, 2).flatten(0, 1)[:tokens]
    return y_THd.flatten(1)


def _overlapping(x_THd: Tensor, window: int, after: int, block: int) -> Tensor:
    """Return (C, H, W, d): for each block the keys or values that it sees, with zeros beyond both ends."""
    padded = F.pad(x_THd, (0, 0, 0, 0, window, window + after))
    x_CHdW = padded.unfold(0, block + 2 * window, block)
    return x_CHdW.transpose(2, 3)


def _mask(sequence_T: Tensor, window: int, after: int, block: int) -> Tensor:
    """Return (C, 1, B, W), True where a query may attend to a key: in the same sequence, and at most `window` away."""
    queries_CB = F.pad(sequence_T, (0, after), value=PADDING).unflatten(0, (-1, block))

    # The sequences of a block's keys, cut as `_overlapping` cuts the keys themselves.
    keys = F.pad(sequence_T, (window, window + after), value=PADDING)
    keys_CW = keys.unfold(0, block + 2 * window, block)
    is_same_sequence = queries_CB[:, :, None] == keys_CW[:, None, :]

    # The distance between a key and a query, by their places in the block, is the same in every block.
    query_B = torch.arange(block, device=sequence_T.device)
    key_W = torch.arange(block + 2 * window, device=sequence_T.device) - window
    is_near_BW = (query_B[:, None] - key_W[None, :]).abs() <= window

    # Padding attends to padding, at least to itself, so that no softmax is empty.
    mask_CBW = is_same_sequence & is_near_BW
    return mask_CBW[:, None]


# The heads of queries, keys and values


def split_heads(qkv_TNd: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values, (T, H, d) each. Keys and values that several heads share are repeated."""
    q_THd, k, v = split_projections(qkv_TNd, heads)
    repeats = heads // k.shape[1]
    if repeats == 1:
        return q_THd, k, v
    return q_THd, k.repeat_interleave(repeats, dim=1), v.repeat_interleave(repeats, dim=1)


def split_projections(qkv_TNd: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values as views. There may be fewer heads of keys and values than of queries."""
    key_heads = (qkv_TNd.shape[1] - heads) // 2
    q_THd, k, v = qkv_TNd.split([heads, key_heads, key_heads], dim=1)
    return q_THd, k, v


# Rotary position embeddings, RoPE (Su et al., arXiv:2104.09864): queries and keys are rotated by their positions, so
# that scores depend on positions only through the distance between two tokens. Of a head's d values, i and i + d/2 form
# a pair, as in GPT-NeoX and transformers; RoFormer itself pairs neighbors. Pair i of a token at position p is rotated
# by the angle p / base ** (2i / d).


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


def rotate_projections(qkv_TNd: Tensor, heads: int, rotation: Rotation) -> Tensor:
    """Return (T, N, d) with the heads of queries and keys rotated."""
    key_heads = (qkv_TNd.shape[1] - heads) // 2
    queries_and_keys, values = qkv_TNd.split([heads + key_heads, key_heads], dim=1)
    return torch.cat([rotate(queries_and_keys, rotation), values], dim=1)


def rotate(x_TNd: Tensor, rotation: Rotation) -> Tensor:
    """Return rotated heads, (T, N, d).

    Computed in float32 whatever the dtype of the input, as in ModernBERT and ESM-2. The result has the input's dtype.
    """
    first_TNh, second_TNh = x_TNd.float().chunk(2, dim=-1)
    cos_T1h, sin_T1h = rotation
    turned_TNd = torch.cat(
        [first_TNh * cos_T1h - second_TNh * sin_T1h, second_TNh * cos_T1h + first_TNh * sin_T1h], dim=-1
    )
    return turned_TNd.to(x_TNd.dtype)
