"""How far the gradient of many micro-batches is from float32's, for test_gradients.py.

    torchrun --nproc_per_node 2 -m tests.trainer.distributed.accumulated OUT.json MICRO_BATCHES ROWS CASE...

A case is STAGE-PRECISION or STAGE-PRECISION-OFFLOAD, such as 2-bf16 or 1-bf16-optimizer. Every case computes one step
of the same small BERT on the same rows, in MICRO_BATCHES of ROWS rows over all ranks. In place of an update the
optimizer puts each gradient where the weight was, so the gradient that it was given can be read in any layout. The
weights of all cases are exact in bfloat16 and float16; what differs is how gradients are computed, added up and
reduced.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator
from torch import Tensor

from tests.trainer.one_rank import filled_engine
from trainer.config.load import load_recipe
from trainer.config.schema import Recipe
from trainer.data.share import RankShare
from trainer.distributed.deepspeed_internals import basic_optimizer, full_shape_of
from trainer.distributed.process_group import start_distributed
from trainer.distributed.zero import parameter_slices
from trainer.engine import gradient_divisor
from trainer.models.batch import PackedBatch
from trainer.models.pretraining import PretrainingModel
from trainer.models.starting_weights import build_model

VOCABULARY = 151
LENGTH = 24
MASKED = LENGTH // 6
"""Tokens of a row to be predicted."""

SIZES = [
    "model.num_hidden_layers=1",
    "model.hidden_size=32",
    "model.num_attention_heads=2",
    "model.intermediate_size=64",
    "model.max_position_embeddings=24",
]


def recipe_of(case: str) -> Recipe:
    stage, precision, *offload = case.split("-")
    settings = [f"engine.zero_stage={stage}", f"engine.precision={precision}", "optimizer.clip=0"]
    settings += [f"engine.offload={place}" for place in offload]
    return load_recipe("tests/recipes/small_bert.toml", [*SIZES, *settings])


def rounded_model(recipe: Recipe) -> PretrainingModel:
    model = build_model(recipe.model, VOCABULARY, seed=0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16())
    return model


def row(number: int) -> tuple[Tensor, Tensor, Tensor]:
    """The ids of LENGTH tokens as frequent as words are, the places to predict, and a pair label."""
    generator = torch.Generator().manual_seed(number)
    frequencies = 1 / torch.arange(1, VOCABULARY + 1).float()
    ids = torch.multinomial(frequencies, LENGTH, replacement=True, generator=generator)
    masked = torch.randperm(LENGTH, generator=generator)[:MASKED].sort().values
    return ids, masked, torch.randint(0, 2, (1,), generator=generator)


def micro_batch(number: int, rows: int) -> PackedBatch:
    """Rows `number` * `rows`, `number` * `rows` + 1, ..., with [MASK] at each place to predict."""
    all_ids, all_masked, labels = zip(*(row(number * rows + index) for index in range(rows)), strict=True)
    ids = torch.cat(all_ids)
    places = torch.arange(rows * LENGTH)
    masked = torch.cat([index * LENGTH + masked for index, masked in enumerate(all_masked)])
    seen = ids.clone()
    seen[masked] = 4
    return PackedBatch(
        ids_T=seen,
        segments_T=(places % LENGTH >= LENGTH // 2).long(),
        positions_T=places % LENGTH,
        sequence_T=places // LENGTH,
        sequence_starts_S=torch.arange(rows) * LENGTH,
        longest=LENGTH,
        masked_positions_K=masked,
        labels_K=ids[masked],
        pair_labels_S=torch.cat(labels),
        tokens=rows * LENGTH,
        predicted=len(masked),
        paired=rows,
    )


def gradient(case: str, micro_batches: int, rows: int) -> dict[str, Tensor]:
    """The mean gradient over all micro-batches of so many rows, whole, on every rank. A collective call."""
    rank = dist.get_rank()
    ranks = dist.get_world_size()
    recipe = recipe_of(case)
    mine = micro_batches // ranks

    model = rounded_model(recipe)
    engine = filled_engine(model, recipe, RankShare(rank, ranks, mine, micro_batches))
    optimizer: Any = basic_optimizer(engine)

    def keep_gradients() -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.data.copy_(parameter.grad)

    optimizer.step = keep_gradients
    for number in range(rank, micro_batches, ranks):
        losses = engine(micro_batch(number, rows))
        loss = losses.mlm_sum / (rows * MASKED) + losses.pair_sum / rows
        mean = gradient_divisor(engine) / (mine * ranks)
        engine.backward(loss * mean)
        engine.step()

    # Every rank gathers the parts of all ranks and puts them into whole gradients.
    shapes = {name: full_shape_of(parameter) for name, parameter in model.named_parameters()}
    pieces: list[Any] = [None] * ranks
    dist.all_gather_object(pieces, [(part.name, part.start, part.weights.clone()) for part in parameter_slices(engine)])
    whole = {name: torch.full((math.prod(shape),), torch.nan) for name, shape in shapes.items()}
    for name, start, values in (piece for held in pieces for piece in held):
        whole[name][start : start + len(values)] = values
    engine.destroy()
    return whole


def error(found: dict[str, Tensor], expected: dict[str, Tensor], names: list[str]) -> float:
    """|found - expected| / |expected| over the named parameters laid end to end."""
    difference = torch.cat([found[name] - expected[name] for name in names])
    return float(difference.double().norm() / torch.cat([expected[name] for name in names]).double().norm())


def main(out: Path, micro_batches: int, rows: int, cases: list[str]) -> None:
    CPU_Accelerator.is_fp16_supported = lambda self: True  # slow, but right
    start_distributed(timeout=600)
    expected = gradient("0-fp32", micro_batches, rows)
    errors = {}
    for case in cases:
        found = gradient(case, micro_batches, rows)
        by_name = {name: error(found, expected, [name]) for name in expected}
        errors[case] = {"all": error(found, expected, list(expected)), "worst": max(by_name.values()), **by_name}
    if dist.get_rank() == 0:
        out.write_text(json.dumps(errors, indent=1))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
