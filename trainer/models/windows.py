"""Windowed attention for devices without flash attention: each token attends to tokens at most `window` places away.

The packed tokens are cut into blocks regardless of sequence boundaries. The keys of a block are its own tokens and
`window` more on either side, so time and memory grow with the number of tokens, not with the square of a length:

    T tokens * (block + 2 * window) scores per head instead of the sum of length ** 2

    tokens            0 1 2 3 4 5 6 7 8 9 ...         window 2, blocks of 4
    queries, block 1          4 5 6 7
    keys, block 1         2 3 4 5 6 7 8 9             key w is the token 2 places before query w of the block

A mask then excludes keys of other sequences, and those more than `window` places away from the query.

Shape suffixes: T tokens, N heads of queries, keys and values together, H heads of queries, d head size, D = H * d,
C blocks, B tokens of a block, W = B + 2 * window keys that a block sees.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from trainer.models.attention_rule import AttentionRule, split_heads

MIN_BLOCK = 32
"""The minimum number of tokens in a block. A block has 2 * window tokens if that is more.

In blocks of 2 * window, half of the computed scores are needed. Shorter blocks would compute fewer unneeded scores, but
in smaller, less efficient matrix products.
"""

PADDING = -1
"""The sequence number of the zeros before the first token and after the last one."""


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
