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

import torch
from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator
from torch import Tensor

from tests.small_models import section
from trainer import train as training
from trainer.cli import main as train
from trainer.config.load import load_recipe
from trainer.data.loader import RankShare
from trainer.distributed.zero import parameter_slices
from trainer.engine import build_engine
from trainer.models.pretraining import PretrainingModel, build_model

TINY = "trainer/recipes/tiny.toml"
SMALL = ["model.hidden_size=32", "model.intermediate_size=64", "batch.global_batch=16", "batch.micro_batch=4"]
PHASES = "\n[[phases]]\nsteps = 2\n\n[[phases]]\nsteps = 2\n"


def train_two_phases(pairs: str, run: Path) -> dict[str, Any]:
    """Train, and note the models alive when each engine is built, and which files wait for the device."""
    recipe = run.parent / "two.toml"
    recipe.write_text(Path(TINY).read_text() + PHASES)
    built: list[weakref.ref[PretrainingModel]] = []
    alive: list[int] = []
    waits: list[str] = []

    def build(model: PretrainingModel, *arguments: Any) -> Any:
        alive.append(sum(former() is not None for former in built))
        built.append(weakref.ref(model))
        return build_engine(model, *arguments)

    def synchronize(self: CPU_Accelerator, device_index: int | None = None) -> None:
        waits.append(Path(sys._getframe(1).f_code.co_filename).name)

    training.build_engine = build  # type: ignore[assignment]
    CPU_Accelerator.synchronize = synchronize  # type: ignore[method-assign]
    settings = [*SMALL, f"data.pairs={pairs}", f"run.output={run}", "run.max_steps=4", "schedule.warmup_steps=1"]
    flags = [part for setting in settings for part in ("--set", setting)]
    code = train(["--config", str(recipe), *flags])
    return {"code": code, "former models alive": alive, "waits for the device": list(waits), "micro-batches": 16}


def weights_of_engine(stage: int, precision: str) -> float:
    """The largest difference between a model's float32 weights and those that its optimizer begins with."""
    recipe = load_recipe(TINY, [*SMALL, f"engine.zero_stage={stage}", f"engine.precision={precision}"])
    model = build_model(section("bert"), 61, seed=0)
    expected: dict[str, Tensor] = {name: p.detach().flatten().clone() for name, p in model.named_parameters()}
    engine = build_engine(model, recipe, RankShare(0, 1, 4, 16))
    largest = 0.0
    for part in parameter_slices(engine):
        wanted = expected[part.name].narrow(0, part.start, part.weights.numel())
        largest = max(largest, float((part.weights - wanted).abs().max()))
    engine.destroy()
    del engine
    gc.collect()
    return largest


def main(pairs: str, run: Path, out: Path) -> None:
    CPU_Accelerator.is_fp16_supported = lambda self: True  # type: ignore[method-assign]
    facts = train_two_phases(pairs, run)
    cases = [(stage, precision) for precision in ("bf16", "fp16") for stage in range(4)]
    facts["rounded by"] = {f"{stage}-{precision}": weights_of_engine(stage, precision) for stage, precision in cases}
    out.write_text(json.dumps(facts))
    with contextlib.suppress(Exception):
        torch.distributed.barrier()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
