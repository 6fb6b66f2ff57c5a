"""Each optimizer under ZeRO on several ranks against one unsharded float64 optimizer, written here from the papers.

What is compared are the float32 weights at the end. They would be far off if gradients of micro-batches and ranks were
added up in 16 bits at any stage. A run by LAMB or StableAdamW also resumes in other layouts.
"""

from functools import cache
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
from tests.trainer.ranks import run_ranks
from trainer.config.sections import OptimizerSection

OFFLOADED = ["adamw-1-bf16-optimizer", "adamw-2-bf16-optimizer", "adamw-3-bf16-parameters"]
ALL = [*cases_of("lamb", "adamw", "stable_adamw"), "adamw-3-fp32", "adamw-3-bf16", *OFFLOADED]
SOME = [*cases_of("lamb"), "adamw-0-bf16", "adamw-1-fp32", "adamw-2-bf16", "adamw-3-bf16", "stable_adamw-1-bf16"]
OTHER = {"lamb": "adamw", "adamw": "lamb", "stable_adamw": "adamw"}
"""An optimizer that each must be told apart from."""


def moved(kind: str, section: OptimizerSection, w: Tensor, g: Tensor, state: dict[str, Tensor], t: int) -> Tensor:
    """A tensor after update t: arXiv:1711.05101 (AdamW), or algorithm 2 of 1904.00962 (LAMB) or of 2304.13013.

    The decay rates correct the bias of the moments, as in the last of them.
    """
    beta_1, beta_2 = (beta * (1 - beta ** (t - 1)) / (1 - beta**t) for beta in section.betas)
    m = beta_1 * state.get("m", torch.zeros_like(w)) + (1 - beta_1) * g
    v = beta_2 * state.get("v", torch.zeros_like(w)) + (1 - beta_2) * g * g
    state |= {"m": m, "v": v}

    r = m / (v.sqrt() + section.eps)
    if w.dim() > 1:
        r = r + section.weight_decay * w
    if kind == "lamb" and w.dim() > 1:
        r = r * w.norm() / r.norm()
    if kind == "stable_adamw":
        rms = (g * g / v.clamp(min=section.eps**2)).mean().sqrt()
        r = r / max(1.0, float(rms))
    return w - LR * r


def matrices(kind: str, name: str, weight: Tensor) -> list[Tensor]:
    """For LAMB, query, key and value are three matrices in one parameter."""
    return list(weight.chunk(3)) if kind == "lamb" and name.endswith("qkv.weight") else [weight]


@cache
def unsharded(kind: str, gradients_of: str) -> dict[str, Tensor]:
    """The weights after an update with each of the gradients that the other optimizer gets."""
    recipe = recipe_of(f"{kind}-0-fp32")
    weights = {name: p.detach().double() for name, p in initial_model(recipe).named_parameters()}
    states: dict[str, list[dict[str, Tensor]]] = {name: [{}, {}, {}] for name in weights}
    for t, gradients in enumerate(clipped_gradients(gradients_of), start=1):
        for name, gradient in gradients.items():
            parts = zip(matrices(kind, name, weights[name]), matrices(kind, name, gradient), states[name], strict=False)
            weights[name] = torch.cat([moved(kind, recipe.optimizer, w, g, state, t) for w, g, state in parts])
    return weights


def check(out: Path, cases: list[str]) -> None:
    """Every case within 1e-5 of its own reference, and a hundred times that away from the other optimizer's."""
    for case in cases:
        kind = case.split("-")[0]
        found = {name: weight.double() for name, weight in load_file(out / f"{case}.safetensors").items()}
        difference = largest_difference(found, unsharded(kind, kind))
        print(f"{case}: {difference:.1e}")
        assert difference < 1e-5, case
        assert largest_difference(found, unsharded(OTHER[kind], kind)) > 1e-3, case


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
def test_zero_changes_no_optimizer(tmp_path: Path, ranks: int, cases: list[str]) -> None:
    done = run_ranks(ranks, [str(tmp_path), *cases], program="tests.trainer.optim.zero_updates")
    assert done.returncode == 0, done.stderr
    check(tmp_path, cases)


@pytest.mark.gpu
def test_zero_changes_no_optimizer_on_a_gpu(run, tmp_path: Path) -> None:
    done = run("python", "tests/trainer/optim/zero_updates.py", tmp_path, *ALL)
    assert done.returncode == 0, done.stderr
    check(tmp_path, ALL)


STEPS = 6
PLAIN = {
    "model__hidden_dropout_prob": 0.0,  # dropout is drawn per rank
    "model__attention_probs_dropout_prob": 0.0,
    "run__max_steps": STEPS,
    "checkpoint__every": 99,
    "optimizer__lr": 1e-3,
}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["lamb", "stable_adamw"])
def test_a_stopped_run_goes_on_in_another_layout(training, tmp_path: Path, kind: str) -> None:
    """Stage 1 on two ranks in float32; to the last bit there, elsewhere up to the order of summation."""
    base = PLAIN | {"optimizer__kind": kind, "engine__zero_stage": 1}

    def go(out: Path, ranks: int, **changes: object) -> dict[int, tuple]:
        done = training.warm(ranks, out, **base | changes)
        assert done.returncode == 0, done.stderr
        return training.losses(out)

    expected = go(tmp_path / "straight", 2)
    assert expected[STEPS][1] < expected[1][1] - 0.03, "it learns"
    for name in ("same", "1 2", "2 0"):
        go(tmp_path / name, 2, run__stop_at=3)

    assert go(tmp_path / "same", 2) == expected
    assert training.tensors(tmp_path / "same", STEPS) == training.tensors(tmp_path / "straight", STEPS)

    worst = 0.0
    for ranks, stage in ((1, 2), (2, 0)):
        found = go(tmp_path / f"{ranks} {stage}", ranks, engine__zero_stage=stage)
        assert list(found) == list(expected)
        worst = max([worst, *(abs(line[1] / expected[step][1] - 1) for step, line in found.items())])
    print(f"{kind}: losses differ by {worst:.1e} at most")
    assert worst < 1e-5
