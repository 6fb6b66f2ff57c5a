"""Attention over packed rows as Triton kernels: with dropout, and within windows.

torch's FlashAttention-2 sums dq with atomics, returns three gradients that have to be joined, and takes long for a
window of few tokens. Here:

    forward    one program for each block of queries and head, over all keys that these may see. Saves the log-sum-exp.
    backward   no atomics, so gradients are equal bit by bit in each call. They are written into the one tensor of the
               projections. Sequences of one block take one program for each head. Longer ones take two kernels: one for
               dq, and one for dk and dv, which keeps a block's keys and values on the chip.

Dropout masks are not stored but drawn again. Whether a weight is dropped is a function of the seed, the query's number
(token * H + head) and the key's position in its sequence (see `_is_kept`), so that neither the blocks nor the pass
matter. The formulas are those of FlashAttention-2 (Dao, arXiv:2307.08691), with scores in base 2.

Import this module only where the package triton is installed: torch's builds for CUDA come with it.

Shape suffixes: T tokens, S1 sequences + 1, N heads of queries, keys and values together (3 H), H heads, d head size.
In kernels: M queries, N keys of a block.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton  # type: ignore[import-not-found]
import triton.language as tl  # type: ignore[import-not-found]
from torch import Tensor

from trainer.models import attention
from trainer.models.attention import threshold_of

ONE_BLOCK = 128
"""The longest sequence, in tokens, whose gradients one program computes."""

# Mixing constants of 32 bits: MurmurHash3's finalizer (Appleby), and the primes of xxHash (Collet).
MURMUR_1 = tl.constexpr(0x85EBCA6B)
MURMUR_2 = tl.constexpr(0xC2B2AE35)
PRIME_1 = tl.constexpr(0x9E3779B1)
PRIME_2 = tl.constexpr(0x85EBCA77)

LN_2 = tl.constexpr(math.log(2))

NO_WINDOW = tl.constexpr(attention.NO_WINDOW)


# Dropout masks


@triton.jit
def _mixed(numbers):
    """Return MurmurHash3's finalizer of uint32 numbers: different ones for different numbers."""
    numbers ^= numbers >> 16
    numbers *= MURMUR_1
    numbers ^= numbers >> 13
    numbers *= MURMUR_2
    return numbers ^ (numbers >> 16)


@triton.jit
def _query_keys(seed, numbers):
    """Return a random uint32 for each query. seed: a pointer to two int64. numbers: token * H + head."""
    first = tl.load(seed).to(tl.uint32)
    second = tl.load(seed + 1).to(tl.uint32)
    return _mixed(_mixed(numbers.to(tl.uint32) ^ first) ^ second)


@triton.jit
def _is_kept(query_keys, key_places, THRESHOLD: tl.constexpr):
    """Return whether to keep attention weights. key_places: of keys in their sequence, to broadcast with query_keys.

    Both are mixed already, so that two multiplications are enough for the highest bits, which a comparison looks at.
    """
    drawn = query_keys ^ _mixed(key_places.to(tl.uint32))
    drawn *= PRIME_1
    drawn ^= drawn >> 15
    drawn *= PRIME_2
    return drawn >= tl.full((), THRESHOLD, tl.uint32)


# Kernels. All pointers are to the first element of contiguous tensors: qkv and dqkv (T, N, d), out and dout (T, H, d),
# sums and deltas (H, T) in float32. SCALE turns products into scores in base 2. A WINDOW of NO_WINDOW is none, and a
# THRESHOLD of 0 no dropout.


@triton.jit
def _first_seen(first, BLOCK: tl.constexpr, WINDOW: tl.constexpr):
    """Return where the first block of BLOCK tokens begins that tokens from `first` on see."""
    return 0 if WINDOW == NO_WINDOW else tl.maximum(first - WINDOW, 0) // BLOCK * BLOCK


@triton.jit
def _last_seen(end, length, WINDOW: tl.constexpr):
    """Return where the tokens end that those before `end` see."""
    return length if WINDOW == NO_WINDOW else tl.minimum(end + WINDOW, length)


@triton.jit
def _is_near(rows, columns, WINDOW: tl.constexpr):
    """Return which of two blocks of places, (R, 1) and (1, C), see each other, (R, C)."""
    distances = rows - columns
    return (distances <= WINDOW) & (distances >= -WINDOW)


@triton.jit
def _packed_attention_forward(
    qkv, ends, seed, out, sums, tokens, blocks, H: tl.constexpr, D: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    SCALE: tl.constexpr, THRESHOLD: tl.constexpr, RESCALE: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0) // blocks
    first = tl.program_id(0) % blocks * M
    head = tl.program_id(1)
    start = tl.load(ends + sequence)
    length = tl.load(ends + sequence + 1) - start
    if first >= length:
        return

    m = first + tl.arange(0, M)
    n = tl.arange(0, N)
    d = tl.arange(0, D)
    is_query = m < length
    base = qkv + start.to(tl.int64) * (3 * H * D) + head * D
    q = tl.load(base + m[:, None] * (3 * H * D) + d[None, :], mask=is_query[:, None], other=0.0)
    if THRESHOLD > 0:
        query_keys = _query_keys(seed, (start + m) * H + head)

    highest = tl.full((M,), float("-inf"), tl.float32)
    total = tl.zeros((M,), tl.float32)
    y = tl.zeros((M, D), tl.float32)
    for begin in range(_first_seen(first, N, WINDOW), _last_seen(first + M, length, WINDOW), N):
        places = begin + n
        is_key = places < length
        at = base + H * D + places[:, None] * (3 * H * D) + d[None, :]
        k = tl.load(at, mask=is_key[:, None], other=0.0)
        v = tl.load(at + H * D, mask=is_key[:, None], other=0.0)

        # The softmax of the keys so far. A query that has seen none has a `higher` of -inf, which is not subtracted.
        is_seen = is_key[None, :]
        if WINDOW != NO_WINDOW:
            is_seen = is_seen & _is_near(m[:, None], places[None, :], WINDOW)
        scores = tl.where(is_seen, tl.dot(q, tl.trans(k)) * SCALE, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, 1))
        shift = higher
        if WINDOW != NO_WINDOW:
            shift = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp2(scores - shift[:, None])
        shrink = tl.exp2(highest - shift)
        total = total * shrink + tl.sum(weights, 1)
        highest = higher

        if THRESHOLD > 0:
            is_kept = _is_kept(query_keys[:, None], places[None, :], THRESHOLD)  # pyrefly: ignore[unbound-name]
            weights = tl.where(is_kept, weights, 0.0)
        y = tl.dot(weights.to(v.dtype), v, y * shrink[:, None])

    y = y * (RESCALE / total)[:, None]
    at = out + start.to(tl.int64) * (H * D) + head * D + m[:, None] * (H * D) + d[None, :]
    tl.store(at, y.to(out.dtype.element_ty), mask=is_query[:, None])
    tl.store(sums + head * tokens + start + m, highest + tl.log2(total), mask=is_query)


@triton.jit
def _packed_attention_backward_q(
    qkv, ends, seed, out, sums, dout, dqkv, deltas, tokens, blocks, H: tl.constexpr, D: tl.constexpr, M: tl.constexpr,
    N: tl.constexpr, SCALE: tl.constexpr, THRESHOLD: tl.constexpr, RESCALE: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """Write dq, and deltas: the sum of dout * out of each query, which `_packed_attention_backward_kv` needs."""
    sequence = tl.program_id(0) // blocks
    first = tl.program_id(0) % blocks * M
    head = tl.program_id(1)
    start = tl.load(ends + sequence)
    length = tl.load(ends + sequence + 1) - start
    if first >= length:
        return

    m = first + tl.arange(0, M)
    n = tl.arange(0, N)
    d = tl.arange(0, D)
    is_query = m < length
    of_sequence = start.to(tl.int64) * (3 * H * D) + head * D
    q = tl.load(qkv + of_sequence + m[:, None] * (3 * H * D) + d[None, :], mask=is_query[:, None], other=0.0)
    in_out = start.to(tl.int64) * (H * D) + head * D + m[:, None] * (H * D) + d[None, :]
    g = tl.load(dout + in_out, mask=is_query[:, None], other=0.0)
    y = tl.load(out + in_out, mask=is_query[:, None], other=0.0)
    delta = tl.sum(g.to(tl.float32) * y.to(tl.float32), 1)
    tl.store(deltas + head * tokens + start + m, delta, mask=is_query)
    log_sum = tl.load(sums + head * tokens + start + m, mask=is_query, other=float("inf"))
    if THRESHOLD > 0:
        query_keys = _query_keys(seed, (start + m) * H + head)

    dq = tl.zeros((M, D), tl.float32)
    for begin in range(_first_seen(first, N, WINDOW), _last_seen(first + M, length, WINDOW), N):
        places = begin + n
        is_key = places < length
        of_keys = qkv + of_sequence + H * D + places[:, None] * (3 * H * D) + d[None, :]
        k = tl.load(of_keys, mask=is_key[:, None], other=0.0)
        v = tl.load(of_keys + H * D, mask=is_key[:, None], other=0.0)

        is_seen = is_key[None, :]
        if WINDOW != NO_WINDOW:
            is_seen = is_seen & _is_near(m[:, None], places[None, :], WINDOW)
        scores = tl.where(is_seen, tl.dot(q, tl.trans(k)) * SCALE, float("-inf"))
        weights = tl.exp2(scores - log_sum[:, None])
        dweights = tl.dot(g, tl.trans(v)) * RESCALE
        if THRESHOLD > 0:
            is_kept = _is_kept(query_keys[:, None], places[None, :], THRESHOLD)  # pyrefly: ignore[unbound-name]
            dweights = tl.where(is_kept, dweights, 0.0)
        dscores = weights * (dweights - delta[:, None])
        dq = tl.dot(dscores.to(k.dtype), k, dq)

    of_queries = dqkv + of_sequence + m[:, None] * (3 * H * D) + d[None, :]
    tl.store(of_queries, (dq * (SCALE * LN_2)).to(dqkv.dtype.element_ty), mask=is_query[:, None])


@triton.jit
def _packed_attention_backward_kv(
    qkv, ends, seed, out, sums, dout, dqkv, deltas, tokens, blocks, H: tl.constexpr, D: tl.constexpr, M: tl.constexpr,
    N: tl.constexpr, SCALE: tl.constexpr, THRESHOLD: tl.constexpr, RESCALE: tl.constexpr, WINDOW: tl.constexpr,
    WITH_DQ: tl.constexpr,
):  # fmt: skip
    """Write dk and dv. WITH_DQ: no sequence has more than N tokens, so write dq as well, and compute the deltas.

    Scores are computed transposed, (N, M), so that the products of dk and dv need no transposed accumulator.
    """
    sequence = tl.program_id(0) // blocks
    first = tl.program_id(0) % blocks * N
    head = tl.program_id(1)
    start = tl.load(ends + sequence)
    length = tl.load(ends + sequence + 1) - start
    if first >= length:
        return

    places = first + tl.arange(0, N)
    d = tl.arange(0, D)
    is_key = places < length
    of_sequence = start.to(tl.int64) * (3 * H * D) + head * D
    of_keys = of_sequence + H * D + places[:, None] * (3 * H * D) + d[None, :]
    k = tl.load(qkv + of_keys, mask=is_key[:, None], other=0.0)
    v = tl.load(qkv + of_keys + H * D, mask=is_key[:, None], other=0.0)

    dk = tl.zeros((N, D), tl.float32)
    dv = tl.zeros((N, D), tl.float32)
    for begin in range(_first_seen(first, M, WINDOW), _last_seen(first + N, length, WINDOW), M):
        m = begin + tl.arange(0, M)
        is_query = m < length
        of_queries = of_sequence + m[:, None] * (3 * H * D) + d[None, :]
        in_out = start.to(tl.int64) * (H * D) + head * D + m[:, None] * (H * D) + d[None, :]
        q = tl.load(qkv + of_queries, mask=is_query[:, None], other=0.0)
        g = tl.load(dout + in_out, mask=is_query[:, None], other=0.0)

        # A log-sum-exp of infinity makes the weights of missing queries 0; missing keys have weights of 0 for dq.
        log_sum = tl.load(sums + head * tokens + start + m, mask=is_query, other=float("inf"))
        is_seen = is_key[:, None]
        if WINDOW != NO_WINDOW:
            is_seen = is_seen & _is_near(places[:, None], m[None, :], WINDOW)
        scores = tl.where(is_seen, tl.dot(k, tl.trans(q)) * SCALE, float("-inf"))
        weights = tl.exp2(scores - log_sum[None, :])
        kept = weights
        if THRESHOLD > 0:
            query_keys = _query_keys(seed, (start + m) * H + head)
            is_kept = _is_kept(query_keys[None, :], places[:, None], THRESHOLD)
            kept = tl.where(is_kept, weights, 0.0)
        dv = tl.dot(kept.to(g.dtype), g, dv)

        if WITH_DQ:
            y = tl.load(out + in_out, mask=is_query[:, None], other=0.0)
            delta = tl.sum(g.to(tl.float32) * y.to(tl.float32), 1)
        else:
            delta = tl.load(deltas + head * tokens + start + m, mask=is_query, other=0.0)
        dweights = tl.dot(v, tl.trans(g)) * RESCALE
        if THRESHOLD > 0:
            dweights = tl.where(is_kept, dweights, 0.0)  # pyrefly: ignore[unbound-name]
        dscores = (weights * (dweights - delta[None, :])).to(q.dtype)
        dk = tl.dot(dscores, q, dk)
        if WITH_DQ:
            dq = tl.dot(tl.trans(dscores), k) * (SCALE * LN_2)
            tl.store(dqkv + of_queries, dq.to(dqkv.dtype.element_ty), mask=is_query[:, None])

    dtype = dqkv.dtype.element_ty
    tl.store(dqkv + of_keys, (dk * (SCALE * LN_2)).to(dtype), mask=is_key[:, None])
    tl.store(dqkv + of_keys + H * D, (dv * RESCALE).to(dtype), mask=is_key[:, None])


# Launches


class Blocks(NamedTuple):
    """How a kernel runs: tokens of a block of queries and of keys, warps, stages, and registers of a thread.

    stages: how many blocks are loaded ahead, plus one. registers: None for any number.
    Blocks decide how sums are rounded, so they are fixed and not tuned on the card. Those for heads of 64 were the
    fastest of eight to twelve on an H200.
    """

    queries: int
    keys: int
    warps: int
    stages: int = 2
    registers: int | None = None

    def options(self) -> dict[str, Any]:
        """Return the keyword arguments of a launch that are not the kernel's data."""
        limit = {} if self.registers is None else {"maxnreg": self.registers}
        return {"M": self.queries, "N": self.keys, "num_warps": self.warps, "num_stages": self.stages, **limit}


def forward_blocks(head_size: int) -> Blocks:
    return Blocks(64, 64, 4, stages=3 if head_size <= 64 else 2)


def query_blocks(head_size: int) -> Blocks:
    return Blocks(64, 64, 4, stages=3) if head_size <= 64 else Blocks(64, 64, 8)


def key_blocks(longest: int, head_size: int) -> Blocks:
    """Return the blocks of `_packed_attention_backward_kv`. Up to ONE_BLOCK tokens, one block has all keys.

    With one block of more than 64 keys and a head size of 64, two programs run on a multiprocessor of a Hopper GPU at
    once, so that one of them computes while the other one loads.
    """
    if longest <= ONE_BLOCK // 2:
        return Blocks(32, 64, 4)
    if longest <= ONE_BLOCK:
        return Blocks(32, 128, 8, stages=1, registers=128) if head_size <= 64 else Blocks(32, 128, 8)
    return Blocks(32, 64, 4 if head_size <= 64 else 8)


def constants_of(heads: int, head_size: int, dropout: float, window: int) -> dict[str, Any]:
    return {
        "H": heads,
        "D": head_size,
        "SCALE": math.log2(math.e) / math.sqrt(head_size),
        "THRESHOLD": threshold_of(dropout),
        "RESCALE": 1.0 / (1.0 - dropout),
        "WINDOW": window,
    }


@torch.library.custom_op("clozeline::attend_packed", mutates_args=())
def attend_packed(
    qkv_TNd: Tensor, ends_S1: Tensor, seed: Tensor, longest: int, dropout: float, window: int
) -> tuple[Tensor, Tensor]:
    """Return each head's output, (T, H, d), and the log-sum-exp of its scores in base 2, (H, T) in float32.

    qkv_TNd: 16-bit, contiguous heads of queries, then keys, then values. ends_S1: int32: 0, then where each sequence
    ends; the last one ends at T, and none has more than `longest` tokens. seed: two int64 in [0, 2**32), which are read
    only with dropout. window: how many tokens on each side a token sees, or NO_WINDOW.
    """
    qkv_TNd = qkv_TNd.contiguous()
    tokens, heads, head_size = len(qkv_TNd), qkv_TNd.shape[1] // 3, qkv_TNd.shape[2]
    out_THd = qkv_TNd.new_empty(tokens, heads, head_size)
    sums_HT = qkv_TNd.new_empty(heads, tokens, dtype=torch.float32)

    size = forward_blocks(head_size)
    blocks = triton.cdiv(longest, size.queries)
    inputs = (qkv_TNd, ends_S1, seed, out_THd, sums_HT, tokens, blocks)
    options = constants_of(heads, head_size, dropout, window) | size.options()
    _launch(_packed_attention_forward, (blocks * (len(ends_S1) - 1), heads), inputs, options)
    return out_THd, sums_HT


@torch.library.custom_op("clozeline::attend_packed_backward", mutates_args=())
def attend_packed_backward(dout_THd: Tensor, saved: list[Tensor], longest: int, dropout: float, window: int) -> Tensor:
    """Return the gradient of qkv, (T, N, d). saved: qkv, out, log-sum-exp, ends and seed of the forward pass."""
    qkv_TNd, out_THd, sums_HT, ends_S1, seed = saved
    qkv_TNd, dout_THd = qkv_TNd.contiguous(), dout_THd.contiguous()
    tokens, heads, head_size = dout_THd.shape
    dqkv_TNd = torch.empty_like(qkv_TNd)
    deltas_HT = torch.empty_like(sums_HT)

    constants = constants_of(heads, head_size, dropout, window)
    sequences = len(ends_S1) - 1
    inputs = (qkv_TNd, ends_S1, seed, out_THd, sums_HT, dout_THd, dqkv_TNd, deltas_HT, tokens)
    if longest > ONE_BLOCK:
        size = query_blocks(head_size)
        blocks = triton.cdiv(longest, size.queries)
        options = constants | size.options()
        _launch(_packed_attention_backward_q, (blocks * sequences, heads), (*inputs, blocks), options)

    size = key_blocks(longest, head_size)
    blocks = triton.cdiv(longest, size.keys)
    options = constants | size.options() | {"WITH_DQ": longest <= ONE_BLOCK}
    _launch(_packed_attention_backward_kv, (blocks * sequences, heads), (*inputs, blocks), options)
    return dqkv_TNd


def _launch(kernel: Any, grid: tuple[int, int], inputs: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Start a kernel. grid: its programs, as (blocks of all sequences, heads)."""
    kernel[grid](*inputs, **options)


# What torch.compile and autograd need to know of the operators


@attend_packed.register_fake
def _(
    qkv_TNd: Tensor, ends_S1: Tensor, seed: Tensor, longest: int, dropout: float, window: int
) -> tuple[Tensor, Tensor]:
    tokens, heads, head_size = len(qkv_TNd), qkv_TNd.shape[1] // 3, qkv_TNd.shape[2]
    return qkv_TNd.new_empty(tokens, heads, head_size), qkv_TNd.new_empty(heads, tokens, dtype=torch.float32)


@attend_packed_backward.register_fake
def _(dout_THd: Tensor, saved: list[Tensor], longest: int, dropout: float, window: int) -> Tensor:
    return torch.empty_like(saved[0], memory_format=torch.contiguous_format)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    qkv_TNd, ends_S1, seed, *ctx.rule = inputs
    ctx.save_for_backward(qkv_TNd, *output, ends_S1, seed)


def _backward(ctx: Any, dout_THd: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    dqkv_TNd = attend_packed_backward(dout_THd, list(ctx.saved_tensors), *ctx.rule)
    return dqkv_TNd, None, None, None, None, None


attend_packed.register_autograd(_backward, setup_context=_save)
