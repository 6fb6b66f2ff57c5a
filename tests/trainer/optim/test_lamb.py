"""LAMB and AdamW under ZeRO on several ranks against one unsharded LAMB and AdamW, written here from the papers."""

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

CASES = cases_of("lamb", "adamw")


def matrices(name: str, weight: Tensor) -> list[Tensor]:
    """Query, key and value are three matrices in one parameter."""
    return list(weight.chunk(3)) if name.endswith("qkv.weight") else [weight]


def moved(part: tuple[Tensor, ...], t: int, section: OptimizerSection, ratios: bool) -> Tensor:
    """A matrix or vector after update t: algorithm 2 of arXiv:1904.00962, or without `ratios` that of 1711.05101."""
    w, g, m, v = part
    beta_1, beta_2 = section.betas
    m.copy_(beta_1 * m + (1 - beta_1) * g)
    v.copy_(beta_2 * v + (1 - beta_2) * g * g)
    r = m / (1 - beta_1**t) / ((v / (1 - beta_2**t)).sqrt() + section.eps)
    if w.dim() > 1:
        r = r + section.weight_decay * w
        r = r * w.norm() / r.norm() if ratios else r
    return w - LR * r


def unsharded(case: str, ratios: bool, gradients: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The weights after one update with each of the gradients, all in float64."""
    recipe = recipe_of(case)
    weights = {name: p.detach().double() for name, p in initial_model(recipe).named_parameters()}
    state = {name: (torch.zeros_like(w), torch.zeros_like(w)) for name, w in weights.items()}
    for step, found in enumerate(gradients):
        for name, w in weights.items():
            parts = zip(*(matrices(name, x) for x in (w, found[name], *state[name])), strict=True)
            weights[name] = torch.cat([moved(part, step + 1, recipe.optimizer, ratios) for part in parts])
    return weights


def check(out: Path, cases: list[str]) -> None:
    """Every case within 1e-5 of its own reference, and a hundred times that away from the other optimizer's."""
    gradients = clipped_gradients("lamb")
    for case in cases:
        found = {name: weight.double() for name, weight in load_file(out / f"{case}.safetensors").items()}
        lamb = case.startswith("lamb")
        difference = largest_difference(found, unsharded(case, lamb, gradients))
        print(f"{case}: {difference:.1e}")
        assert difference < 1e-5, case
        assert largest_difference(found, unsharded(case, not lamb, gradients)) > 1e-3


@pytest.mark.parametrize(
    ("ranks", "cases"),
    [
        (2, CASES),
        pytest.param(1, CASES, marks=pytest.mark.thorough),
        pytest.param(4, ["lamb-1-bf16", "lamb-2-fp32"], marks=pytest.mark.thorough),
    ],
)
def test_zero_changes_no_optimizer(run, tmp_path: Path, ranks: int, cases: list[str]) -> None:
    launcher = ("torchrun", "--nproc_per_node", ranks) if ranks > 1 else ("python",)
    done = run(*launcher, "tests/trainer/optim/zero_updates.py", tmp_path, *cases, DS_ACCELERATOR="cpu")
    assert done.returncode == 0, done.stderr
    check(tmp_path, cases)


@pytest.mark.gpu
def test_zero_changes_no_optimizer_on_a_gpu(run, tmp_path: Path) -> None:
    done = run("python", "tests/trainer/optim/zero_updates.py", tmp_path, *CASES)
    assert done.returncode == 0, done.stderr
    check(tmp_path, CASES)
