"""Compares the Triton attention kernel with plain float32 attention and torch's flash attention, on this process's GPU.

The plain one draws the kernel's dropout masks again, so that outputs and gradients must agree up to rounding.

Before kernels run, models/attention_triton.py has to be imported, which needs the package triton.

Shape suffixes: T tokens, S1 sequences + 1, N heads of queries, keys and values together, H heads, d head size,
L tokens of one sequence.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from trainer.models.attention import SEED_RANGE, AttentionRule, attend_flash, attend_triton, threshold_of

ALLOWED_ERROR = 2
"""The largest relative error of an output or gradient, in units of the dtype's precision: 0.016 in bf16."""

CHECKED_LENGTHS = (1500, 1, 300, 77, 128, 17)
"""The rows that are compared, none of them longer than the run's. Most end within a block.

Plain attention keeps a row's scores in float32, so longer ones would take gigabytes.
"""

SHORT = 128
"""Rows up to this many tokens use different kernels (attention_triton.ONE_BLOCK)."""

WARM_UP = 3
ROUNDS = 10

MASK_32 = 0xFFFFFFFF


class Rows(NamedTuple):
    """Random projections of packed rows, (T, N, d), with their offsets and the gradient of the outputs, (T, H, d)."""

    qkv_TNd: Tensor
    ends_S1: Tensor
    longest: int
    dout_THd: Tensor


def random_rows(lengths: list[int], longest: int, heads: int, like: Tensor) -> Rows:
    """Return normal random numbers for rows of some lengths. like: (d,), of the dtype and device to use."""
    generator = torch.Generator(like.device).manual_seed(0)
    shape = (sum(lengths), 4 * heads, len(like))
    whole = torch.randn(shape, generator=generator, device=like.device).to(like.dtype)
    ends_S1 = torch.tensor([0, *lengths], device=like.device).cumsum(0).to(torch.int32)
    qkv_TNd, dout_THd = whole.split([3 * heads, heads], dim=1)
    return Rows(qkv_TNd.contiguous(), ends_S1, longest, dout_THd.contiguous())


def compare(
    rules: dict[AttentionRule, int], lengths: list[int], longest: int, like: Tensor
) -> tuple[str | None, float]:
    """Return what is wrong with the kernel, and how many times as fast as torch's flash attention it is.

    rules: with the head size of each; one layer of each is timed. longest: tokens of the longest row that a run may
    have. like: of the dtype and device to use.
    """
    triton, flash = 0.0, 0.0
    for rule, head_size in rules.items():
        for checked in checks_of(rule, longest):
            fault = fault_of_kernel(checked, head_size, like)
            if fault is not None:
                return fault, 0.0
        rows = random_rows(lengths, longest, rule.heads, like.new_empty(head_size))
        times = time_kernels(rows, rule)
        triton, flash = triton + times.triton, flash + times.flash
    return None, flash / triton


# Right


class Check(NamedTuple):
    """A rule, and the length in tokens that no row of a batch exceeds, which decides on the kernels."""

    rule: AttentionRule
    longest: int


def checks_of(rule: AttentionRule, longest: int) -> list[Check]:
    """Return what a run can meet: batches of short rows alone, and within windows evaluations, without dropout."""
    rules = [rule, rule._replace(dropout=0.0)] if rule.window is not None and rule.dropout else [rule]
    limits = [longest, SHORT] if longest > SHORT else [longest]
    return [Check(one, limit) for one in rules for limit in limits]


def fault_of_kernel(check: Check, head_size: int, like: Tensor) -> str | None:
    """Return what is wrong with the Triton kernel's outputs and gradients, None if they are right."""
    rule, longest = check
    lengths = [min(length, longest) for length in CHECKED_LENGTHS]
    rows = random_rows(lengths, longest, rule.heads, like.new_empty(head_size))
    seed = torch.randint(SEED_RANGE, (2,), device=rows.qkv_TNd.device)
    found = with_gradients(lambda qkv: attend_triton(qkv, rows, rule, seed), rows)

    exact = Rows(rows.qkv_TNd.float(), rows.ends_S1, rows.longest, rows.dout_THd.float())
    expected = with_gradients(lambda qkv: attend_plainly(qkv, rows.ends_S1, rule, seed), exact)

    allowed = ALLOWED_ERROR * torch.finfo(rows.qkv_TNd.dtype).eps
    for name in expected:
        error = float((found[name].float() - expected[name]).norm() / expected[name].norm())
        if not error <= allowed:  # also NaN
            return f"its {name} are {error:.1%} off"
    return None


def with_gradients(attention: Callable[[Tensor], Tensor], rows: Rows) -> dict[str, Tensor]:
    """Return the outputs of an attention, (T, H, d), and the gradients of queries, keys and values.

    attention: (T, N, d) -> (T, D).
    """
    qkv_TNd = rows.qkv_TNd.detach().requires_grad_()
    y_THd = attention(qkv_TNd).view_as(rows.dout_THd)
    (gradients,) = torch.autograd.grad(y_THd, qkv_TNd, rows.dout_THd)
    dq, dk, dv = gradients.chunk(3, dim=1)
    return {
        "outputs": y_THd.detach(),
        "gradients of queries": dq,
        "gradients of keys": dk,
        "gradients of values": dv,
    }


def attend_plainly(qkv_TNd: Tensor, ends_S1: Tensor, rule: AttentionRule, seed: Tensor) -> Tensor:
    """Compute (T, N, d) -> (T, D), sequence by sequence, with the Triton kernel's dropout mask."""
    outputs = []
    for start, end in pairwise(ends_S1.tolist()):
        q_HLd, k_HLd, v_HLd = (part.transpose(0, 1) for part in qkv_TNd[start:end].chunk(3, dim=1))
        scores_HLL = q_HLd @ k_HLd.transpose(1, 2) / q_HLd.shape[-1] ** 0.5
        if rule.window is not None:
            place_L = torch.arange(end - start, device=seed.device)
            is_far_LL = (place_L[:, None] - place_L[None, :]).abs() > rule.window
            scores_HLL = scores_HLL.masked_fill(is_far_LL, float("-inf"))
        weights_HLL = scores_HLL.softmax(-1)
        if rule.dropout:
            weights_HLL = weights_HLL * kept_weights(seed, start, end - start, rule) / (1 - rule.dropout)
        outputs.append((weights_HLL @ v_HLd).transpose(0, 1).flatten(1))
    return torch.cat(outputs)


def kept_weights(seed: Tensor, start: int, length: int, rule: AttentionRule) -> Tensor:
    """Return which attention weights of a sequence the Triton kernel keeps, (H, L, L): of each head, query and key.

    start: the number of the sequence's first token. The same integer arithmetic as in attention_triton.py.
    """
    place_L = torch.arange(length, device=seed.device)
    head_H = torch.arange(rule.heads, device=seed.device)
    numbers_HL = (start + place_L)[None, :] * rule.heads + head_H[:, None]
    query_keys_HL = _mixed(_mixed(numbers_HL ^ seed[0]) ^ seed[1])

    drawn_HLL = query_keys_HL[:, :, None] ^ _mixed(place_L)[None, None, :]
    drawn_HLL = drawn_HLL * 0x9E3779B1 & MASK_32
    drawn_HLL = drawn_HLL ^ (drawn_HLL >> 15)
    drawn_HLL = drawn_HLL * 0x85EBCA77 & MASK_32
    return drawn_HLL >= threshold_of(rule.dropout)


def _mixed(numbers: Tensor) -> Tensor:
    """Return MurmurHash3's finalizer of numbers in [0, 2**32), in int64, whose overflow keeps the lower bits."""
    numbers = (numbers ^ (numbers >> 16)) * 0x85EBCA6B & MASK_32
    numbers = (numbers ^ (numbers >> 13)) * 0xC2B2AE35 & MASK_32
    return numbers ^ (numbers >> 16)


# Faster


class Milliseconds(NamedTuple):
    """Of one call forward and backward: the median of ROUNDS."""

    triton: float
    flash: float


def time_kernels(rows: Rows, rule: AttentionRule) -> Milliseconds:
    """Measure both kernels in turns. Needs a GPU."""
    seed = torch.randint(SEED_RANGE, (2,), device=rows.qkv_TNd.device)
    kernels: list[Callable[[Tensor], Tensor]] = [
        lambda qkv: attend_triton(qkv, rows, rule, seed),
        lambda qkv: attend_flash(qkv, rows, rule),
    ]
    events: list[list[tuple[torch.cuda.Event, torch.cuda.Event]]] = [[], []]
    for _ in range(WARM_UP + ROUNDS):
        for kernel, of_kernel in zip(kernels, events, strict=True):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            with_gradients(kernel, rows)
            end.record()
            of_kernel.append((start, end))

    torch.cuda.synchronize()
    medians = [statistics.median(a.elapsed_time(b) for a, b in of_kernel[WARM_UP:]) for of_kernel in events]
    return Milliseconds(*medians)
