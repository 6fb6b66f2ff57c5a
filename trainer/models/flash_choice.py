"""Picks the fastest flash attention that is installed and gives correct results on this GPU.

Shape suffixes: T tokens, N heads of queries, keys and values together, d head size, D hidden size. S1: sequences + 1.
"""

from __future__ import annotations

import importlib
import importlib.util
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from trainer.models.attention_rule import AttentionRule, split_heads
from trainer.models.flash import (
    FLASH_2_MODULE,
    FLASH_3_MODULE,
    AttendPacked,
    attend_with_flash_2,
    attend_with_flash_3,
    attend_with_torch,
    import_flash_2,
)

HOPPER = (9, 0)
"""Compute capability of H100 and H200."""

CHECKED_LENGTHS = (70, 1, 33, 0)
"""Lengths of the sequences that a kernel is checked on: longer than a tile of 64, a single token, and an empty sequence
as in padding."""

CHECKED_WINDOW = 8

MAX_RELATIVE_ERROR = 0.02
"""The largest error accepted in a kernel's outputs and gradients: about five times the rounding of bfloat16."""


class FlashKernel(NamedTuple):
    """An implementation of flash attention.

    name: for the log. attend: the function. faults: what was wrong with each kernel that was tried before this one.
    """

    name: str
    attend: AttendPacked
    faults: tuple[str, ...] = ()


class FlashUse(NamedTuple):
    """What a flash attention kernel will be used for.

    rules: one for each kind of layer. projected_heads: N. head_size: d. like: a tensor on the device and in the 16-bit
    dtype that the model computes with.
    """

    rules: tuple[AttentionRule, ...]
    projected_heads: int
    head_size: int
    like: Tensor


def choose_flash(use: FlashUse) -> FlashKernel:
    """Return the fastest flash attention that is installed and works on this device.

    Each package is run on a few small sequences first, because one that was built for another version of torch or for
    another GPU fails only when it is called. If none works, torch's own kernel is used.
    """
    dropout = max(rule.dropout for rule in use.rules)
    faults = []
    for kernel in installed_kernels(dropout, torch.cuda.get_device_capability(use.like.device)):
        fault = fault_of(kernel, use)
        if fault is None:
            return kernel._replace(faults=tuple(faults))
        faults.append(f"{kernel.name}: {fault}")
    return FlashKernel("FlashAttention-2 of torch", attend_with_torch, tuple(faults))


def installed_kernels(dropout: float, capability: tuple[int, int]) -> list[FlashKernel]:
    """Return the kernels of installed packages that support this GPU and this dropout, fastest first."""
    kernels = []
    if capability == HOPPER and not dropout and _is_installed(FLASH_3_MODULE):
        kernels.append(FlashKernel("FlashAttention-3 of the package flash_attn_3", attend_with_flash_3))
    if _is_installed(FLASH_2_MODULE):
        kernels.append(FlashKernel("FlashAttention-2 of the package flash_attn", attend_with_flash_2))
    return kernels


def _is_installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def fault_of(kernel: FlashKernel, use: FlashUse) -> str | None:
    """Return in one line why a kernel cannot be used, or None if its results agree with plain attention."""
    try:
        if kernel.attend is attend_with_flash_3:
            importlib.import_module(FLASH_3_MODULE)  # defines its operators
        else:
            import_flash_2()

        # The check must not advance the random number generators that training uses.
        device = use.like.device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            difference = max(difference_from_plain(kernel.attend, use, rule) for rule in use.rules)
    except Exception as error:
        # A package can fail in many ways: at its import, a missing symbol, a changed argument, a kernel launch.
        first_line = str(error).split("\n", 1)[0]
        return f"{type(error).__name__}: {first_line}"

    if not difference <= MAX_RELATIVE_ERROR:  # NaN is a fault too
        return f"differs from plain attention by {difference:.1%}"
    return None


def difference_from_plain(attend: AttendPacked, use: FlashUse, rule: AttentionRule) -> float:
    """Return the relative error (of the norm) of a kernel's outputs and gradients against plain float32 attention.

    Dropout is disabled, and windows are cut to at most CHECKED_WINDOW, so that they exclude some tokens.
    """
    device = use.like.device
    ends = [0, *accumulate(CHECKED_LENGTHS)]
    ends_S1 = torch.tensor(ends, dtype=torch.int32, device=device)
    window = None if rule.window is None else min(rule.window, CHECKED_WINDOW)
    rule = rule._replace(dropout=0.0, window=window)

    generator = torch.Generator(device).manual_seed(0)
    shape = (ends[-1], use.projected_heads, use.head_size)
    qkv_TNd = torch.randn(shape, generator=generator, device=device).to(use.like.dtype)
    weights_TD = torch.randn(ends[-1], rule.heads * use.head_size, generator=generator, device=device)

    def results(function: AttendPacked, dtype: torch.dtype) -> Tensor:
        given = qkv_TNd.to(dtype).requires_grad_()
        y_TD = function(given, ends_S1, max(CHECKED_LENGTHS), rule)
        (gradient,) = torch.autograd.grad(y_TD, given, weights_TD.to(dtype))
        return torch.cat([y_TD.detach().flatten(), gradient.flatten()]).float()

    with torch.enable_grad():
        found = results(attend, use.like.dtype)
        expected = results(_attend_plainly, torch.float32)
    return float((found - expected).norm() / expected.norm())


def _attend_plainly(qkv_TNd: Tensor, ends_S1: Tensor, _longest: int, rule: AttentionRule) -> Tensor:
    """Compute (T, N, d) -> (T, D) for sequences of CHECKED_LENGTHS with torch's SDPA and an explicit mask."""
    outputs = []
    for qkv in qkv_TNd.split([length for length in CHECKED_LENGTHS if length > 0]):
        q, k, v = (part.transpose(0, 1) for part in split_heads(qkv, rule.heads))
        places = torch.arange(len(qkv), device=qkv.device)
        distances = places[:, None] - places[None, :]
        mask = distances.abs() <= (len(qkv) if rule.window is None else rule.window)
        if rule.causal:
            mask &= distances >= 0
        outputs.append(F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(0, 1).flatten(1))
    return torch.cat(outputs)
