"""Which tokens attend to which, and how the heads of queries, keys and values lie side by side.

Shape suffixes: T tokens, N heads of queries, keys and values together, H heads of queries, d head size.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class AttentionRule(NamedTuple):
    """What every attention kernel needs to know, besides where the sequences end.

    heads: H, the heads of queries. Of the other heads of a (T, N, d) tensor, half are keys and half are values.
    dropout: the probability of dropping an attention weight.
    window: how many tokens on each side a token attends to; None: all of its sequence.
    causal: a token attends only to itself and to earlier tokens.
    """

    heads: int
    dropout: float = 0.0
    window: int | None = None
    causal: bool = False


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
