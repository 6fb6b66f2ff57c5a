"""Which tokens attend to which, and how the heads of queries, keys and values lie side by side.

Shape suffixes: T tokens, N heads of queries, keys and values together, H heads of queries, d head size.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class AttentionRule(NamedTuple):
    """What every kernel must know, besides where the sequences end.

    heads: H, of queries. The other heads of a (T, N, d) tensor are those of keys and of values, half each.
    dropout: the probability of dropping an attention weight.
    window: how many tokens on each side a token attends to; None: all of its sequence.
    causal: a token attends to itself and to those before it.
    """

    heads: int
    dropout: float = 0.0
    window: int | None = None
    causal: bool = False


def split_heads(qkv_TNd: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values, (T, H, d) each: keys and values that several heads share are repeated."""
    q_THd, k, v = split_projections(qkv_TNd, heads)
    repeats = heads // k.shape[1]
    if repeats == 1:
        return q_THd, k, v
    return q_THd, k.repeat_interleave(repeats, dim=1), v.repeat_interleave(repeats, dim=1)


def split_projections(qkv_TNd: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values as views; there may be fewer heads of keys and values than of queries."""
    key_heads = (qkv_TNd.shape[1] - heads) // 2
    q_THd, k, v = qkv_TNd.split([heads, key_heads, key_heads], dim=1)
    return q_THd, k, v
