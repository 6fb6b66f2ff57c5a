"""50 updates of a small BERT by an optimizer, under a ZeRO stage, in a number format, for test_lamb.py to compare.

    torchrun --nproc_per_node 2 tests/trainer/zero_updates.py OUT lamb-1-bf16 lamb-2-fp32 ...

The loss is linear in the weights, so the gradient of a step is what `gradients` says, whatever the weights are; its
values and their means over ranks and micro-batches are exact in bfloat16. What differs at the end is the optimizers'.
"""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.utils import safe_get_full_fp32_param
from safetensors.torch import save_file
from torch import Tensor, nn

from trainer.engine import build_engine, start_distributed
from trainer.guard import Guard
from trainer.models.pretraining import build_model
from trainer.recipe import load_recipe
from trainer.recipe_sections import Recipe
from trainer.schedules import set_learning_rate
from trainer.stream.batches import Share
from trainer.trouble import History

STEPS, LR, MICRO_BATCHES, VOCABULARY = 50, 0.01, 2, 61
SIZES = [
    "model.layers=1",
    "model.width=20",
    "model.heads=2",
    "model.feedforward=36",
    "model.max_positions=7",
]  # cut by every partition
CASES = ["-".join(case) for case in product(("lamb", "adamw"), "012", ("fp32", "bf16"))]


def recipe_of(case: str) -> Recipe:
    kind, stage, precision = case.split("-")
    engine = [f"engine.zero_stage={stage}", f"engine.precision={precision}"]
    return load_recipe("trainer/recipes/tiny.toml", [*SIZES, f"optimizer.kind={kind}", *engine])


def initial_model(recipe: Recipe) -> nn.Module:
    return build_model(recipe.model, VOCABULARY, seed=0)


def gradients(model: nn.Module, step: int) -> dict[str, Tensor]:
    """The mean gradient of every parameter: multiples of 1/16 up to 1."""
    generator = torch.Generator().manual_seed(step)
    return {name: torch.randint(-16, 17, p.shape, generator=generator) / 16 for name, p in model.named_parameters()}


class Pulled(nn.Module):
    """A loss whose gradient is the one that was asked for, and `apart` away from it on this rank and micro-batch."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, wanted: dict[str, Tensor], apart: float) -> Tensor:
        return torch.stack(
            [(p * (wanted[name] + apart).to(p)).sum() for name, p in self.model.named_parameters()]
        ).sum()


def masters(engine: Any) -> dict[str, Tensor]:
    """The float32 weights; ZeRO 0 with bf16 keeps them in its optimizer alone."""
    weights = {}
    for name, parameter in engine.module.named_parameters():
        full = safe_get_full_fp32_param(parameter)  # None at stage 0
        weights[name] = (parameter if full is None else full).detach().float().cpu().contiguous()
    if hasattr(engine.optimizer, "fp32_groups"):
        names = {p: name for name, p in engine.module.named_parameters()}
        for low, high in zip(engine.optimizer.fp16_groups, engine.optimizer.fp32_groups, strict=True):
            weights |= {names[p]: master.detach().cpu() for p, master in zip(low, high, strict=True)}
    return {name.removeprefix("model."): weight for name, weight in weights.items()}


def main(out: Path, cases: list[str]) -> None:
    start_distributed(timeout=600)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for case in cases:
        recipe = recipe_of(case)
        share = Share(rank, ranks, MICRO_BATCHES, 1)
        model = initial_model(recipe)
        engine = build_engine(Pulled(model), recipe, share)
        guard = Guard(engine, recipe.trouble, History(), recipe.optimizer.clip)  # clips where DeepSpeed does not
        for step in range(STEPS):
            set_learning_rate(engine.optimizer, LR)
            guard.expect(loss=0.0)
            wanted = gradients(model, step)
            for number in range(MICRO_BATCHES):
                hand = number * ranks + rank  # with an even number of hands the differences cancel
                engine.backward(engine(wanted, 0.25 if hand % 2 else -0.25))
                engine.step()
        weights = masters(engine)
        if rank == 0:
            save_file(weights, out / f"{case}.safetensors")
        engine.destroy()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
