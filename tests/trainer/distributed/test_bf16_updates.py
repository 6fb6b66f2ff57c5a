"""The updates of bf16 models at stage 1, and that a step of any stage waits for nothing."""

from __future__ import annotations

import gc
import json
import subprocess
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.conftest import UNFREEZE
from tests.forked import Command
from tests.small_models import SMALL_VOCABULARY, section
from tests.trainer.one_rank import group_of_one, small_batch, small_engine, small_recipe
from tests.trainer.ranks import environments
from trainer.anomaly import AnomalyGuard, AnomalyHistory
from trainer.distributed.deepspeed_internals import basic_optimizer
from trainer.distributed.zero import parameter_slices
from trainer.metrics.sums import StepResult
from trainer.models.encoder import Embedding, LayerNorm, parameters_of_unshared_layers
from trainer.models.starting_weights import empty_model
from trainer.optim.lr_schedule import set_learning_rate
from trainer.step import Stepper

WAITS = "tests.trainer.distributed.step_waits"
OPTIMIZERS = ["adamw", "lamb", "stable_adamw"]
LAYOUTS = ["0-fp32", "1-fp32", "1-bf16", "2-bf16"]
CASES = [*product(LAYOUTS, OPTIMIZERS), ("3-bf16", "adamw")]
"""Only AdamW has stage 3."""


@pytest.fixture
def group() -> Iterator[None]:
    with group_of_one():
        yield


@pytest.mark.parametrize(
    ("family", "changes", "shared"),
    [
        ("bert", [], []),
        ("modernbert", [], []),
        ("electra", ["embedding_size=32", "generator_size=0.5"], []),
        ("albert", ["num_hidden_groups=2", "sharing=all"], ["layers"]),
        ("albert", ["num_hidden_groups=2", "sharing=attention"], ["attention", "attention_norm"]),
        ("albert", ["num_hidden_groups=2", "sharing=feed_forward"], ["up", "down", "norm"]),
    ],
)
def test_layers_that_are_not_shared(family: str, changes: list[str], shared: list[str]) -> None:
    """Each of their parameters has one gradient in a backward pass, which needs no addition to others in float32."""
    model = empty_model(section(family, *changes), SMALL_VOCABULARY.size, SMALL_VOCABULARY.special_id("mask"))
    names = {parameter: name.split(".") for name, parameter in model.named_parameters()}
    expected = {parameter for parameter, parts in names.items() if "layers" in parts and not {*parts} & {*shared}}
    assert parameters_of_unshared_layers(model) == expected


@pytest.mark.parametrize("layer", [Embedding(3, 8), LayerNorm(8)])
def test_gradients_over_many_tokens_are_summed_in_float32(layer: nn.Module) -> None:
    """torch's own kernels on CPUs add up 16-bit gradients of these layers token after token, which stops growing."""
    inputs = torch.ones(3000, dtype=torch.int64) if isinstance(layer, Embedding) else torch.randn(3000, 8).bfloat16()
    layer.bfloat16()(inputs).sum().backward()
    found = layer.weight.grad[1] if isinstance(layer, Embedding) else layer.bias.grad  # type: ignore[index]
    assert found.tolist() == pytest.approx([3000.0] * 8, rel=0.01)  # type: ignore[union-attr]


def state_of(engine: Any) -> dict[str, Tensor]:
    """Copies of all weights and moments."""
    parts = parameter_slices(engine)
    values = {f"{part.name} weights": part.weights.clone() for part in parts}
    values |= {f"{part.name} {name}": moment.clone() for part in parts for name, moment in part.moments.items()}
    return values


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return all(torch.equal(value, b[name]) for name, value in a.items())


def step(stepper: Stepper, engine: Any, number: int, following: int) -> StepResult:
    set_learning_rate(engine.optimizer, 1e-2)
    assert stepper.compute(number, [small_batch(number)], lambda: False)
    stepper.exchange([small_batch(following)])
    stepper.update()
    result = stepper.settle()
    assert result is not None
    return result


@pytest.mark.parametrize(("layout", "kind"), CASES)
def test_a_bad_step_leaves_no_trace(group: None, layout: str, kind: str) -> None:
    """A step with a NaN changes nothing, and the next good ones are those of a run without it."""
    stage, precision = layout.split("-")
    recipe = small_recipe(
        f"optimizer.kind={kind}", f"engine.zero_stage={stage}", f"engine.precision={precision}", "optimizer.clip=1"
    )
    ends = []
    for with_fault in (False, True):
        torch.manual_seed(0)
        engine: Any = small_engine(recipe)
        stepper = Stepper(engine, AnomalyGuard(engine, recipe.anomaly, AnomalyHistory(), recipe.optimizer.clip))
        assert step(stepper, engine, 1, 2 if with_fault else 3).fault is None

        if with_fault:
            before = state_of(engine)
            hook = engine.module.register_forward_hook(
                lambda module, inputs, losses: losses._replace(mlm_sum=losses.mlm_sum * torch.nan)
            )
            assert step(stepper, engine, 2, 3).fault == "the loss is not finite"
            hook.remove()
            assert equal(before, state_of(engine))

        assert [step(stepper, engine, number, number + 1).fault for number in (3, 4)] == [None, None]
        updates = max(int(state.get("step", 0)) for state in basic_optimizer(engine).state.values())
        ends.append(state_of(engine) | {"updates": torch.tensor(updates)})
        engine.destroy()
    assert equal(*ends)


def test_a_start_leaves_the_garbage_collector_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine starts with all objects frozen, so that DeepSpeed's collections find nothing to search."""
    monkeypatch.setattr(gc, "unfreeze", UNFREEZE)
    with group_of_one():
        small_engine(small_recipe("engine.zero_stage=1", "engine.precision=bf16")).destroy()
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.thorough), 2])
def test_a_step_reads_the_device_once(tmp_path: Path, ranks: int) -> None:
    """For the step before, whatever stage, precision and optimizer; and a bf16 step of stage 1 has few collectives."""
    out = tmp_path / "waits.json"
    processes = [
        Command(["python", "-m", WAITS, out], environment, stderr=subprocess.PIPE)
        for environment in environments(ranks)
    ]
    for process in processes:
        _, error = process.communicate(timeout=300)
        assert process.returncode == 0, error[-2000:]

    for case, waits in json.loads(out.read_text()).items():
        assert waits["reads"] == {"tolist": 1}, case
        assert waits["synchronizations"] == {}, case

    # Of two micro-batches: sums and counts, the norm, a bucket a group, the weights of a group; and two stop flags.
    collectives = json.loads(out.read_text())["adamw-1-bf16"]["collectives"]
    assert collectives == ({"allreduce": 6, "_allgather_base": 2} if ranks == 2 else {"allreduce": 1})
