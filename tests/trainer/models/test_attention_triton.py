"""The Triton attention kernel against plain attention whose dropout mask is drawn here.

    TRITON_INTERPRET=1 python -m pytest tests/trainer/models/test_attention_triton.py

interprets the kernels on a CPU, in float32; the package triton has to be installed. tests/gpu has what a card shows.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.small_models import SMALL_VOCABULARY, random_model, section
from tests.trainer.models.test_attention import LENGTHS, batch_of
from trainer.attention_choice import rule_of, set_triton
from trainer.models import attention, attention_trial
from trainer.models.attention import AttentionRule, Rotation, attend_one_by_one, attend_triton
from trainer.models.attention_trial import Check, checks_of, fault_of_kernel, kept_weights
from trainer.models.batch import SequenceOffsets
from trainer.models.encoder import Attention

if importlib.util.find_spec("triton") is None:
    pytest.skip("the package triton is not installed", allow_module_level=True)

interpreted = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs TRITON_INTERPRET=1")


@pytest.fixture(scope="module", autouse=True)
def kernels() -> Iterator[None]:
    """The operators. Triton 3.6's interpreter turns arrays of one value into indices, which NumPy 2.4 refuses."""
    from triton.runtime import interpreter  # type: ignore[import-not-found]

    importlib.import_module("trainer.models.attention_triton")
    patch_tensors = interpreter._patch_lang_tensor

    def patch_tensors_and_indices(tensor, scope) -> None:
        patch_tensors(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_lang_tensor", patch_tensors_and_indices)
        yield


def mixed(numbers: np.ndarray) -> np.ndarray:
    numbers = (numbers ^ (numbers >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    numbers = (numbers ^ (numbers >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return numbers ^ (numbers >> np.uint32(16))


def kept(seed: Tensor, start: int, length: int, rule: AttentionRule) -> Tensor:
    """(H, L, L), in uint32, which overflows as the kernel's numbers do."""
    heads = np.arange(rule.heads, dtype=np.uint32)
    places = np.arange(length, dtype=np.uint32)
    first, second = seed.numpy().astype(np.uint32)
    queries = mixed(mixed((places + np.uint32(start)) * np.uint32(rule.heads) + heads[:, None] ^ first) ^ second)
    drawn = (queries[:, :, None] ^ mixed(places)) * np.uint32(0x9E3779B1)
    drawn = (drawn ^ (drawn >> np.uint32(15))) * np.uint32(0x85EBCA77)
    return torch.from_numpy(drawn >= np.uint32(int(rule.dropout * 2**32)))


def attend_plainly(qkv_TNd: Tensor, ends: list[int], rule: AttentionRule, seed: Tensor) -> Tensor:
    outputs = []
    for start, end in pairwise(ends):
        q, k, v = (part.transpose(0, 1).double() for part in qkv_TNd[start:end].chunk(3, dim=1))
        scores = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5
        if rule.window is not None:
            places = torch.arange(end - start)
            scores[:, (places[:, None] - places).abs() > rule.window] = float("-inf")
        weights = scores.softmax(-1)
        mask = kept(seed, start, end - start, rule)
        outputs.append((weights * mask / (1 - rule.dropout) @ v).transpose(0, 1))
    return torch.cat(outputs).to(qkv_TNd.dtype)


CASES = [
    ([5, 9, 0, 1, 33], 64, 0.1, None),  # one block of a few tokens; the longest is less than it may be
    ([64, 3, 17], 32, 0.5, None),
    ([128, 100, 0, 65], 64, 0.1, None),
    ([1, 129, 300, 0, 64], 64, 0.1, None),
    ([512], 64, 0.1, None),
    ([200, 40], 128, 0.9, None),
    ([150, 7], 64, 0.0, None),
    ([5, 9, 0, 1, 33], 64, 0.0, 4),
    ([128, 100, 65], 64, 0.0, 64),  # one block, or no more than the window
    ([1, 129, 400, 0, 64], 64, 0.0, 64),
    ([600, 70], 32, 0.0, 1),
    ([330], 64, 0.0, 200),
    ([300, 130], 128, 0.5, 33),
]


@interpreted
@pytest.mark.parametrize(("lengths", "head_size", "dropout", "window"), CASES)
def test_outputs_and_gradients_are_those_of_plain_attention(
    lengths: list[int], head_size: int, dropout: float, window: int | None
) -> None:
    rule = AttentionRule(2, dropout, window)
    ends = [0, *np.cumsum(lengths).tolist()]
    generator = torch.Generator().manual_seed(len(lengths))
    qkv = torch.randn(ends[-1], 6, head_size, generator=generator).requires_grad_()
    dout = torch.randn(ends[-1], 2, head_size, generator=generator)
    seed = torch.tensor([2**31 - 2, 12345])

    offsets = SimpleNamespace(ends_S1=torch.tensor(ends).int(), longest=max(lengths) + 5)
    found = attend_triton(qkv, offsets, rule, seed).view_as(dout)
    expected = attend_plainly(qkv, ends, rule, seed)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)

    (gradient,) = torch.autograd.grad(found, qkv, dout)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, qkv, dout)[0], atol=1e-4, rtol=1e-4)


def test_the_trial_draws_the_same_masks() -> None:
    seed = torch.tensor([1, 2**31 - 2])
    for dropout in (0.1, 0.5, 0.9):
        rule = AttentionRule(16, dropout)
        assert torch.equal(kept_weights(seed, 70_000, 200, rule), kept(seed, 70_000, 200, rule))


@interpreted
def test_the_trial_passes_the_kernel_and_finds_another_mask(monkeypatch) -> None:
    monkeypatch.setattr(attention_trial, "CHECKED_LENGTHS", (90, 1, 40))
    like = torch.empty(64, dtype=torch.float16)
    for check in checks_of(AttentionRule(2, 0.1, window=9), 140):
        assert fault_of_kernel(check, 64, like) is None
    monkeypatch.setattr(attention_trial, "threshold_of", lambda dropout: int(dropout * 1.1 * 2**32))
    found = fault_of_kernel(Check(AttentionRule(2, 0.1), 128), 64, like)
    assert found is not None and found.startswith("its outputs are ")


@interpreted
def test_a_model_with_windows_trains_with_the_kernel(monkeypatch) -> None:
    """As one without it: in two of three layers, with rotated queries and keys."""
    model = random_model(section("modernbert"), SMALL_VOCABULARY).train()
    batch = batch_of([40, 9, 1, 23])

    def gradients() -> Tensor:
        loss = model(batch).mlm_sum
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.encoder.layers.parameters()))])

    expected = gradients()
    monkeypatch.setattr(attention, "kernel_for", lambda *_: "packed")
    monkeypatch.setattr(attention, "attend_flash", attend_without_flash)
    set_triton(model, {rule_of(model.encoder.shape, 3): 16})
    assert [module.triton for module in model.modules() if isinstance(module, Attention)] == [False, True, True, False]
    torch.testing.assert_close(gradients(), expected, atol=1e-5, rtol=1e-4)


def attend_without_flash(qkv_TNd: Tensor, offsets: SequenceOffsets, rule: AttentionRule, rotation: Rotation) -> Tensor:
    return attend_one_by_one(attention.rotate_projections(qkv_TNd, rule.heads, rotation), offsets, rule)


@interpreted
def test_compiled_layers_have_no_graph_breaks(monkeypatch) -> None:
    monkeypatch.setattr(attention, "kernel_for", lambda *_: "packed")
    torch._dynamo.reset()
    offsets = SequenceOffsets(batch_of(LENGTHS))
    qkv = torch.randn(sum(LENGTHS), 6, 32, requires_grad=True)
    rule = AttentionRule(2, 0.1, triton=True)

    def layers(qkv: Tensor, offsets: SequenceOffsets) -> Tensor:
        return torch.cat([attention.attend(qkv, offsets, rule) for _ in range(2)])

    found = torch.compile(layers, fullgraph=True, backend="aot_eager")
    torch.manual_seed(0)
    (gradient,) = torch.autograd.grad(found(qkv, offsets).square().sum(), qkv)
    torch.manual_seed(0)
    torch.testing.assert_close(gradient, torch.autograd.grad(layers(qkv, offsets).square().sum(), qkv)[0])


COMPILING = """
import json
import sys
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
import triton
from trainer.models import attention_triton as kernels

POINTERS = {"sums": "*fp32", "deltas": "*fp32", "ends": "*i32", "seed": "*i64", "tokens": "i32", "blocks": "i32"}
HALVES = ("qkv", "out", "dout", "dqkv")

def shared_memory(kernel, size, constants, dtype):
    types = {name: POINTERS.get(name, f"*{dtype}" if name in HALVES else "constexpr") for name in kernel.arg_names}
    options = size.options()
    values = constants | {name: options.pop(name) for name in "MN"}
    fixed = {name: values[name] for name, type in types.items() if type == "constexpr"}
    aligned = {(i,): [["tt.divisibility", 16]] for i, type in enumerate(types.values()) if type.startswith("*")}
    source = ASTSource(kernel, types, fixed, aligned)
    return triton.compile(source, GPUTarget("cuda", int(sys.argv[2]), 32), options).metadata.shared

found = {}
for longest, head_size, dropout, window in json.loads(sys.argv[1]):
    constants = kernels.constants_of(16, head_size, dropout, window) | {"WITH_DQ": longest <= kernels.ONE_BLOCK}
    sizes = {
        "_packed_attention_forward": kernels.forward_blocks(head_size),
        "_packed_attention_backward_q": kernels.query_blocks(head_size),
        "_packed_attention_backward_kv": kernels.key_blocks(longest, head_size),
    }
    for name, size in sizes.items():
        shared = shared_memory(getattr(kernels, name), size, constants, "bf16")
        found[f"{name}, rows of {longest}, heads of {head_size}"] = shared
print(json.dumps(found))
"""

KILOBYTES = {80: 163, 86: 99, 90: 227}
"""The shared memory of a program on A100, on RTX 3090 and 4090, and on H100, by compute capability."""


@pytest.mark.parametrize("capability", KILOBYTES)
def test_kernels_compile_for_gpus(tmp_path, capability: int) -> None:
    """In a process that does not interpret them, without a GPU."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    sizes = json.dumps(
        [[64, 32, 0.1, -1], [128, 64, 0.1, -1], [512, 64, 0.1, -1], [512, 128, 0.1, -1], [8192, 64, 0.0, 64]]
    )
    words = [sys.executable, "-c", COMPILING, sizes, str(capability)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    print(found)
    assert len(found) == 15 and max(found.values()) <= 1024 * KILOBYTES[capability]
