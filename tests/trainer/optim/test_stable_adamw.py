"""StableAdamW under ZeRO on several ranks against one unsharded float64 optimizer, written here from the paper.

Each takes 50 updates. What is compared are the float32 weights at the end.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.trainer.optim.zero_updates import (
    LR,
    cases_of,
    clipped_gradients,
    initial_model,
    largest_difference,
    recipe_of,
)
from trainer.config.sections import OptimizerSection

LIMIT = 1e-5
"""Of the difference of a weight, relative to the largest of its parameter."""

Update = Callable[[Tensor, Tensor, dict[str, Tensor], int], Tensor]
"""A parameter after update t, from its value, gradient, state and t."""


def adamw(section: OptimizerSection, clips: bool) -> Update:
    """AdamW (arXiv:1711.05101), or with `clips` algorithm 2 of arXiv:2304.13013, in which decay rates correct bias."""

    def update(w: Tensor, g: Tensor, state: dict[str, Tensor], t: int) -> Tensor:
        beta_1, beta_2 = (beta * (1 - beta ** (t - 1)) / (1 - beta**t) for beta in section.betas)
        m = beta_1 * state.get("m", torch.zeros_like(w)) + (1 - beta_1) * g
        v = beta_2 * state.get("v", torch.zeros_like(w)) + (1 - beta_2) * g * g
        state |= {"m": m, "v": v}

        rms = (g * g / v.clamp(min=section.eps**2)).mean().sqrt()
        rate = LR / max(1.0, float(rms)) if clips else LR
        decay = section.weight_decay if w.dim() > 1 else 0.0
        return w - rate * decay * w - rate * m / (v.sqrt() + section.eps)

    return update


def unsharded(update: Update) -> dict[str, Tensor]:
    """The weights after all updates, in float64."""
    model = initial_model(recipe_of("stable_adamw-0-fp32"))
    weights = {name: p.detach().double() for name, p in model.named_parameters()}
    state: dict[str, dict[str, Tensor]] = {name: {} for name in weights}
    for t, gradients in enumerate(clipped_gradients("stable_adamw"), start=1):
        for name, g in gradients.items():
            weights[name] = update(weights[name], g, state[name], t)
    return weights


@pytest.fixture(scope="module")
def expected() -> dict[str, Tensor]:
    return unsharded(adamw(recipe_of("stable_adamw-0-fp32").optimizer, clips=True))


@pytest.fixture(scope="module")
def by_adamw() -> dict[str, Tensor]:
    return unsharded(adamw(recipe_of("stable_adamw-0-fp32").optimizer, clips=False))


def check(out: Path, cases: list[str], expected: dict[str, Tensor], by_adamw: dict[str, Tensor]) -> None:
    """Every case within the limit of the reference, and far away from plain AdamW's."""
    for case in cases:
        found = {name: weight.double() for name, weight in load_file(out / f"{case}.safetensors").items()}
        difference = largest_difference(found, expected)
        print(f"{case}: {difference:.1e}")
        assert difference < LIMIT, case
        assert largest_difference(found, by_adamw) > 1e-2, case


ALL = cases_of("stable_adamw")
SOME = ["stable_adamw-0-bf16", "stable_adamw-1-bf16", "stable_adamw-2-fp32"]


@pytest.mark.parametrize(
    ("ranks", "cases"),
    [
        (2, SOME),
        pytest.param(1, ALL, marks=pytest.mark.thorough),
        pytest.param(2, ALL, marks=pytest.mark.thorough),
        pytest.param(4, ALL, marks=pytest.mark.thorough),
    ],
    ids=["2, some", "1", "2", "4"],
)
def test_zero_changes_no_optimizer(run, tmp_path: Path, ranks: int, cases: list[str], expected, by_adamw) -> None:
    launcher = ("torchrun", "--nproc_per_node", ranks) if ranks > 1 else ("python",)
    done = run(*launcher, "tests/trainer/optim/zero_updates.py", tmp_path, *cases, DS_ACCELERATOR="cpu")
    assert done.returncode == 0, done.stderr
    check(tmp_path, cases, expected, by_adamw)


@pytest.mark.gpu
def test_zero_changes_no_optimizer_on_a_gpu(run, tmp_path: Path, expected, by_adamw) -> None:
    done = run("python", "tests/trainer/optim/zero_updates.py", tmp_path, *ALL)
    assert done.returncode == 0, done.stderr
    check(tmp_path, ALL, expected, by_adamw)
