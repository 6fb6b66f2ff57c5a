"""Flash attention on packed queries, keys and values: torch's kernels, or faster ones where a package has them.

    FlashAttention-3    the package flash_attn_3, module flash_attn_interface (github.com/Dao-AILab/flash-attention,
                        hopper/). For H100 and H200, without dropout of attention weights, which it does not have.
                        On H100 about 1.5 times as fast as FlashAttention-2 (Shah et al., arXiv:2407.08608).
    FlashAttention-2    the package flash_attn, from version 2.1 on.
    torch               FlashAttention-2 as it is built into torch (`aten::_flash_attention_forward`).

The packages write the gradients of queries, keys and values into one (T, 3, H, d) tensor, which the backward pass of
the matrix product before them reads as it is. torch's operator allocates three tensors, and a copy stacks them.

`choose_flash` picks the first that is installed and that computes on this GPU what plain attention computes.

Shape suffixes: T tokens, S sequences, H heads, d head size, D = H * d. S1 means S + 1.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

AttendPacked = Callable[[Tensor, Tensor, int, float], Tensor]
"""Computes (T, 3, H, d) -> (T, D), in this order from:

qkv_T3Hd: queries, keys and values.
ends_S1: (S + 1,) int32: 0, then where each sequence ends.
longest: the number of tokens in the longest sequence, or more.
dropout: the probability of dropping an attention weight.
"""

HOPPER = (9, 0)
"""Compute capability of H100 and H200."""

FLASH_3_MODULE = "flash_attn_interface"
FLASH_2_MODULE = "flash_attn"

CHECKED_LENGTHS = (70, 1, 33, 0)
"""Lengths of the sequences that a kernel is checked on: more than a tile of 64, one token, and none, as in padding."""

MAX_RELATIVE_ERROR = 0.02
"""Of a kernel's outputs and gradients in 16 bits: about five times what bfloat16 rounds them by."""


class FlashKernel(NamedTuple):
    """A flash attention.

    name: as it is logged. attend: the function. faults: what was wrong with each kernel that was tried before it.
    """

    name: str
    attend: AttendPacked
    faults: tuple[str, ...] = ()


# torch's own kernels


def attend_with_torch(qkv_T3Hd: Tensor, ends_S1: Tensor, longest: int, dropout: float) -> Tensor:
    """Compute (T, 3, H, d) -> (T, D) in the flash attention of torch.

    This calls the ATen operator because torch.nn.attention.varlen.varlen_attn has no dropout. The dropout mask comes
    from the device's generator, so recomputed layers draw the same one again.
    """
    q_THd, k_THd, v_THd = qkv_T3Hd.unbind(1)
    y_THd, *_ = torch.ops.aten._flash_attention_forward(
        q_THd,
        k_THd,
        v_THd,
        ends_S1,  # of the queries
        ends_S1,  # of the keys
        longest,
        longest,
        dropout,
        False,  # not causal
        False,  # no debug mask
    )
    return y_THd.flatten(1)


# The package flash_attn


def attend_with_flash_2(qkv_T3Hd: Tensor, ends_S1: Tensor, longest: int, dropout: float) -> Tensor:
    """Compute (T, 3, H, d) -> (T, D) in the package flash_attn, which has an operator for packed tensors."""
    flash_attn: Any = importlib.import_module(FLASH_2_MODULE)
    y_THd = flash_attn.flash_attn_varlen_qkvpacked_func(
        qkv_T3Hd,
        ends_S1,
        longest,
        dropout_p=dropout,
        deterministic=torch.are_deterministic_algorithms_enabled(),
    )
    return y_THd.flatten(1)


# The package flash_attn_3. Its Python functions have none for packed tensors of sequences, so its two operators are
# called here, by the names of their arguments in hopper/flash_api.cpp.


@torch.library.custom_op("clozeline::flash_3", mutates_args=())
def flash_3(qkv_T3Hd: Tensor, ends_S1: Tensor, longest: int) -> tuple[Tensor, Tensor]:
    """Return the heads' outputs, (T, H, d), and the logarithms of the softmax's sums, (H, T) in float32."""
    q_THd, k_THd, v_THd = qkv_T3Hd.unbind(1)
    y_THd, sums_HT, *_ = torch.ops.flash_attn_3.fwd(
        q_THd,
        k_THd,
        v_THd,
        cu_seqlens_q=ends_S1,
        cu_seqlens_k=ends_S1,
        max_seqlen_q=longest,
        max_seqlen_k=longest,
        num_splits=1,  # splitting the keys helps only where there are few queries
    )
    return y_THd, sums_HT


@flash_3.register_fake
def _(qkv_T3Hd: Tensor, ends_S1: Tensor, longest: int) -> tuple[Tensor, Tensor]:
    tokens, _, heads, head_size = qkv_T3Hd.shape
    y_THd = qkv_T3Hd.new_empty(tokens, heads, head_size)
    return y_THd, qkv_T3Hd.new_empty(heads, tokens, dtype=torch.float32)


@torch.library.custom_op("clozeline::flash_3_backward", mutates_args=())
def flash_3_backward(
    grad_THd: Tensor, qkv_T3Hd: Tensor, y_THd: Tensor, sums_HT: Tensor, ends_S1: Tensor, longest: int
) -> Tensor:
    """Return the gradient of `qkv_T3Hd`, which the kernel writes in place: nothing is copied."""
    grad_T3Hd = torch.empty(qkv_T3Hd.shape, dtype=qkv_T3Hd.dtype, device=qkv_T3Hd.device)
    q_THd, k_THd, v_THd = qkv_T3Hd.unbind(1)
    grad_q_THd, grad_k_THd, grad_v_THd = grad_T3Hd.unbind(1)

    torch.ops.flash_attn_3.bwd(
        grad_THd.contiguous(),
        q_THd,
        k_THd,
        v_THd,
        y_THd,
        sums_HT,
        dq=grad_q_THd,
        dk=grad_k_THd,
        dv=grad_v_THd,
        cu_seqlens_q=ends_S1,
        cu_seqlens_k=ends_S1,
        max_seqlen_q=longest,
        max_seqlen_k=longest,
        deterministic=torch.are_deterministic_algorithms_enabled(),
    )
    return grad_T3Hd


@flash_3_backward.register_fake
def _(grad_THd: Tensor, qkv_T3Hd: Tensor, y_THd: Tensor, sums_HT: Tensor, ends_S1: Tensor, longest: int) -> Tensor:
    return torch.empty(qkv_T3Hd.shape, dtype=qkv_T3Hd.dtype, device=qkv_T3Hd.device)


def _keep_for_backward(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: tuple[Tensor, Tensor]) -> None:
    qkv_T3Hd, ends_S1, longest = inputs
    y_THd, sums_HT = output
    ctx.save_for_backward(qkv_T3Hd, y_THd, sums_HT, ends_S1)
    ctx.longest = longest


def _backward(ctx: Any, grad_THd: Tensor, _grad_of_sums: Tensor | None) -> tuple[Tensor, None, None]:
    qkv_T3Hd, y_THd, sums_HT, ends_S1 = ctx.saved_tensors
    return flash_3_backward(grad_THd, qkv_T3Hd, y_THd, sums_HT, ends_S1, ctx.longest), None, None


flash_3.register_autograd(_backward, setup_context=_keep_for_backward)


def attend_with_flash_3(qkv_T3Hd: Tensor, ends_S1: Tensor, longest: int, dropout: float) -> Tensor:
    """Compute (T, 3, H, d) -> (T, D) in FlashAttention-3. `dropout` must be 0."""
    if dropout:
        raise ValueError(f"FlashAttention-3 drops no attention weights, but dropout is {dropout}.")
    y_THd, _ = flash_3(qkv_T3Hd, ends_S1, longest)
    return y_THd.flatten(1)


# Which one


def choose_flash(heads: int, head_size: int, dropout: float, like: Tensor) -> FlashKernel:
    """Return the fastest flash attention that is installed and works on this device.

    `dropout` is the largest that it will be asked for. `like` has the device and the 16-bit number format. All packages
    are checked on a few small sequences first, because one that was built for another version of torch or for another
    GPU shows that only when it is called.
    """
    faults = []
    for kernel in installed_kernels(dropout, torch.cuda.get_device_capability(like.device)):
        fault = fault_of(kernel, heads, head_size, like)
        if fault is None:
            return kernel._replace(faults=tuple(faults))
        faults.append(f"{kernel.name}: {fault}")
    return FlashKernel("FlashAttention-2 of torch", attend_with_torch, tuple(faults))


def installed_kernels(dropout: float, capability: tuple[int, int]) -> list[FlashKernel]:
    """Return the packages' kernels that are for such a GPU and such a dropout, the fastest first."""
    kernels = []
    if capability == HOPPER and not dropout and _is_installed(FLASH_3_MODULE):
        kernels.append(FlashKernel("FlashAttention-3 of the package flash_attn_3", attend_with_flash_3))
    if _is_installed(FLASH_2_MODULE):
        kernels.append(FlashKernel("FlashAttention-2 of the package flash_attn", attend_with_flash_2))
    return kernels


def _is_installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def fault_of(kernel: FlashKernel, heads: int, head_size: int, like: Tensor) -> str | None:
    """Return why a kernel cannot be used, in one line, or None if it computes what plain attention computes."""
    try:
        if kernel.attend is attend_with_flash_3:
            importlib.import_module(FLASH_3_MODULE)  # defines its operators

        # What is checked must not change what is drawn later.
        with torch.random.fork_rng([like.device] if like.device.type == "cuda" else []):
            difference = difference_from_plain(kernel.attend, heads, head_size, like)
    except Exception as error:
        # A package can fail in any way: an import, a symbol, an argument, a launch.
        first_line = str(error).split("\n", 1)[0]
        return f"{type(error).__name__}: {first_line}"

    if not difference <= MAX_RELATIVE_ERROR:  # NaN is a fault too
        return f"differs from plain attention by {difference:.1%}"
    return None


def difference_from_plain(attend: AttendPacked, heads: int, head_size: int, like: Tensor) -> float:
    """Return by how much a kernel's outputs and gradients differ from plain attention's in float32, relatively."""
    ends = [0, *accumulate(CHECKED_LENGTHS)]
    ends_S1 = torch.tensor(ends, dtype=torch.int32, device=like.device)

    generator = torch.Generator(like.device).manual_seed(0)
    shape = (ends[-1], 3, heads, head_size)
    qkv_T3Hd = torch.randn(shape, generator=generator, device=like.device).to(like.dtype)
    weights_TD = torch.randn(ends[-1], heads * head_size, generator=generator, device=like.device).to(like.dtype)

    def plain(qkv_T3Hd: Tensor, ends_S1: Tensor, longest: int, dropout: float) -> Tensor:
        outputs = []
        for qkv in qkv_T3Hd.split([length for length in CHECKED_LENGTHS if length > 0]):
            q, k, v = qkv.permute(1, 2, 0, 3)
            outputs.append(F.scaled_dot_product_attention(q, k, v).transpose(0, 1).flatten(1))
        return torch.cat(outputs)

    def results(function: AttendPacked, dtype: torch.dtype) -> Tensor:
        given = qkv_T3Hd.to(dtype).requires_grad_()
        y_TD = function(given, ends_S1, max(CHECKED_LENGTHS), 0.0)
        (gradient,) = torch.autograd.grad(y_TD, given, weights_TD.to(dtype))
        return torch.cat([y_TD.detach().flatten(), gradient.flatten()]).float()

    with torch.enable_grad():
        found = results(attend, like.dtype)
        expected = results(plain, torch.float32)
    return float((found - expected).norm() / expected.norm())
