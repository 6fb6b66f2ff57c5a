"""Updates of a small BERT by an optimizer, under a ZeRO stage, in a number format, for other files to compare.

    torchrun --nproc_per_node 2 tests/trainer/optim/zero_updates.py OUT lamb-1-bf16 lamb-2-fp32 ...

The loss is linear in the weights, so the gradient of a micro-batch is what `gradient_of_micro_batch` says, whatever the
weights are. Its values are exact in bfloat16; their sums over micro-batches and ranks are exact in float32 and need
more bits than bfloat16 has. What differs at the end is how gradients are added up and what the optimizers do.
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

from tests.trainer.one_rank import filled_engine
from trainer.anomaly import AnomalyGuard, AnomalyHistory
from trainer.config.load import load_recipe
from trainer.config.schema import Recipe
from trainer.data.share import RankShare
from trainer.distributed.process_group import start_distributed
from trainer.engine import gradient_divisor
from trainer.models.starting_weights import build_model
from trainer.optim.lr_schedule import set_learning_rate

LR = 0.01
VOCABULARY = 61
STEPS = {"lamb": 6, "adamw": 6, "stable_adamw": 50}
MICRO_BATCHES = {"lamb": 32, "adamw": 32, "stable_adamw": 4}
"""Of one step, on all ranks together."""
# Sizes that no partition of the parameters divides.
SIZES = [
    "model.num_hidden_layers=1",
    "model.hidden_size=20",
    "model.num_attention_heads=2",
    "model.intermediate_size=36",
    "model.max_position_embeddings=7",
]


def cases_of(*kinds: str) -> list[str]:
    return ["-".join(case) for case in product(kinds, "012", ("fp32", "bf16"))]


def recipe_of(case: str) -> Recipe:
    kind, stage, precision, *offload = case.split("-")
    engine = [f"engine.zero_stage={stage}", f"engine.precision={precision}"]
    engine += [f"engine.offload={place}" for place in offload]
    return load_recipe("tests/recipes/small_bert.toml", [*SIZES, f"optimizer.kind={kind}", *engine])


def initial_model(recipe: Recipe) -> nn.Module:
    return build_model(recipe.model, VOCABULARY, seed=0)


def gradient_of_micro_batch(shapes: dict[str, torch.Size], step: int, micro_batch: int) -> dict[str, Tensor]:
    """The gradient of micro-batch `micro_batch` of a step, for every parameter: multiples of 1/16 from -1/2 to 3/2.

    Their mean is not 0, so that a sum grows with the micro-batches and rounds ever more coarsely in bfloat16. In every
    seventh step half of the parameters have gradients 8 times as large.
    """
    generator = torch.Generator().manual_seed(1000 * step + micro_batch)
    gradients = {name: torch.randint(-8, 25, shape, generator=generator) / 16 for name, shape in shapes.items()}
    if step % 7 == 6:
        gradients |= {name: 8 * gradients[name] for name in list(shapes)[::2]}
    return gradients


def mean_gradient(shapes: dict[str, torch.Size], step: int, micro_batches: int) -> dict[str, Tensor]:
    """The mean over all micro-batches of all ranks, in float64."""
    total = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in shapes.items()}
    for micro_batch in range(micro_batches):
        for name, gradient in gradient_of_micro_batch(shapes, step, micro_batch).items():
            total[name] += gradient
    return {name: gradient / micro_batches for name, gradient in total.items()}


def clipped_gradients(kind: str) -> list[dict[str, Tensor]]:
    """What the optimizer gets in each step: mean gradients whose norm is 1, as optimizer.clip makes it."""
    shapes = {name: p.shape for name, p in initial_model(recipe_of(f"{kind}-0-fp32")).named_parameters()}
    steps = []
    for step in range(STEPS[kind]):
        gradients = mean_gradient(shapes, step, MICRO_BATCHES[kind])
        norm = torch.stack([g.norm() for g in gradients.values()]).norm()
        steps.append({name: g / norm for name, g in gradients.items()})
    return steps


def largest_difference(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Of all weights, relative to the largest one of their parameter."""
    assert found.keys() == expected.keys()
    return max(float((found[name] - w).abs().max() / w.abs().max()) for name, w in expected.items())


class Pulled(nn.Module):
    """A loss whose gradient is the one that is asked for."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, wanted: dict[str, Tensor]) -> Tensor:
        return torch.stack([(p * wanted[name].to(p)).sum() for name, p in self.model.named_parameters()]).sum()


def masters(engine: Any) -> dict[str, Tensor]:
    """The float32 weights."""
    weights = {}
    for name, parameter in engine.module.named_parameters():
        full = safe_get_full_fp32_param(parameter)  # None at stage 0
        weights[name] = (parameter if full is None else full).detach().float().cpu().contiguous()
    return {name.removeprefix("model."): weight for name, weight in weights.items()}


def main(out: Path, cases: list[str]) -> None:
    start_distributed(timeout=600)
    rank = dist.get_rank()
    ranks = dist.get_world_size()
    for case in cases:
        recipe = recipe_of(case)
        total = MICRO_BATCHES[recipe.optimizer.kind]
        share = RankShare(rank, ranks, total // ranks, 1)
        model = initial_model(recipe)
        engine = filled_engine(Pulled(model), recipe, share)
        # The guard clips where DeepSpeed does not.
        guard = AnomalyGuard(engine, recipe.anomaly, AnomalyHistory(), recipe.optimizer.clip)
        shapes = {name: p.shape for name, p in model.named_parameters()}
        for step in range(STEPS[recipe.optimizer.kind]):
            set_learning_rate(engine.optimizer, LR)
            for number, micro_batch in enumerate(range(rank, total, ranks)):
                wanted = gradient_of_micro_batch(shapes, step, micro_batch)
                # DeepSpeed's mean over ranks and micro-batches, or a sum over ranks.
                mean = gradient_divisor(engine) / total
                if number == total // ranks - 1:
                    guard.expect(torch.zeros((), dtype=torch.float64))
                engine.backward(engine(wanted) * mean)
                engine.step()
            verdict = guard.verdict()
            guard.settle(0.0, float(verdict.norm), bool(verdict.bad), verdict.was_judged)
        weights = masters(engine)
        if rank == 0:
            save_file(weights, out / f"{case}.safetensors")
        engine.destroy()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
