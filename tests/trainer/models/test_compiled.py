"""Compiled parts of a model: how many graphs, no breaks, no second compilation; and the padded vocabulary."""

from collections.abc import Iterator
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters

from tests.small_models import FAMILIES, random_model, section, vocabulary_of
from tests.trainer.models.flash_stand_ins import torch_flash
from tests.trainer.models.test_attention import LENGTHS, batch_of
from tests.trainer.one_rank import filled_engine, group_of_one, small_recipe
from trainer.data.share import RankShare
from trainer.engine import gradient_divisor
from trainer.models import attention, pretraining
from trainer.models.batch import IGNORE_INDEX, PackedBatch
from trainer.models.pretraining import Losses, PretrainingModel

VOCABULARY = vocabulary_of(61)
THOROUGH = pytest.mark.thorough
COMPILED = [family if family in ("bert", "modernbert") else pytest.param(family, marks=THOROUGH) for family in FAMILIES]
"""Layers of most kinds, which take seconds to compile, by two families; and the other families nightly."""


@pytest.fixture(autouse=True)
def packed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(attention, "kernel_for", lambda *_: "packed")
    torch._dynamo.reset()
    with torch_flash():
        yield


def model_of(family: str) -> PretrainingModel:
    return random_model(section(family, "hidden_dropout_prob=0.1"), VOCABULARY).train()


def another(batch: PackedBatch, number: int) -> PackedBatch:
    """A batch of the same shape whose numbers all differ, as the next step's does."""
    return replace(
        batch,
        ids_T=batch.ids_T.roll(number),
        labels_K=batch.labels_K + number,
        tokens=batch.tokens - number,
        predicted=batch.predicted - number % 2,
        paired=batch.paired - number,
    )


@pytest.mark.parametrize("family", COMPILED)
def test_a_step_of_one_shape_is_compiled_once(family: str) -> None:
    """Embeddings, each kind of layer, heads with losses. No break, however many steps.

    Layers of a kind share their graph: inner ones and the last, and in ModernBERT the first and those with a window.
    """
    counters.clear()
    counter = CompileCounterWithBackend("aot_eager")
    model = model_of(family)
    model.compile_parts(backend=counter)  # type: ignore[arg-type]
    batch = batch_of(LENGTHS, empty=2)

    for number in range(4):
        torch.manual_seed(number)
        losses = model(another(batch, number))
        (losses.mlm_sum + losses.pair_sum).backward()
    assert not counters["graph_break"]
    assert counter.frame_count == (5 if family == "modernbert" else 4)


LAYOUTS = [(1, "bf16"), *(pytest.param(layout, marks=THOROUGH) for layout in ((0, "bf16"), (0, "fp16"), (2, "bf16")))]


@pytest.mark.parametrize("family", ["electra", *COMPILED])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_no_graph_breaks_where_gradients_are_summed(family: str, layout: tuple[int, str]) -> None:
    """In 16 bits, with sums in float32, also for a shape that is compiled when sums exist already."""
    counters.clear()
    stage, precision = layout
    recipe = small_recipe(f"engine.zero_stage={stage}", f"engine.precision={precision}")
    model = model_of(family)
    model.compile_parts(backend="eager")
    for encoder in model.encoders():
        encoder.recompute = stage == 1

    with group_of_one(), patch.object(CPU_Accelerator, "is_fp16_supported", return_value=True):
        engine = filled_engine(model, recipe, RankShare(0, 1, 2, 4))
        for number, lengths in enumerate([LENGTHS, [*LENGTHS, 3]]):
            engine.set_gradient_accumulation_boundary(number == 1)
            losses = engine(replace(batch_of(lengths), draws_K=torch.tensor([5, 9])))
            engine.backward(losses.total() * gradient_divisor(engine))
            engine.step()
        engine.destroy()
    assert not counters["graph_break"]
    assert counters["stats"]["unique_graphs"] >= 7


def total(losses: Losses) -> Tensor:
    return losses.mlm_sum + losses.pair_sum


@pytest.mark.parametrize("family", ["bert", pytest.param("roberta", marks=THOROUGH)])
def test_compiled_parts_compute_the_same(family: str) -> None:
    model = model_of(family).eval()
    batch = batch_of(LENGTHS, empty=2)
    plain = model(batch)
    expected = torch.autograd.grad(total(plain), list(model.parameters()), allow_unused=True)
    model.compile_parts(backend="aot_eager")
    compiled = model(batch)
    found = torch.autograd.grad(total(compiled), list(model.parameters()), allow_unused=True)
    torch.testing.assert_close(tuple(compiled), tuple(plain))
    torch.testing.assert_close(found, expected)


# The vocabulary, padded


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=THOROUGH)])
def test_a_padded_vocabulary_changes_nothing(family: str, compiled: bool, monkeypatch) -> None:
    """61 tokens as 64: losses, predictions, logits and every gradient, also at a position without a label."""
    model = model_of(family).eval()
    batch = batch_of(LENGTHS, empty=2)
    batch = replace(batch, labels_K=torch.tensor([7, IGNORE_INDEX]))
    plain = model(batch)
    logits = model.logits(batch)[0]
    expected = torch.autograd.grad(total(plain), list(model.parameters()), allow_unused=True)

    monkeypatch.setitem(pretraining.VOCABULARY_MULTIPLE, "cpu", 64)
    if compiled:
        model.compile_parts(backend="aot_eager")
    padded = model(batch)
    found = torch.autograd.grad(total(padded), list(model.parameters()), allow_unused=True)
    assert model.logits(batch)[0].shape == logits.shape == (2, 61)
    torch.testing.assert_close(model.logits(batch)[0], logits)
    torch.testing.assert_close(tuple(padded), tuple(plain))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bits_hold_the_padding(dtype: torch.dtype, monkeypatch) -> None:
    """Its gradient is 0, not NaN, and it is never predicted, even if all real logits are very low."""
    monkeypatch.setitem(pretraining.VOCABULARY_MULTIPLE, "cpu", 64)
    head = model_of("bert").mlm_head.to(dtype)
    assert head.bias is not None and head.dense is not None
    with torch.no_grad():
        head.bias.fill_(-30000.0)
    embedding = torch.randn(61, head.dense.out_features, dtype=dtype, requires_grad=True)
    logits = head(torch.randn(5, head.dense.in_features, dtype=dtype), embedding)
    assert logits.shape == (5, 64) and logits.argmax(-1).max() < 61
    loss = pretraining.predictions(logits, torch.tensor([1, 2, 60, IGNORE_INDEX, 0])).loss
    loss.backward()
    for gradient in (embedding.grad, head.bias.grad):
        assert gradient is not None and gradient.isfinite().all()


def test_only_gpus_pad_the_vocabulary() -> None:
    sizes = {30_522: 6, 50_265: 39, 30_592: 0, 64: 0}
    assert {size: pretraining.padding_of_vocabulary(size, "cuda") for size in sizes} == sizes
    assert {pretraining.padding_of_vocabulary(size, "cpu") for size in sizes} == {0}
