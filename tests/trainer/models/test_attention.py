"""The attention kernels against each other, and what a GPU would be asked to do: kernels registered here stand in."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.small_models import SMALL_VOCABULARY, random_model, section
from tests.trainer.models.flash_stand_ins import torch_flash
from trainer.models import attention
from trainer.models.attention import (
    AttentionRule,
    attend_flash,
    attend_in_windows,
    attend_one_by_one,
    attend_padded,
    choose_flash,
    kernel_for,
    rotation_of,
    split_heads,
)
from trainer.models.batch import PackedBatch, SequenceOffsets

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


def attend_in_blocks(qkv_TNd: Tensor, offsets: SequenceOffsets, rule: AttentionRule) -> Tensor:
    return attend_in_windows(qkv_TNd, offsets.sequence_T, rule)


def attend_plainly(qkv_TNd: Tensor, offsets: SequenceOffsets, rule: AttentionRule) -> Tensor:
    """Attention as it is defined: over all pairs of tokens of a batch, those that may not attend masked."""
    q, k, v = (part.transpose(0, 1) for part in split_heads(qkv_TNd, rule.heads))
    places = torch.arange(len(qkv_TNd))
    distances = places[:, None] - places[None, :]
    seen = offsets.sequence_T[:, None] == offsets.sequence_T[None, :]
    if rule.window is not None:
        seen = seen & (distances.abs() <= rule.window)
    if rule.causal:
        seen = seen & (distances >= 0)
    scores = (q @ k.transpose(1, 2) / q.shape[-1] ** 0.5).masked_fill(~seen, float("-inf"))
    return (scores.softmax(-1) @ v).transpose(0, 1).flatten(1)


@pytest.fixture(scope="module")
def flash() -> Iterator[list[float]]:
    """Stand-ins for torch's flash attention. The list collects the forward calls' dropout_p."""
    with torch_flash() as seen:
        yield seen


PLAIN = AttentionRule(heads=2)
RULES = {
    "plain": PLAIN,
    "causal": AttentionRule(heads=2, causal=True),
    "window": AttentionRule(heads=2, window=2),
    "causal window": AttentionRule(heads=2, window=3, causal=True),
}
WHOLE_SEQUENCES = [attend_flash, attend_padded, attend_one_by_one]


def results(kernel, rule: AttentionRule = PLAIN, key_heads: int = 2, empty: int = 0) -> tuple[Tensor, Tensor]:
    """What a kernel computes of the same random numbers, and the gradient."""
    offsets = SequenceOffsets(batch_of(LENGTHS, empty))
    heads = rule.heads + 2 * key_heads
    qkv = torch.randn(sum(LENGTHS), heads, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()
    y_TD = kernel(qkv, offsets, rule)
    weights = torch.randn(y_TD.shape, generator=torch.Generator().manual_seed(1))
    return y_TD.detach(), torch.autograd.grad((y_TD * weights).sum(), qkv)[0]


CASES = [
    *[(kernel, rule) for kernel in WHOLE_SEQUENCES for rule in ("plain", "causal")],
    *[(kernel, rule) for kernel in (attend_flash, attend_in_blocks) for rule in ("window", "causal window")],
]


@pytest.mark.parametrize(("kernel", "rule"), CASES)
@pytest.mark.parametrize("key_heads", [2, 1])
@pytest.mark.parametrize("empty", [0, 3])
def test_every_kernel_computes_what_attention_is(flash, kernel, rule: str, key_heads: int, empty: int) -> None:
    """Also where two heads share their keys and values, and with sequences without tokens."""
    found = results(kernel, RULES[rule], key_heads, empty)
    expected = results(attend_plainly, RULES[rule], key_heads)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("key_heads", [2, 1])
def test_flash_attention_rotates_queries_and_keys(flash, monkeypatch, key_heads: int) -> None:
    """Apart from each other and without a copy of the values; other kernels take rotated projections."""
    rotation = rotation_of(batch_of(LENGTHS).positions_T, 100.0, 8)
    monkeypatch.setattr(attention, "kernel_for", lambda *_: "packed")
    found = results(lambda qkv, offsets, rule: attention.attend(qkv, offsets, rule, rotation), key_heads=key_heads)
    monkeypatch.setattr(attention, "kernel_for", lambda *_: "one by one")
    expected = results(lambda qkv, offsets, rule: attention.attend(qkv, offsets, rule, rotation), key_heads=key_heads)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)

    plain = results(attend_plainly, key_heads=key_heads)
    assert not torch.allclose(found[0], plain[0], atol=1e-2)


def test_the_triton_kernel_gets_rotated_projections(monkeypatch) -> None:
    monkeypatch.setattr(attention, "kernel_for", lambda *_: "packed")
    monkeypatch.setattr(attention, "attend_triton", lambda qkv_TNd, offsets, rule: qkv_TNd.flatten(1))
    offsets = SequenceOffsets(batch_of(LENGTHS))
    qkv = torch.randn(sum(LENGTHS), 6, 8)
    rotation = rotation_of(batch_of(LENGTHS).positions_T, 100.0, 8)
    found = attention.attend(qkv, offsets, AttentionRule(2, 0.1, triton=True), rotation).view_as(qkv)
    torch.testing.assert_close(found, attention.rotate_projections(qkv, 2, rotation))
    assert torch.equal(found[:, 4:], qkv[:, 4:]) and not torch.equal(found[:, :4], qkv[:, :4])


def test_flash_attention_keeps_no_projections_that_it_has_rotated(flash, monkeypatch) -> None:
    """Of a token's vectors: rotated queries and keys, values, and outputs."""
    monkeypatch.setattr(attention, "kernel_for", lambda *_: "packed")
    offsets = SequenceOffsets(batch_of(LENGTHS))
    rotation = rotation_of(batch_of(LENGTHS).positions_T, 100.0, 8)
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    weight = torch.randn(16, 48, requires_grad=True)
    x_TD = torch.randn(sum(LENGTHS), 16)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        attention.attend((x_TD @ weight).view(-1, 6, 8), offsets, AttentionRule(2), rotation)
    vectors = [size / (4 * x_TD.numel()) for size in kept.values() if size >= 4 * x_TD.numel()]
    assert sum(vectors) - 1 <= 4, "apart from x itself"


@given(
    lengths=st.lists(st.integers(1, 90), min_size=1, max_size=6),
    window=st.integers(1, 40),
    causal=st.booleans(),
    empty=st.integers(0, 2),
)
@settings(max_examples=60)
def test_blocks_compute_any_window(lengths: list[int], window: int, causal: bool, empty: int) -> None:
    offsets = SequenceOffsets(batch_of(lengths, empty))
    qkv = torch.randn(sum(lengths), 4, 4, generator=torch.Generator().manual_seed(0))
    rule = AttentionRule(2, window=window, causal=causal)
    found = attend_in_blocks(qkv, offsets, rule)
    torch.testing.assert_close(found, attend_plainly(qkv, offsets, rule), atol=1e-5, rtol=1e-5)


def test_rows_that_fit_into_the_window_take_no_blocks(monkeypatch) -> None:
    """Blocks compute twice the scores; a row of window + 1 tokens sees itself whole."""
    calls = []
    monkeypatch.setattr(attention, "attend_in_windows", lambda *_: calls.append("blocks") or torch.zeros(22, 16))
    offsets = SequenceOffsets(batch_of(LENGTHS))
    qkv = torch.randn(sum(LENGTHS), 6, 8)
    found = attention.attend(qkv, offsets, AttentionRule(2, window=8))
    assert calls == []
    torch.testing.assert_close(found, attend_plainly(qkv, offsets, AttentionRule(2, window=8)), atol=1e-5, rtol=1e-5)
    attention.attend(qkv, offsets, AttentionRule(2, window=7))
    assert calls == ["blocks"]


@pytest.mark.parametrize("kernel", [*WHOLE_SEQUENCES, attend_in_blocks])
def test_every_kernel_drops_attention_weights(flash, kernel) -> None:
    """Differently for each seed, equally for the same one, and on average not at all."""
    rule = AttentionRule(2, window=2 if kernel is attend_in_blocks else None)
    dropping = rule._replace(dropout=0.3)
    plain, _ = results(kernel, rule)
    torch.manual_seed(3)
    first, gradient = results(kernel, dropping)
    torch.manual_seed(3)
    again, same_gradient = results(kernel, dropping)
    assert torch.equal(first, again) and torch.equal(gradient, same_gradient)
    assert not torch.allclose(first, plain, atol=1e-2)
    mean = torch.stack([results(kernel, dropping)[0] for _ in range(200)]).mean(0)
    assert float((mean - plain).norm() / plain.norm()) < 0.1


def test_a_model_gives_the_packed_kernel_its_dropout(flash, monkeypatch) -> None:
    """The rate of the recipe in training, none in evaluation."""
    monkeypatch.setattr(attention, "kernel_for", lambda *_: "packed")
    model = random_model(
        section("bert", "attention_probs_dropout_prob=0.25", "hidden_dropout_prob=0.0"),
        SMALL_VOCABULARY,
    )
    flash.clear()
    model.train()(batch_of(LENGTHS)).mlm_sum.backward()
    assert flash == [0.25] * 4
    flash.clear()
    model.eval()(batch_of(LENGTHS))
    assert flash == [0.0] * 4


def test_recomputed_layers_drop_the_same_weights_in_the_packed_kernel(flash, monkeypatch) -> None:
    monkeypatch.setattr(attention, "kernel_for", lambda *_: "packed")
    model = random_model(section("bert", "attention_probs_dropout_prob=0.25"), SMALL_VOCABULARY).train()
    found = []
    for model.encoder.recompute in (False, True):
        torch.manual_seed(0)
        loss = model(batch_of(LENGTHS)).mlm_sum
        found.append(
            torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.encoder.layers.parameters()))])
        )
    torch.testing.assert_close(*found, atol=1e-5, rtol=1e-5)


def test_a_grid_needs_no_value_on_the_host(monkeypatch) -> None:
    """Tensors of the meta device have no values: reading one fails."""
    many = batch_of([7] * 64).to(torch.device("meta"))
    model = random_model(section("bert"), SMALL_VOCABULARY).to("meta")
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
        return torch.cat([attention.attend(qkv.view(-1, 6, 8), offsets, AttentionRule(2)) for _ in range(2)])

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


def test_flash_attention_3_is_used_where_torch_can(monkeypatch) -> None:
    """On an H100 with the package, without dropout; a package that fails is named and torch's own kernel stays."""
    activated = []
    monkeypatch.setattr(torch.nn.attention, "activate_flash_attention_impl", activated.append, raising=False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    assert choose_flash(0.0) == "FlashAttention-2 of torch", "the package is not installed"

    monkeypatch.setattr(attention, "FLASH_3_MODULE", "torch")
    assert choose_flash(0.1) == "FlashAttention-2 of torch" and activated == []
    assert choose_flash(0.0) == "FlashAttention-3" and activated == ["FA3"]

    monkeypatch.setattr(torch.nn.attention, "activate_flash_attention_impl", int)
    assert choose_flash(0.0).startswith("FlashAttention-2 of torch; not FlashAttention-3, because of ValueError: ")

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    assert choose_flash(0.0) == "FlashAttention-2 of torch"
