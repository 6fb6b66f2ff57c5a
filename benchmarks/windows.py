"""Measures attention with and without a window: floating-point operations, and memory of forward and backward.

    python benchmarks/windows.py [--tokens 8192] [--window 128] [--length 8192]

Runs one layer of ModernBERT-base's width on the packed path of a CPU, in float32. The tokens are one sequence, or
several of --length each. Operations are those of matrix products, including attention scores, as torch counts them.
With a window, half of the computed scores lie outside it, because blocks are computed whole. Memory is the peak above
the layer's weights, and the memory kept for the backward pass at the end of the forward pass, both as torch allocates.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from trainer.config.load import load_recipe  # noqa: E402
from trainer.models.attention import Rotation, rotation_of  # noqa: E402
from trainer.models.batch import PackedBatch, SequenceOffsets  # noqa: E402
from trainer.models.encoder import Attention, Layer  # noqa: E402
from trainer.models.families import encoder_shape  # noqa: E402
from trainer.models.shape import EncoderShape  # noqa: E402

MODERNBERT_BASE = [
    "model.family=modernbert",
    "model.num_hidden_layers=1",
    "model.hidden_size=768",
    "model.num_attention_heads=12",
    "model.intermediate_size=1152",
]
"""The shape of answerdotai/ModernBERT-base, except for the number of layers."""

MEGABYTE = 2**20


def forward_flops(query: torch.Size, key: torch.Size, value: torch.Size, *_: object, **__: object) -> int:
    """Return the floating-point operations of attention, from the shapes of its arguments."""
    return sdpa_flop_count(query, key, value)


def backward_flops(gradient: torch.Size, query: torch.Size, key: torch.Size, *others: torch.Size, **_: object) -> int:
    """Return the floating-point operations of attention's gradient, which computes the scores a second time."""
    return sdpa_backward_flop_count(gradient, query, key, others[0])


CPU_ATTENTION = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: forward_flops,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: backward_flops,
}
"""Counting functions for attention on a CPU, because torch only counts that on GPUs."""


@dataclass(frozen=True)
class Inputs:
    """The inputs of a layer: packed tokens, float32 (T, D), the offsets of their sequences, and their rotations."""

    x_TD: Tensor
    offsets: SequenceOffsets
    rotation: Rotation


@dataclass(frozen=True)
class Cost:
    """The cost of one forward and one backward pass.

    peak: the highest memory, in bytes. kept: the bytes at the end of the forward pass, for the backward pass.
    """

    flops: int
    peak: int
    kept: int
    seconds: float


def inputs_of(tokens: int, length: int, shape: EncoderShape) -> Inputs:
    """Return random vectors for `tokens` tokens, in sequences of `length` tokens."""
    places_T = torch.arange(tokens)
    none = torch.zeros(0, dtype=torch.int64)
    batch = PackedBatch(
        ids_T=places_T,
        segments_T=torch.zeros_like(places_T),
        positions_T=places_T % length,
        sequence_T=places_T // length,
        sequence_starts_S=torch.arange(0, tokens, length),
        longest=length,
        masked_positions_K=none,
        labels_K=none,
        pair_labels_S=none,
        tokens=tokens,
        predicted=0,
        paired=0,
    )
    assert shape.rope_base is not None, "ModernBERT has rotations"
    x_TD = torch.randn(tokens, shape.hidden_size, requires_grad=True)
    return Inputs(x_TD, SequenceOffsets(batch), rotation_of(batch.positions_T, shape.rope_base, shape.head_size))


def forward(module: Attention | Layer, inputs: Inputs) -> Tensor:
    return module(inputs.x_TD, inputs.offsets, inputs.rotation, None)


def cost_of(module: Attention | Layer, inputs: Inputs) -> Cost:
    """Return the cost of a forward and a backward pass. Operations, time and memory are measured in separate runs."""
    with FlopCounterMode(display=False, custom_mapping=CPU_ATTENTION) as counter:
        forward(module, inputs).sum().backward()

    started = time.perf_counter()
    forward(module, inputs).sum().backward()
    seconds = time.perf_counter() - started

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as whole:
        forward(module, inputs).sum().backward()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as first_half:
        output = forward(module, inputs)
    _, kept = allocated(first_half)
    del output

    peak, _ = allocated(whole)
    return Cost(counter.get_total_flops(), peak, kept, seconds)


def allocated(profiled: profile) -> tuple[int, int]:
    """Return (peak, final) allocated bytes, relative to the start of the profile."""
    assert profiled.profiler is not None and profiled.profiler.kineto_results is not None
    now = 0
    most = 0
    events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()  # type: ignore[attr-defined]  torch's stub of these events leaves it out
        most = max(most, now)
    return most, now


def main() -> None:
    parser = argparse.ArgumentParser(description="Operations and memory of attention with a window and without.")
    parser.add_argument("--tokens", type=int, default=8192, help="tokens of the packed batch")
    parser.add_argument("--window", type=int, default=128, help="tokens in a window")
    parser.add_argument("--length", type=int, default=0, help="tokens in a sequence; all by default")
    options = parser.parse_args()

    model = load_recipe("benchmarks/small_bert.toml", [*MODERNBERT_BASE, f"model.window={options.window}"]).model
    shape = encoder_shape(model, vocabulary_size=8)
    torch.manual_seed(0)
    inputs = inputs_of(options.tokens, options.length or options.tokens, shape)

    print(f"{options.tokens:,} tokens in sequences of {inputs.offsets.longest:,}, window {options.window}")
    print(f"{'':22}{'TFLOP':>8}{'peak MB':>10}{'kept MB':>10}{'seconds':>9}")
    for name, module_of in (("attention", Attention), ("layer", Layer)):
        for kind, window in (("all tokens", None), ("window", options.window // 2)):
            module = Attention(shape, window) if module_of is Attention else Layer(shape, 0)
            if isinstance(module, Layer):
                module.attention.window = window
            cost = cost_of(module, inputs)
            print(
                f"{name + ', ' + kind:22}{cost.flops / 1e12:8.3f}{cost.peak / MEGABYTE:10,.0f}"
                f"{cost.kept / MEGABYTE:10,.0f}{cost.seconds:9.1f}"
            )


if __name__ == "__main__":
    main()
