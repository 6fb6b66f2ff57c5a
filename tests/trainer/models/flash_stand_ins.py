"""Flash attention's operators on a CPU, for tests: with the schemas, checks and results of torch's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor


def kept_weights(seed: Tensor, shape: tuple[int, ...], dropout: float) -> Tensor:
    generator = torch.Generator().manual_seed(int(seed[0]))
    return (torch.rand(shape, generator=generator) >= dropout) / (1 - dropout)


def weights_of(q: Tensor, k: Tensor, span: tuple[int | None, bool]) -> Tensor:
    """(H, tokens, tokens): each token's attention weights, for q and k of (H, tokens, d). span: window, causal."""
    window, causal = span
    places = torch.arange(q.shape[1])
    distances = places[:, None] - places[None, :]
    seen = distances.abs() <= (len(places) if window is None else window)
    if causal:
        seen &= distances >= 0
    scores = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5
    return scores.masked_fill(~seen, float("-inf")).softmax(-1)


def heads_first(tensors: tuple[Tensor, ...], ends: Tensor) -> Iterator[list[Tensor]]:
    """Of each sequence that has tokens, each tensor as (H, tokens, d) in float32, shared keys and values repeated."""
    heads = max(tensor.shape[1] for tensor in tensors)
    bounds = ends.tolist()
    for a, b in pairwise(bounds):
        if b > a:
            parts = [tensor[a:b].float().transpose(0, 1) for tensor in tensors]
            yield [part.repeat_interleave(heads // len(part), dim=0) for part in parts]


class Call(NamedTuple):
    """What both operators compute attention with."""

    ends: Tensor
    dropout: float
    seed: Tensor
    span: tuple[int | None, bool]


def packed_forward(q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
    results = []
    for q_HLd, k_HLd, v_HLd in heads_first((q, k, v), call.ends):
        weights = weights_of(q_HLd, k_HLd, call.span)
        kept = kept_weights(call.seed, tuple(weights.shape), call.dropout)
        results.append((weights * kept @ v_HLd).transpose(0, 1))
    return torch.cat(results)


def packed_backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, call: Call) -> tuple[Tensor, ...]:
    """The gradients of q, k and v, by hand: autograd does not work inside an operator's kernel."""
    results = []
    for g_HLd, q_HLd, k_HLd, v_HLd in heads_first((grad, q, k, v), call.ends):
        weights = weights_of(q_HLd, k_HLd, call.span)
        kept = kept_weights(call.seed, tuple(weights.shape), call.dropout)
        of_weights = g_HLd @ v_HLd.transpose(1, 2) * kept
        of_scores = weights * (of_weights - (of_weights * weights).sum(-1, keepdim=True)) / q_HLd.shape[-1] ** 0.5
        found = (of_scores @ k_HLd, of_scores.transpose(1, 2) @ q_HLd, (weights * kept).transpose(1, 2) @ g_HLd)
        results.append([gradient.transpose(0, 1) for gradient in found])

    # Heads that share keys and values add their gradients.
    whole = [torch.cat(parts) for parts in zip(*results, strict=True)]
    return tuple(found.unflatten(1, (like.shape[1], -1)).sum(2) for found, like in zip(whole, (q, k, v), strict=True))


@contextmanager
def torch_flash() -> Iterator[list[float]]:
    """ATen's two operators. The list collects the forward calls' dropout_p."""
    seen: list[float] = []

    def forward(query, key, value, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, debug, **options):
        assert cum_seq_q.dtype == torch.int32 and not debug
        assert max_q >= int(cum_seq_q.diff().max())
        seen.append(dropout_p)
        seed = torch.randint(2**31, (2,))  # as on a GPU: from the device's generator
        call = Call(cum_seq_q, dropout_p, seed, (options.get("window_size_left"), is_causal))
        out = packed_forward(query, key, value, call)
        sums = torch.zeros(query.shape[1], query.shape[0])
        return out.to(query), sums, seed, torch.zeros(()), torch.zeros(0)

    def backward(
        grad,
        query,
        key,
        value,
        out,
        sums,
        cum_seq_q,
        cum_seq_k,
        max_q,
        max_k,
        dropout_p,
        causal,
        seed,
        *rest,
        **options,
    ):
        call = Call(cum_seq_q, dropout_p, seed, (options.get("window_size_left"), causal))
        return tuple(found.to(query) for found in packed_backward(grad, query, key, value, call))

    library = torch.library.Library("aten", "IMPL")
    library.impl("_flash_attention_forward", forward, "CPU")
    library.impl("_flash_attention_backward", backward, "CPU")
    try:
        yield seen
    finally:
        library._destroy()
