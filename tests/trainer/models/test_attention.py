"""The attention kernels against each other, and what a GPU would be asked to do: kernels registered here stand in."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.small_models import random_model, section
from tests.trainer.models.flash_stand_ins import torch_flash
from trainer.models import attention
from trainer.models.attention import attend_one_by_one, attend_padded, kernel_for
from trainer.models.batch import PackedBatch, SequenceOffsets
from trainer.models.flash import attend_with_torch

LENGTHS = [5, 9, 1, 7]


def batch_of(lengths: list[int], empty: int = 0) -> PackedBatch:
    """Sequences of some lengths and `empty` ones of no tokens, with two tokens to predict."""
    sequence_T = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    positions_T = torch.cat([torch.arange(length) for length in lengths])
    total = len(sequence_T)
    first_S = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()[:-1], *[0] * empty])
    return PackedBatch(
        ids_T=torch.arange(total) % 50 + 5,
        segments_T=torch.zeros(total, dtype=torch.int64),
        positions_T=positions_T,
        sequence_T=sequence_T,
        sequence_starts_S=first_S,
        longest=max(lengths),
        masked_positions_K=torch.tensor([1, 6]),
        labels_K=torch.tensor([7, 8]),
        pair_labels_S=torch.zeros(len(first_S), dtype=torch.int64),
        tokens=total,
        predicted=2,
        paired=len(lengths),
    )


def attend_packed(qkv_T3Hd: Tensor, offsets: SequenceOffsets, dropout: float) -> Tensor:
    return attend_with_torch(qkv_T3Hd, offsets.ends_S1, offsets.longest, dropout)


class Counts(TorchDispatchMode):
    """How often each ATen operator is called."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, int] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        self.calls[name] = self.calls.get(name, 0) + 1
        return func(*args, **(kwargs or {}))


@pytest.fixture(scope="module")
def flash() -> Iterator[list[float]]:
    """Stand-ins for torch's flash attention. The list collects the forward calls' dropout_p."""
    with torch_flash() as seen:
        yield seen


def results(kernel, dropout: float = 0.0, empty: int = 0) -> tuple[Tensor, Tensor]:
    """What a kernel computes of the same random numbers, and the gradient."""
    offsets = SequenceOffsets(batch_of(LENGTHS, empty))
    qkv = torch.randn(sum(LENGTHS), 3, 2, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()
    y_TD = kernel(qkv, offsets, dropout)
    weights = torch.randn(y_TD.shape, generator=torch.Generator().manual_seed(1))
    return y_TD.detach(), torch.autograd.grad((y_TD * weights).sum(), qkv)[0]


@pytest.mark.parametrize("kernel", [attend_packed, attend_padded])
@pytest.mark.parametrize("empty", [0, 3])
def test_every_kernel_computes_the_same(flash, kernel, empty: int) -> None:
    for found, expected in zip(results(kernel, empty=empty), results(attend_one_by_one), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kernel", [attend_packed, attend_padded, attend_one_by_one])
def test_every_kernel_drops_attention_weights(flash, kernel) -> None:
    """Differently for each seed, equally for the same one, and on average not at all."""
    plain, _ = results(kernel)
    torch.manual_seed(3)
    first, gradient = results(kernel, 0.3)
    torch.manual_seed(3)
    again, same_gradient = results(kernel, 0.3)
    assert torch.equal(first, again) and torch.equal(gradient, same_gradient)
    assert not torch.allclose(first, plain, atol=1e-2)
    mean = torch.stack([results(kernel, 0.3)[0] for _ in range(200)]).mean(0)
    assert float((mean - plain).norm() / plain.norm()) < 0.1


def test_a_model_gives_the_packed_kernel_its_dropout(flash, monkeypatch) -> None:
    """The rate of the recipe in training, none in evaluation."""
    monkeypatch.setattr(attention, "kernel_for", lambda *_: "packed")
    model = random_model(
        section("bert", "attention_probs_dropout_prob=0.25", "hidden_dropout_prob=0.0"),
        SimpleNamespace(size=60),  # type: ignore[arg-type]
    )
    flash.clear()
    model.train()(batch_of(LENGTHS)).mlm_sum.backward()
    assert flash == [0.25] * 4
    flash.clear()
    model.eval()(batch_of(LENGTHS))
    assert flash == [0.0] * 4


@pytest.mark.parametrize("recompute", [False, True])
def test_recomputed_layers_drop_the_same_weights_in_the_packed_kernel(flash, monkeypatch, recompute: bool) -> None:
    monkeypatch.setattr(attention, "kernel_for", lambda *_: "packed")
    model = random_model(section("bert", "attention_probs_dropout_prob=0.25"), SimpleNamespace(size=60)).train()  # type: ignore[arg-type]
    found = []
    for model.encoder.recompute in (False, recompute):
        torch.manual_seed(0)
        loss = model(batch_of(LENGTHS)).mlm_sum
        found.append(
            torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.encoder.layers.parameters()))])
        )
    torch.testing.assert_close(*found, atol=1e-5, rtol=1e-5)


def test_a_grid_is_one_call_a_layer_and_reads_nothing_back(monkeypatch) -> None:
    """Of 64 sequences in 4 layers; one by one it is 256 calls, and the lengths are read back."""
    many = batch_of([7] * 64)
    model = random_model(section("bert"), SimpleNamespace(size=60)).train()  # type: ignore[arg-type]
    calls = {}
    for kernel in ("one by one", "padded"):
        monkeypatch.setattr(attention, "kernel_for", lambda *_, kernel=kernel: kernel)
        with Counts() as counts:
            loss = model(many).mlm_sum
        loss.backward()
        calls[kernel] = {
            "attention": sum(n for name, n in counts.calls.items() if "scaled_dot_product" in name),
            "read back": counts.calls.get("_local_scalar_dense", 0) + counts.calls.get("item", 0),
        }
    print(calls)
    assert calls["padded"] == {"attention": 4, "read back": 0}
    assert calls["one by one"]["attention"] == 4 * 64


def test_a_grid_needs_no_value_on_the_host(monkeypatch) -> None:
    """Tensors of the meta device have no values: reading one fails."""
    many = batch_of([7] * 64).to(torch.device("meta"))
    model = random_model(section("bert"), SimpleNamespace(size=60)).to("meta")  # type: ignore[arg-type]
    monkeypatch.setattr(attention, "kernel_for", lambda *_: "padded")
    model(many).mlm_sum.backward()
    monkeypatch.setattr(attention, "kernel_for", lambda *_: "one by one")
    with pytest.raises((NotImplementedError, RuntimeError), match="meta"):
        model(many)


@pytest.mark.parametrize("kernel", ["packed", "padded"])
def test_compiled_layers_have_no_graph_breaks(flash, monkeypatch, kernel: str) -> None:
    """Such as a lock, a read of a value or a kernel without a shape function. fullgraph=True raises at the first."""
    monkeypatch.setattr(attention, "kernel_for", lambda *_: kernel)
    torch._dynamo.reset()
    offsets = SequenceOffsets(batch_of(LENGTHS))
    qkv = torch.randn(sum(LENGTHS), 48, requires_grad=True)

    def layers(qkv: Tensor, offsets: SequenceOffsets) -> Tensor:
        return torch.cat([attention.attend(qkv, 2, offsets, 0.0) for _ in range(2)])

    found = torch.compile(layers, fullgraph=True, backend="aot_eager")(qkv, offsets)
    (gradient,) = torch.autograd.grad(found.square().sum(), qkv)
    expected = layers(qkv, offsets)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected.square().sum(), qkv)[0])


BF16 = torch.bfloat16
FP16 = torch.float16
FP32 = torch.float32
KERNELS = [
    ("cpu", FP32, 64, (0, 0), "one by one"),
    ("cpu", BF16, 64, (0, 0), "one by one"),
    ("cuda", BF16, 64, (8, 0), "packed"),
    ("cuda", FP16, 64, (9, 0), "packed"),
    ("cuda", FP16, 256, (8, 0), "packed"),
    ("cuda", FP16, 256, (9, 0), "packed"),
    ("cuda", FP16, 192, (8, 6), "packed"),
    ("cuda", FP16, 200, (8, 6), "padded"),  # RTX 3090
    ("cuda", BF16, 256, (8, 9), "padded"),  # RTX 4090
    ("cuda", BF16, 256, (12, 0), "padded"),  # RTX 5090
    ("cuda", FP16, 64, (7, 0), "padded"),  # V100
    ("cuda", FP16, 64, (7, 5), "padded"),  # T4
    ("cuda", BF16, 264, (9, 0), "padded"),
    ("cuda", BF16, 60, (9, 0), "padded"),
    ("cuda", FP32, 64, (9, 0), "padded"),
]


@pytest.mark.parametrize(("device", "dtype", "head", "capability", "kernel"), KERNELS)
def test_flash_attention_is_only_asked_for_what_it_can_do(device, dtype, head, capability, kernel) -> None:
    assert kernel_for(device, dtype, head, capability) == kernel
