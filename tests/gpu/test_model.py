"""Losses and gradients of every family on the GPU against the CPU, in every precision, compiled and eager."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.gpu.conftest import DRY
from trainer.build_model import log_attention
from trainer.config.load import load_recipe
from trainer.data.batches import pad_to_shape, shape_for
from trainer.describe import count_parameters, held_bytes, meta_model
from trainer.micro_batches import fits, free_memory, trial_batch
from trainer.models import attention
from trainer.models.batch import PackedBatch
from trainer.models.families import encoder_shape
from trainer.models.fused import Dropout, FusedGelu, gelu, keyed_dropout
from trainer.models.pretraining import PretrainingModel
from trainer.models.shape import EncoderShape
from trainer.models.starting_weights import initialize

pytestmark = pytest.mark.gpu

RECIPES = ("bert_base", "roberta_base", "albert_base", "megatron_345m")
TOLERANCES = {torch.float32: 2e-3, torch.bfloat16: 4e-2, torch.float16: 1e-2}
"""Relative errors of a gradient: TF32's, and those of 16-bit numbers through a few layers."""

PRECISIONS = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}

FAMILIES_TRIED = RECIPES[:1] if DRY else RECIPES
CASES = [(dtype, compiled) for dtype in TOLERANCES for compiled in (False, True)]
CASES_TRIED = [(torch.float32, False), (torch.bfloat16, True)] if DRY else CASES


def small_shape(recipe: str) -> EncoderShape:
    """A published shape with four small layers and a vocabulary of an odd size."""
    model = load_recipe(recipe, []).model
    small = {"num_hidden_layers": 4, "hidden_size": 128, "num_attention_heads": 2, "intermediate_size": 256}
    shape = encoder_shape(model.model_copy(update=small), 1001)
    return replace(shape, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


def model_of(shape: EncoderShape) -> PretrainingModel:
    model = PretrainingModel(shape)
    initialize(model, shape, 0.05, 0)
    return model.train()


def batch_of(shape: EncoderShape) -> PackedBatch:
    """Nine rows of 3 to 70 tokens, padded to a shape with empty sequences."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([70, 3, 64, 17, 33, 65, 8, 50, 21])
    sequence_T = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    starts_S = lengths.cumsum(0) - lengths
    tokens = int(lengths.sum())
    ids_T = torch.randint(5, shape.vocab_size, (tokens,), generator=generator)
    masked_K = torch.randperm(tokens, generator=generator)[: tokens // 7].sort().values
    batch = PackedBatch(
        ids_T=ids_T,
        segments_T=torch.zeros_like(ids_T),
        positions_T=torch.arange(tokens) - starts_S[sequence_T],
        sequence_T=sequence_T,
        sequence_starts_S=starts_S,
        longest=int(lengths.max()),
        masked_positions_K=masked_K,
        labels_K=ids_T[masked_K],
        pair_labels_S=torch.arange(len(lengths)) % 2,
        tokens=tokens,
        predicted=len(masked_K),
        paired=len(lengths),
    )
    return pad_to_shape(batch, shape_for(tokens + 60, 40.0, 70, 0.15, padded=False), 0)


def loss_and_gradient(model: PretrainingModel, batch: PackedBatch) -> tuple[Tensor, Tensor]:
    """In float32 on the CPU, whatever the model's device and precision."""
    losses = model(batch)
    loss = losses.mlm_sum + losses.pair_sum
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    return loss.detach().float().cpu(), torch.cat([gradient.flatten().float().cpu() for gradient in gradients])


def check_close(found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor], tolerance: float) -> None:
    for one, other in zip(found, expected, strict=True):
        error = float((one - other).norm() / other.norm())
        print(f"relative error {error:.1e}")
        assert error < tolerance


@pytest.fixture(scope="module", params=FAMILIES_TRIED)
def reference(request) -> tuple[PretrainingModel, PackedBatch, tuple[Tensor, Tensor]]:
    """A family's model on the CPU, a batch, and its loss and gradient in float32, sequence by sequence."""
    shape = small_shape(request.param)
    model = model_of(shape)
    batch = batch_of(shape)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "kernel_for", lambda *_: "one by one")
        return model, batch, loss_and_gradient(model, batch)


@pytest.mark.parametrize(("dtype", "compiled"), CASES_TRIED, ids=str)
def test_a_gpu_computes_what_a_cpu_computes(device, reference, dtype: torch.dtype, compiled: bool) -> None:
    torch._dynamo.reset()
    on_cpu, batch, expected = reference
    model = copy.deepcopy(on_cpu).to(device, dtype)
    if not DRY:
        for encoder in model.encoders():
            log_attention(encoder, PRECISIONS[dtype])
    if compiled:
        model.compile_parts(backend="aot_eager" if DRY else "inductor")
    check_close(loss_and_gradient(model, batch.to(device)), expected, TOLERANCES[dtype])


@pytest.mark.parametrize("compiled", [False] if DRY else [False, True])
def test_recomputed_layers_drop_the_same(device, compiled: bool) -> None:
    torch._dynamo.reset()
    shape = replace(small_shape("bert_base"), hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    model = model_of(shape).to(device, torch.bfloat16)
    batch = batch_of(shape).to(device)
    if compiled:
        model.compile_parts()
    found = []
    for model.encoder.recompute in (False, True):
        torch.manual_seed(1)
        found.append(loss_and_gradient(model, batch))
    check_close(found[0], found[1], 2e-2)


def seeded(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    torch.manual_seed(0)
    return function(x)


def test_dropout_and_gelu_of_fused_layers(device) -> None:
    """The backward pass uses the mask of the forward pass; GELU is within one unit in the last place."""
    if device.type != "cuda":
        pytest.skip("needs a card")
    x = torch.randn(4096, 1024, device=device, dtype=torch.bfloat16).requires_grad_()
    ones = torch.ones_like(x)

    dropped = torch.compile(Dropout(0.1), dynamic=False)
    first, keyed = (seeded(function, x) for function in (dropped, torch.compile(lambda x: keyed_dropout(x, 0.1))))
    assert torch.equal(first, keyed), "not torch's dropout"
    (gradient,) = torch.autograd.grad(first, x, ones)
    assert float((first == 0).float().mean()) == pytest.approx(0.1, abs=1e-3)
    torch.testing.assert_close(first, x * gradient)
    assert not torch.equal(dropped(x), first)
    assert torch.equal(seeded(dropped, x), first)

    activated = torch.compile(gelu, dynamic=False)(x)
    assert torch.equal(activated, torch.compile(FusedGelu.apply)(x))
    exact = x.detach().double().requires_grad_()
    expected = torch.nn.functional.gelu(exact)
    torch.testing.assert_close(activated, expected.bfloat16(), rtol=2**-7, atol=1e-6)
    (slope,) = torch.autograd.grad(activated, x, ones)
    torch.testing.assert_close(
        slope, torch.autograd.grad(expected, exact, ones.double())[0].bfloat16(), rtol=2**-7, atol=1e-5
    )


MOST_BYTES_LEFT = 8e6


def trial(device: torch.device, held: int | None = None) -> bool:
    """Try a small model in bf16 next to `held` bytes, by default as many as training would hold."""
    recipe = load_recipe("bert_base", ["engine.precision=bf16"])
    shape = small_shape("bert_base")
    if held is None:
        held = held_bytes(count_parameters(meta_model(shape)), recipe, 1)
    return fits(shape, recipe, trial_batch(shape, recipe, 1024, 100.0), held, device)


def free_now(device: torch.device) -> int:
    """Return the free bytes of a GPU after everything that was queued."""
    torch.cuda.synchronize(device)
    return free_memory(device)


@pytest.fixture(scope="module")
def tried(device) -> None:
    """After a first pass, which loads kernels and opens cuBLAS in two threads, each with a workspace that stays."""
    torch._dynamo.reset()  # what earlier tests compiled
    assert trial(device)


@pytest.mark.parametrize("what", ["a pass that fits", "a terabyte", "all but a megabyte"])
def test_a_trial_pass_leaves_no_memory_behind(device, tried, what: str) -> None:
    """And finds that a terabyte does not fit. Memory that is free afterwards and was not before is no fault."""
    if device.type != "cuda":
        return
    before = free_now(device)
    held = {"a pass that fits": None, "a terabyte": 10**12, "all but a megabyte": before - 2**20}[what]
    assert trial(device, held) == (held is None)
    assert before - free_now(device) < MOST_BYTES_LEFT
