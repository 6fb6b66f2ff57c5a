"""The operations of a model are those that torch counts in it, and devices have the peaks of their data sheets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tests.small_models import FAMILIES, SMALL_VOCABULARY, section
from tests.trainer.one_rank import VOCABULARY, small_batch
from tests.xlnet_batches import random_batch
from trainer.config.load import load_recipe
from trainer.models.families import encoder_shape
from trainer.models.flops import attention_products, flops_per_token, peak_flops
from trainer.models.starting_weights import build_model

MODERNBERT_BASE = [
    "model.family=modernbert",
    "model.num_hidden_layers=22",
    "model.hidden_size=768",
    "model.num_attention_heads=12",
    "model.intermediate_size=1152",
]
LENGTH = 12


@pytest.mark.parametrize("family", [*FAMILIES, "electra"])
def test_operations_are_those_that_torch_counts(family: str) -> None:
    """All layers at all tokens, forward, times three for the backward pass. Rows that fit into a window are whole."""
    described = section(family, *(["window=24"] if family == "modernbert" else []))
    model: Any = build_model(described, VOCABULARY, seed=0, mask_id=4).eval()
    batch = small_batch(1, rows=4, length=LENGTH, masked=7)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        outputs = [encoder(batch) for encoder in model.encoders()]
        model.mlm_head(outputs[-1][: batch.predicted], model.encoder.embeddings.token.weight)
        if model.shape.replaced_tokens:
            model.discriminator.head(outputs[0])

    counted = counter.get_total_flops()
    masked = batch.predicted / batch.tokens
    assert 3 * counted == pytest.approx(flops_per_token(model.shape, LENGTH, masked) * batch.tokens)


def test_operations_of_two_streams_are_those_that_torch_counts() -> None:
    """With the projections of distances, twice as many products with them, and without the last content stream."""
    model = build_model(section("xlnet"), SMALL_VOCABULARY.size, seed=0).eval()
    batch = random_batch(SMALL_VOCABULARY, [(12, 9)] * 4)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(batch)

    shape = model.shape
    D, layers, length = shape.hidden_size, shape.num_hidden_layers, batch.longest
    queries = batch.tokens * (layers - 1) + batch.predicted * layers
    more = layers * 2 * length * D * D + queries * length * D
    less = batch.tokens * (2 * D * D + 2 * D * shape.intermediate_size + 3 * D * length + 2 * D)
    expected = flops_per_token(shape, length, batch.predicted / batch.tokens) * batch.tokens + 6 * (more - less)
    assert 3 * counter.get_total_flops() == pytest.approx(expected)


def test_windows_limit_what_a_token_attends_to() -> None:
    """Of 22 layers 8 are global. At 8,192 tokens attention takes 0.37 of what it would without windows."""
    shape = encoder_shape(load_recipe("tests/recipes/small_bert.toml", MODERNBERT_BASE).model, 50_368)
    assert (shape.num_hidden_layers, shape.global_layers()) == (22, 8)
    everywhere = replace(shape, window=0)
    found = attention_products(shape, 8192) / attention_products(everywhere, 8192)
    assert found == pytest.approx((8 * 8192 + 14 * 129) / (22 * 8192))
    assert attention_products(shape, 100) == attention_products(everywhere, 100)


@pytest.mark.parametrize(
    ("device", "peak"),
    [
        ("NVIDIA H200 NVL", 835e12),
        ("NVIDIA GB200", 2500e12),
        ("NVIDIA B200", 2250e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA A10", 125e12),
        ("NVIDIA L40S", 362e12),
        ("AMD Instinct MI300X", 1307e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA GH200 480GB", 989e12),
        ("NVIDIA B300 SXM6 AC", 2250e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA A10G", 70e12),
        ("NVIDIA GeForce RTX 4090", 165.2e12),
        ("AMD Instinct MI355X OAM", 2500e12),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("AMD EPYC 9654 96-Core Processor", None),
    ],
)
def test_devices_whose_names_hold_another_s_have_their_own_peak(device: str, peak: float | None) -> None:
    assert peak_flops(device) == peak
