"""Dropout and GELU of fused layers, which GPUs alone have: what they compute is shown here on a CPU."""

from types import SimpleNamespace
from typing import cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from trainer.models import fused
from trainer.models.fused import Dropout, FusedGelu, gelu, is_kept, phi


@pytest.fixture
def fusing(monkeypatch) -> None:
    """Let a CPU compute what torch.compile would fuse for a GPU."""
    monkeypatch.setattr(fused, "is_fused", lambda _: True)


def test_gelu_in_float32_is_torchs(fusing) -> None:
    x = torch.randn(100)
    assert torch.equal(gelu(x), F.gelu(x))
    assert torch.equal(gelu(x.bfloat16()), FusedGelu.apply(x.bfloat16()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gelu_and_its_gradient_are_exact_but_for_rounding(dtype: torch.dtype) -> None:
    x = torch.linspace(-12, 12, 400_001).to(dtype).requires_grad_()
    exact = x.detach().double().requires_grad_()
    activated, expected = FusedGelu.apply(x), F.gelu(exact)

    half_a_unit = 0.501 * torch.finfo(dtype).eps
    torch.testing.assert_close(activated.double(), expected, rtol=half_a_unit, atol=1e-6)
    (slope,) = torch.autograd.grad(activated.sum(), x)
    (exact_slope,) = torch.autograd.grad(expected.sum(), exact)
    torch.testing.assert_close(slope.double(), exact_slope, rtol=half_a_unit, atol=1e-6)


def test_the_normal_distribution_is_right_from_tail_to_tail() -> None:
    x = torch.linspace(-40, 40, 800_001)
    found, expected = phi(x).double(), torch.special.ndtr(x.double())
    torch.testing.assert_close(found, expected, rtol=9e-6, atol=1e-10)
    assert (found.diff() >= -1e-7).all() and found[0] == 0 and found[-1] == 1


def random_keys(rows: int, columns: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(-(2**31), 2**31, (rows + columns,), generator=generator).int()
    return drawn[:rows, None], drawn[rows:]


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_values_are_dropped_independently(p: float) -> None:
    """The share is p in all rows and columns; no two values, neighbors or corners of a rectangle go together."""
    rows, columns = 2048, 1024
    kept = is_kept(*random_keys(rows, columns), p).double()
    assert float(kept.mean()) == pytest.approx(1 - p, abs=5 * (p * (1 - p) / kept.numel()) ** 0.5)

    # Standardized, means of n independent products are normal with deviation n ** -0.5.
    z = (kept - (1 - p)) / (p * (1 - p)) ** 0.5
    sums = {
        "rows": z.mean(1) * columns**0.5,
        "columns": z.mean(0) * rows**0.5,
        "two rows": torch.triu(z @ z.T, 1)[:-1, 1:] / columns**0.5,
        "two columns": torch.triu(z.T @ z, 1)[:-1, 1:] / rows**0.5,
        "corners": (z[1:, 1:] * z[1:, :-1] * z[:-1, 1:] * z[:-1, :-1]).mean().mul(z.numel() ** 0.5),
    }
    for name, values in sums.items():
        assert float(values.abs().max()) < 6.5, name
    assert float(sums["rows"].std()) == pytest.approx(1, abs=0.1)


def test_only_layers_that_are_compiled_for_gpus_have_them(monkeypatch) -> None:
    on_gpu, on_cpu = (cast(Tensor, SimpleNamespace(device=torch.device(name))) for name in ("cuda", "cpu"))
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert fused.is_fused(on_gpu) and not fused.is_fused(on_cpu)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: False)
    assert not fused.is_fused(on_gpu)

    x = torch.randn(40, 8, dtype=torch.bfloat16)
    torch.manual_seed(0)
    found = Dropout(0.3)(x)
    torch.manual_seed(0)
    assert torch.equal(found, nn.Dropout(0.3)(x))
    assert torch.equal(gelu(x), F.gelu(x))


def test_the_backward_pass_drops_the_same_values(fusing) -> None:
    torch._dynamo.reset()
    dropout = Dropout(0.3)
    compiled = torch.compile(dropout, fullgraph=True, backend="aot_eager")
    x = torch.randn(200, 96).requires_grad_()

    def outputs_and_gradients(function) -> tuple[Tensor, Tensor]:
        torch.manual_seed(3)
        y = function(x)
        return y.detach(), torch.autograd.grad(y, x, torch.ones_like(x))[0]

    found = outputs_and_gradients(compiled)
    torch.testing.assert_close(found[0], x * found[1])
    torch.testing.assert_close(found[1].unique(), torch.tensor([0.0, 1 / 0.7]))
    recomputed = [
        lambda x, function=function: checkpoint(function, x, use_reentrant=False) for function in (dropout, compiled)
    ]
    for other in (dropout, *recomputed):
        torch.testing.assert_close(outputs_and_gradients(other), found)

    assert not torch.equal(compiled(x), compiled(x)), "each call draws another mask"
    assert torch.equal(dropout.eval()(x), x)
