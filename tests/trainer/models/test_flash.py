"""Packed attention by other packages' kernels: results, copies, what is chosen. Stand-ins compute on the CPU."""

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.small_models import SMALL_VOCABULARY, random_model, section
from tests.trainer.models.flash_stand_ins import flash_3, torch_flash
from tests.trainer.models.test_attention import LENGTHS, Counts, batch_of
from trainer.models import attention, flash, flash_choice
from trainer.models.attention import attend_one_by_one
from trainer.models.attention_rule import AttentionRule
from trainer.models.batch import SequenceOffsets
from trainer.models.flash import AttendPacked, attend_with_flash_2, attend_with_flash_3, attend_with_torch
from trainer.models.flash_choice import HOPPER, FlashUse, choose_flash, difference_from_plain, installed_kernels
from trainer.models.pretraining import PretrainingModel

COPIES = ("stack", "cat", "copy_", "clone", "_to_copy")


@pytest.fixture(scope="module", autouse=True)
def stand_ins() -> Iterator[None]:
    with torch_flash(), flash_3():
        yield


def model_with(attend, monkeypatch) -> PretrainingModel:
    monkeypatch.setattr(attention, "kernel_for", lambda *_: "packed")
    small = section("bert", "attention_probs_dropout_prob=0.0", "hidden_dropout_prob=0.0")
    model = random_model(small, SMALL_VOCABULARY).train()
    model.encoder.use_flash(attend)
    return model


def loss_and_gradient(model) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    loss = model(batch_of(LENGTHS, empty=2)).mlm_sum
    gradients = torch.autograd.grad(loss, list(model.encoder.layers.parameters()))
    return loss.detach(), torch.cat([gradient.flatten() for gradient in gradients])


@pytest.mark.parametrize("attend", [attend_with_torch, attend_with_flash_3])
@pytest.mark.parametrize("recompute", [False, True])
def test_a_model_computes_the_same_as_one_by_one(monkeypatch, attend, recompute: bool) -> None:
    model = model_with(attend, monkeypatch)
    model.encoder.recompute = recompute
    found = loss_and_gradient(model)
    monkeypatch.setattr(attention, "kernel_for", lambda *_: "one by one")
    for one, other in zip(found, loss_and_gradient(model), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("window", "causal"), [(-1, False), (3, False), (-1, True)])
def test_flash_3_is_an_operator_that_torch_accepts(window: int, causal: bool) -> None:
    """Schemas, shapes, strides and gradients, eager and traced, as torch's own checks see them."""
    offsets = SequenceOffsets(batch_of(LENGTHS, empty=2))
    qkv = torch.randn(sum(LENGTHS), 6, 8, requires_grad=True)
    torch.library.opcheck(flash.flash_3, (qkv, offsets.ends_S1, offsets.longest, 2, window, causal))


def copies_in_backward(attend: AttendPacked) -> dict[str, int]:
    offsets = SequenceOffsets(batch_of(LENGTHS))
    qkv = torch.randn(sum(LENGTHS), 6, 8, requires_grad=True)
    y_TD = attend(qkv, offsets.ends_S1, offsets.longest, AttentionRule(2))
    with Counts() as counts:
        torch.autograd.grad(y_TD, qkv, torch.ones_like(y_TD))
    return {name: count for name, count in counts.calls.items() if name in COPIES}


def test_gradients_of_packed_tensors_are_not_stacked() -> None:
    """Outside the kernels, whose stand-ins copy what a GPU's kernel writes in place."""
    assert copies_in_backward(attend_with_torch) == {"cat": 1}
    assert copies_in_backward(attend_with_flash_3) == {}


@pytest.mark.parametrize("backend", ["aot_eager"])
def test_flash_3_is_compiled_without_graph_breaks(backend: str) -> None:
    torch._dynamo.reset()
    offsets = SequenceOffsets(batch_of(LENGTHS))
    qkv = torch.randn(sum(LENGTHS), 6, 8, requires_grad=True)
    compiled: Any = torch.compile(attend_with_flash_3, fullgraph=True, backend=backend)
    found = compiled(qkv, offsets.ends_S1, offsets.longest, AttentionRule(2))
    expected = attend_one_by_one(qkv, offsets, AttentionRule(2))  # type: ignore[call-arg]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    gradients = [torch.autograd.grad(y.square().sum(), qkv)[0] for y in (found, expected)]
    torch.testing.assert_close(*gradients, atol=1e-4, rtol=1e-4)


def test_flash_3_refuses_to_drop_weights() -> None:
    with pytest.raises(ValueError, match=r"dropout is 0\.1"):
        attend_with_flash_3(torch.randn(4, 6, 8), torch.tensor([0, 4], dtype=torch.int32), 4, AttentionRule(2, 0.1))


# Which kernel is chosen


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Packages that are installed as long as a test lasts, on an H100."""
    wrong_by = SimpleNamespace(factor=1.0, dropout=[])

    def varlen_qkvpacked(qkv, ends, longest, dropout_p, causal, window_size, deterministic):
        wrong_by.dropout.append(dropout_p)
        window = None if window_size == (-1, -1) else window_size[0]
        rule = AttentionRule(qkv.shape[2], dropout_p, window, causal)
        return attend_with_torch(qkv.flatten(1, 2), ends, longest, rule).view(qkv[:, 0].shape) * wrong_by.factor

    def varlen(q, k, v, ends, key_ends, longest, longest_key, **options):
        # Keys and values as many as queries: the stand-in has no other way.
        k, v = (part.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for part in (k, v))
        return varlen_qkvpacked(torch.stack([q, k, v], dim=1), ends, longest, **options)

    installed = {name: ModuleType(name) for name in (flash.FLASH_2_MODULE, flash.FLASH_3_MODULE)}
    installed[flash.FLASH_2_MODULE].flash_attn_varlen_qkvpacked_func = varlen_qkvpacked  # type: ignore[attr-defined]
    installed[flash.FLASH_2_MODULE].flash_attn_varlen_func = varlen  # type: ignore[attr-defined]
    for name, module in installed.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(flash_choice, "_is_installed", lambda name: name in sys.modules)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: wrong_by.capability)
    wrong_by.capability = HOPPER
    monkeypatch.setattr(flash, "flash_2_package", None)
    return wrong_by


LIKE = torch.zeros((), dtype=torch.bfloat16)


def use(dropout: float = 0.0, key_heads: int = 2, windows: tuple[int | None, ...] = (None,)) -> FlashUse:
    """What a model with two heads of 8 asks for."""
    rules = tuple(AttentionRule(2, dropout, window) for window in windows)
    return FlashUse(rules, 2 + 2 * key_heads, 8, LIKE)


def test_the_newest_kernel_that_can_do_it_is_chosen(packages) -> None:
    assert choose_flash(use()).attend is attend_with_flash_3
    assert choose_flash(use(0.1)).attend is attend_with_flash_2
    packages.capability = (8, 0)
    assert choose_flash(use()).attend is attend_with_flash_2
    attend_with_flash_2(torch.randn(4, 6, 8), torch.tensor([0, 4], dtype=torch.int32), 4, AttentionRule(2, 0.25))
    assert packages.dropout[-1] == 0.25


def test_flash_2_is_compiled_without_graph_breaks(packages) -> None:
    """An import inside would end the graph in every layer."""
    flash.import_flash_2()
    torch._dynamo.reset()
    offsets = SequenceOffsets(batch_of(LENGTHS))
    qkv = torch.randn(sum(LENGTHS), 6, 8, requires_grad=True)
    compiled: Any = torch.compile(attend_with_flash_2, fullgraph=True, backend="aot_eager")
    found = compiled(qkv, offsets.ends_S1, offsets.longest, AttentionRule(2))
    expected = attend_one_by_one(qkv, offsets, AttentionRule(2))  # type: ignore[call-arg]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_a_kernel_that_computes_something_else_is_not_used(packages) -> None:
    """Nor one that cannot be called. What is drawn later does not change by the check."""
    packages.factor = 1.1
    torch.manual_seed(5)
    chosen = choose_flash(use(0.1))
    assert chosen.attend is attend_with_torch
    assert "package flash_attn: differs from plain attention by" in chosen.faults[0]
    assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(5)))

    delattr(sys.modules[flash.FLASH_2_MODULE], "flash_attn_varlen_qkvpacked_func")
    assert "AttributeError" in choose_flash(use(0.1)).faults[0]


@pytest.mark.parametrize("capability", [HOPPER, (8, 0)])
def test_windows_and_shared_keys_are_checked_too(packages, capability: tuple[int, int]) -> None:
    packages.capability = capability
    asked = use(key_heads=1, windows=(None, 64))
    expected = attend_with_flash_3 if capability == HOPPER else attend_with_flash_2
    chosen = choose_flash(asked)
    assert (chosen.attend, chosen.faults) == (expected, ())

    def ignores_windows(qkv, ends, longest, rule):
        return expected(qkv, ends, longest, rule._replace(window=None))

    assert difference_from_plain(ignores_windows, asked, asked.rules[0]) < 0.02
    assert difference_from_plain(ignores_windows, asked, asked.rules[1]) > 0.1


def test_without_packages_it_is_torch_s() -> None:
    assert not flash_choice._is_installed("a_package_that_is_not_there")
    if torch.cuda.is_available():
        return
    assert installed_kernels(0.0, HOPPER) == []
