"""Flash attention on packed queries, keys and values: torch's kernels, or faster ones from an installed package.

    FlashAttention-3    the package flash_attn_3, module flash_attn_interface (github.com/Dao-AILab/flash-attention,
                        hopper/). For H100 and H200; it has no dropout of attention weights. On H100 about 1.5 times as
                        fast as FlashAttention-2 (Shah et al., arXiv:2407.08608).
    FlashAttention-2    the package flash_attn, from version 2.1 on.
    torch               FlashAttention-2 as built into torch (`aten::_flash_attention_forward`).

FlashAttention-3, and FlashAttention-2 of the package if there are as many heads of keys as of queries, write the
gradients of queries, keys and values into one (T, N, d) tensor, which the backward pass of the QKV projection reads
without a copy. Otherwise three tensors are allocated, and a copy joins them.

flash_choice.py picks one of the three.

Shape suffixes: T tokens, S sequences, N heads of queries, keys and values together, H heads of queries, d head size,
D = H * d. S1 means S + 1.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from trainer.models.attention_rule import AttentionRule, split_projections

AttendPacked = Callable[[Tensor, Tensor, int, AttentionRule], Tensor]
"""A function that computes (T, N, d) -> (T, D). Its arguments, in order:

qkv_TNd: the heads of queries, keys and values.
ends_S1: (S + 1,) int32: 0, then where each sequence ends.
longest: the number of tokens in the longest sequence, or more.
rule: the number of heads, dropout, window and causality.
"""

ALL_TOKENS = -1
"""The window size that tells the kernels that there is no window."""

FLASH_3_MODULE = "flash_attn_interface"
FLASH_2_MODULE = "flash_attn"

flash_2_package: Any = None
"""The package flash_attn, set by `import_flash_2`. It is not imported where it is used, because torch.compile cannot
trace an import."""


# torch's own kernels


def attend_with_torch(qkv_TNd: Tensor, ends_S1: Tensor, longest: int, rule: AttentionRule) -> Tensor:
    """Compute (T, N, d) -> (T, D) with torch's flash attention.

    This calls the ATen operator because torch.nn.attention.varlen.varlen_attn has no dropout. The dropout mask comes
    from the device's generator, so recomputed layers draw the same one again.
    """
    q_THd, k_THd, v_THd = split_projections(qkv_TNd, rule.heads)
    y_THd, *_ = torch.ops.aten._flash_attention_forward(
        q_THd,
        k_THd,
        v_THd,
        ends_S1,  # of the queries
        ends_S1,  # of the keys
        longest,
        longest,
        rule.dropout,
        rule.causal,
        False,  # no debug mask
        window_size_left=rule.window,
        window_size_right=_window_after(rule),
    )
    return y_THd.flatten(1)


def _window_after(rule: AttentionRule) -> int | None:
    """Return how many later tokens a token attends to, or None if there is no window."""
    return 0 if rule.causal and rule.window is not None else rule.window


# The package flash_attn


def import_flash_2() -> None:
    """Import the package flash_attn, which attend_with_flash_2 needs.

    Raises ImportError if it is not installed, and whatever else a broken installation raises.
    """
    global flash_2_package
    flash_2_package = importlib.import_module(FLASH_2_MODULE)


def attend_with_flash_2(qkv_TNd: Tensor, ends_S1: Tensor, longest: int, rule: AttentionRule) -> Tensor:
    """Compute (T, N, d) -> (T, D) with the package flash_attn. Call `import_flash_2` first."""
    window = ALL_TOKENS if rule.window is None else rule.window
    options = {
        "dropout_p": rule.dropout,
        "causal": rule.causal,
        "window_size": (window, window),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }

    has_as_many_keys = qkv_TNd.shape[1] == 3 * rule.heads
    if has_as_many_keys:
        qkv_T3Hd = qkv_TNd.unflatten(1, (3, rule.heads))
        y_THd = flash_2_package.flash_attn_varlen_qkvpacked_func(qkv_T3Hd, ends_S1, longest, **options)
    else:
        q_THd, k, v = split_projections(qkv_TNd, rule.heads)
        y_THd = flash_2_package.flash_attn_varlen_func(q_THd, k, v, ends_S1, ends_S1, longest, longest, **options)
    return y_THd.flatten(1)


# The package flash_attn_3. It has no Python function for a packed QKV tensor of several sequences, so its two operators
# are called directly, with the argument names of hopper/flash_api.cpp.


def _flash_3_options(ends_S1: Tensor, longest: int, window: int, causal: bool) -> dict[str, Any]:
    """Return the arguments that both operators take: the ends of sequences, and which tokens attend to which."""
    return {
        "cu_seqlens_q": ends_S1,
        "cu_seqlens_k": ends_S1,
        "max_seqlen_q": longest,
        "max_seqlen_k": longest,
        "is_causal": causal,
        "window_size_left": window,
        "window_size_right": window,
    }


@torch.library.custom_op("clozeline::flash_3", mutates_args=())
def flash_3(
    qkv_TNd: Tensor, ends_S1: Tensor, longest: int, heads: int, window: int, causal: bool
) -> tuple[Tensor, Tensor]:
    """Return the heads' outputs, (T, H, d), and the log-sum-exp of each softmax, (H, T) in float32.

    window: tokens on each side that a token attends to, or ALL_TOKENS.
    """
    q_THd, k, v = split_projections(qkv_TNd, heads)
    y_THd, sums_HT, *_ = torch.ops.flash_attn_3.fwd(
        q_THd,
        k,
        v,
        **_flash_3_options(ends_S1, longest, window, causal),
        num_splits=1,  # splitting the keys helps only where there are few queries
    )
    return y_THd, sums_HT


@flash_3.register_fake
def _outputs_like(
    qkv_TNd: Tensor, _ends_S1: Tensor, _longest: int, heads: int, *_window_and_causal: Any
) -> tuple[Tensor, Tensor]:
    """Return empty tensors of the shapes and dtypes that `flash_3` returns, for torch.compile."""
    tokens, _, head_size = qkv_TNd.shape
    y_THd = qkv_TNd.new_empty(tokens, heads, head_size)
    return y_THd, qkv_TNd.new_empty(heads, tokens, dtype=torch.float32)


@torch.library.custom_op("clozeline::flash_3_backward", mutates_args=())
def flash_3_backward(
    grad_THd: Tensor,
    qkv_TNd: Tensor,
    y_THd: Tensor,
    sums_HT: Tensor,
    ends_S1: Tensor,
    longest: int,
    window: int,
    causal: bool,
) -> Tensor:
    """Return the gradient of `qkv_TNd`, which the kernel writes in place: nothing is copied."""
    heads = y_THd.shape[1]
    grad_TNd = torch.empty(qkv_TNd.shape, dtype=qkv_TNd.dtype, device=qkv_TNd.device)
    q_THd, k, v = split_projections(qkv_TNd, heads)
    grad_q, grad_k, grad_v = split_projections(grad_TNd, heads)

    torch.ops.flash_attn_3.bwd(
        grad_THd.contiguous(),
        q_THd,
        k,
        v,
        y_THd,
        sums_HT,
        dq=grad_q,
        dk=grad_k,
        dv=grad_v,
        **_flash_3_options(ends_S1, longest, window, causal),
        deterministic=torch.are_deterministic_algorithms_enabled(),
    )
    return grad_TNd


@flash_3_backward.register_fake
def _gradient_like(_grad_THd: Tensor, qkv_TNd: Tensor, *_others: Any) -> Tensor:
    """Return an empty tensor of the shape and dtype that `flash_3_backward` returns."""
    return torch.empty(qkv_TNd.shape, dtype=qkv_TNd.dtype, device=qkv_TNd.device)


def _keep_for_backward(
    ctx: Any, inputs: tuple[Tensor, Tensor, int, int, int, bool], output: tuple[Tensor, Tensor]
) -> None:
    qkv_TNd, ends_S1, longest, _, window, causal = inputs
    y_THd, sums_HT = output
    ctx.save_for_backward(qkv_TNd, y_THd, sums_HT, ends_S1)
    ctx.settings = (longest, window, causal)


def _backward(ctx: Any, grad_THd: Tensor, _grad_of_sums: Tensor | None) -> tuple[Tensor, None, None, None, None, None]:
    qkv_TNd, y_THd, sums_HT, ends_S1 = ctx.saved_tensors
    grad_TNd = flash_3_backward(grad_THd, qkv_TNd, y_THd, sums_HT, ends_S1, *ctx.settings)
    return grad_TNd, None, None, None, None, None


flash_3.register_autograd(_backward, setup_context=_keep_for_backward)


def attend_with_flash_3(qkv_TNd: Tensor, ends_S1: Tensor, longest: int, rule: AttentionRule) -> Tensor:
    """Compute (T, N, d) -> (T, D) with FlashAttention-3. Raises ValueError unless `rule.dropout` is 0."""
    if rule.dropout:
        raise ValueError(f"FlashAttention-3 drops no attention weights, but dropout is {rule.dropout}.")
    window = ALL_TOKENS if rule.window is None else rule.window
    y_THd, _ = flash_3(qkv_TNd, ends_S1, longest, rule.heads, window, rule.causal)
    return y_THd.flatten(1)
