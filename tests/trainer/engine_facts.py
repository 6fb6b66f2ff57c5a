"""What can only be seen inside a process that trains, for test_engine.py.

python tests/trainer/engine_facts.py PAIRS RUN OUT.json
"""

from __future__ import annotations

import contextlib
import gc
import json
import sys
import weakref
from pathlib import Path
from typing import Any

import deepspeed
import torch
from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator
from torch import Tensor

from tests.small_models import section
from trainer import build_model as build_model_module
from trainer import train as training
from trainer.cli import main as train
from trainer.config.load import load_recipe
from trainer.data.share import RankShare
from trainer.distributed.deepspeed_internals import is_partitioned
from trainer.distributed.zero import parameter_slices
from trainer.engine import DTYPES, allocate, build_engine, deepspeed_config, send_weights
from trainer.models.pretraining import PretrainingModel
from trainer.models.starting_weights import build_model, drawn_weights, empty_model

TINY = "tests/recipes/small_bert.toml"
SMALL = [
    "model.num_hidden_layers=1",
    "model.hidden_size=32",
    "model.intermediate_size=64",
    "batch.global_batch=16",
    "batch.micro_batch=4",
]
PHASES = "\n[[phases]]\nsteps = 2\n\n[[phases]]\nsteps = 2\n"


def train_two_phases(pairs: str, run: Path) -> dict[str, Any]:
    """Train, and note the models alive when engines are built, files that wait for the device, and draws of weights."""
    recipe = run.parent / "two.toml"
    recipe.write_text(Path(TINY).read_text() + PHASES)
    built: list[weakref.ref[PretrainingModel]] = []
    alive: list[int] = []
    waits: list[str] = []
    drawn: list[int] = []

    def draw(*arguments: Any) -> Any:
        drawn.append(len(built))
        return drawn_weights(*arguments)

    def build(model: PretrainingModel, *arguments: Any) -> Any:
        alive.append(sum(former() is not None for former in built))
        built.append(weakref.ref(model))
        return build_engine(model, *arguments)

    def synchronize(self: CPU_Accelerator, device_index: int | None = None) -> None:
        waits.append(Path(sys._getframe(1).f_code.co_filename).name)

    training.build_engine = build  # type: ignore[assignment]
    build_model_module.drawn_weights = draw  # type: ignore[assignment]
    CPU_Accelerator.synchronize = synchronize
    settings = [*SMALL, f"data.pairs={pairs}", f"run.output={run}", "run.max_steps=4", "schedule.warmup_steps=1"]
    flags = [part for setting in settings for part in ("--set", setting)]
    code = train(["--config", str(recipe), *flags])
    return {
        "code": code,
        "former models alive": alive,
        "waits for the device": list(waits),
        "micro-batches": 16,
        "drawn for engines": drawn,
    }


def weights_sent_to_engine(stage: int, precision: str) -> float:
    """The largest difference between the weights that an empty engine is sent and those that it then holds.

    In float32 for the optimizer; and rounded to the engine's precision where the model is whole.
    """
    recipe = load_recipe(TINY, [*SMALL, f"engine.zero_stage={stage}", f"engine.precision={precision}"])
    sent = build_model(section("bert"), 61, seed=0)
    expected: dict[str, Tensor] = {name: p.detach().flatten() for name, p in sent.named_parameters()}
    engine: Any = build_engine(empty_model(section("bert"), 61), recipe, RankShare(0, 1, 4, 16))
    send_weights(engine, sent.named_parameters())

    differences = [0.0]
    for part in parameter_slices(engine):
        wanted = expected[part.name].narrow(0, part.start, part.weights.numel())
        differences.append(float((part.weights - wanted).abs().max()))
    for name, parameter in engine.module.named_parameters():
        if not is_partitioned(parameter):
            rounded = expected[name].to(DTYPES[precision])
            differences.append(float((parameter.detach().flatten() - rounded).abs().max()))
    engine.destroy()
    return max(differences)


def most_allocated_at_once() -> tuple[int, int]:
    """Return how many elements of an empty model stage 3 has not partitioned yet at most, and of its largest module."""
    recipe = load_recipe(TINY, [*SMALL, "engine.zero_stage=3"])
    model = empty_model(section("bert"), 61)
    largest = max(sum(p.numel() for p in module.parameters(recurse=False)) for module in model.modules())
    found: list[int] = []
    init = deepspeed.zero.Init

    def partition(*arguments: Any, **named: Any) -> Any:
        whole = [p for p in model.parameters() if not p.is_meta and not is_partitioned(p)]
        found.append(sum(p.numel() for p in whole))
        return init(*arguments, **named)

    deepspeed.zero.Init = partition  # type: ignore[assignment]
    try:
        allocate(model, torch.device("cpu"), "fp32", deepspeed_config(recipe, RankShare(0, 1, 4, 16)))
    finally:
        deepspeed.zero.Init = init
    assert all(is_partitioned(p) for p in model.parameters())
    return max(found), largest


def main(pairs: str, run: Path, out: Path) -> None:
    CPU_Accelerator.is_fp16_supported = lambda self: True
    facts = train_two_phases(pairs, run)

    # DeepSpeed searches for garbage whenever an engine is built or destroyed. Many follow, and keep nothing large.
    gc.freeze()
    gc.unfreeze = lambda: None
    cases = [(stage, precision) for precision in ("fp32", "bf16", "fp16") for stage in range(4)]
    facts["sent otherwise"] = {
        f"{stage}-{precision}": weights_sent_to_engine(stage, precision) for stage, precision in cases
    }
    facts["allocated at once"], facts["largest module"] = most_allocated_at_once()
    out.write_text(json.dumps(facts))
    with contextlib.suppress(Exception):
        torch.distributed.barrier()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
