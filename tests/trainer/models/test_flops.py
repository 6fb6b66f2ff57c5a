"""Executed operations are those that torch counts, and devices have the peaks of their data sheets."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tests.small_models import FAMILIES, section
from tests.trainer.one_rank import VOCABULARY, small_batch
from trainer.config.load import load_recipe
from trainer.data.batches import BatchShape, pad_to_shape
from trainer.models.batch import PackedBatch
from trainer.models.families import encoder_shape
from trainer.models.flops import ExecutedWork, attention_products, executed_flops, flops_per_token, peak_flops
from trainer.models.pretraining import PretrainingModel, build_model

MODERNBERT_BASE = [
    "model.family=modernbert",
    "model.num_hidden_layers=22",
    "model.hidden_size=768",
    "model.num_attention_heads=12",
    "model.intermediate_size=1152",
]
ROWS = 4
LENGTH = 12


def model_of(family: str, recompute: bool) -> PretrainingModel:
    # Rows that fit into the window are computed whole.
    changes = ["window=24"] if family == "modernbert" else []
    model = build_model(section(family, *changes), VOCABULARY, seed=0, mask_id=4).train()
    model.encoder.recompute = recompute
    return model


def padded(batch: PackedBatch) -> PackedBatch:
    """A third more tokens, a masked place more than twice as many, and a sequence without tokens."""
    shape = BatchShape(tokens=(ROWS + 2) * LENGTH, sequences=ROWS + 3, masked=16, longest=LENGTH)
    return pad_to_shape(batch, shape, pad_id=0)


def counted_flops(model: PretrainingModel, batch: PackedBatch) -> int:
    """What torch counts in a training step's passes."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        losses = model(batch)
        (losses.mlm_sum + losses.pair_sum).backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("is_padded", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_executed_operations_are_those_that_torch_counts(family: str, is_padded: bool, recompute: bool) -> None:
    batch = small_batch(1, rows=ROWS, length=LENGTH, masked=7)
    if is_padded:
        batch = padded(batch)
    model = model_of(family, recompute)

    work = ExecutedWork()
    work.add(batch)
    executed = executed_flops(model.shape, work, mean_seen=LENGTH, recompute=recompute)
    assert executed == pytest.approx(counted_flops(model, batch), rel=0.005)


def test_windows_limit_what_a_token_attends_to() -> None:
    """Of 22 layers 8 are global. At 8,192 tokens attention takes 0.37 of what it would without windows."""
    shape = encoder_shape(load_recipe("tests/recipes/small_bert.toml", MODERNBERT_BASE).model, 50_368)
    assert (shape.num_hidden_layers, shape.global_layers()) == (22, 8)
    everywhere = replace(shape, window=0)
    found = attention_products(shape, 8192) / attention_products(everywhere, 8192)
    assert found == pytest.approx((8 * 8192 + 14 * 129) / (22 * 8192))
    assert attention_products(shape, 100) == attention_products(everywhere, 100)


def test_work_adds_up() -> None:
    batches = [small_batch(1), padded(small_batch(2, rows=ROWS, length=LENGTH))]
    both = ExecutedWork()
    parts = []
    for batch in batches:
        both.add(batch)
        part = ExecutedWork()
        part.add(batch)
        parts.append(part)
    for field in fields(ExecutedWork):
        assert getattr(both, field.name) == sum(getattr(part, field.name) for part in parts) > 0


def test_the_model_counts_more_than_is_executed_without_padding() -> None:
    """The last layer's other rows, which nothing reads."""
    model = model_of("bert", recompute=False)
    batch = small_batch(1, rows=ROWS, length=LENGTH, masked=7)
    work = ExecutedWork()
    work.add(batch)
    by_the_model = flops_per_token(model.shape, LENGTH, 7 / batch.tokens) * batch.tokens
    assert executed_flops(model.shape, work, LENGTH, recompute=False) < by_the_model


def test_a_step_on_the_meta_device_needs_no_memory() -> None:
    """Shapes are all that is read."""
    batch = small_batch(1)
    work = ExecutedWork()
    work.add(batch.to(torch.device("meta")))
    assert work.computed == batch.tokens


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
        ("AMD EPYC 9654 96-Core Processor", None),
    ],
)
def test_devices_whose_names_hold_another_s_have_their_own_peak(device: str, peak: float | None) -> None:
    assert peak_flops(device) == peak
