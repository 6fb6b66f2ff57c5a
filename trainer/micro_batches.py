"""Chooses how large a micro-batch is, for recipes with batch.micro_tokens = "auto": the largest that fits.

    a GPU    the largest that fits by the formulas of memory.py, after one forward and backward pass has shown that it
             does; half of it as often as that runs out of memory.
    a CPU    CPU_TOKENS, which leave no core idle and keep a small machine's memory free.

All ranks take what the one with the least memory can. The choice changes results by rounding, so it is recorded in
RUN/micro_batches.json, and a run that resumes under the same circumstances takes what is recorded there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from schemas import storage
from schemas.errors import UsageError
from trainer.batch_limits import needed_tokens, smallest_micro_batch
from trainer.config.phases import Phase
from trainer.config.schema import Recipe
from trainer.data.dataset import PairFolder
from trainer.distributed.collectives import run_on_rank_0
from trainer.logs import logger
from trainer.memory import held_bytes, largest_micro_batch
from trainer.models.encoder import EncoderShape
from trainer.models.families import encoder_shape
from trainer.trial_pass import Trial, count_parameters, free_memory

RECORD = "micro_batches.json"
"""In a run's folder: each choice that was made, and what it was made for."""

CPU_TOKENS = 4096
"""On a CPU: 32 rows of 128 tokens. Matrix products of so many rows run at full speed on any number of cores, and a
BERT-base takes 3 GB for it. Up to 8,192 bf16 is accurate (trainer/build_model.py)."""


@dataclass(frozen=True)
class Rows:
    """What a choice has to know of the data: tokens of the longest row, and of a row on average."""

    longest: int
    mean: float

    @classmethod
    def of(cls, folders: Sequence[PairFolder]) -> Rows:
        """Return the rows of all folders together."""
        tokens = sum(folder.manifest.totals["tokens"] for folder in folders)
        rows = sum(folder.manifest.totals["rows"] for folder in folders)
        return cls(max(folder.max_length for folder in folders), tokens / rows)


def with_micro_batches(phase: Phase, folders: Sequence[PairFolder], device: torch.device) -> Phase:
    """Return the phase with a number for batch.micro_tokens, if its recipe leaves the choice. A collective call.

    Raises UsageError on every rank if not even the smallest micro-batch fits.
    """
    recipe = phase.recipe
    if not recipe.batch.chooses_micro_batch:
        return phase

    rows = Rows.of(folders)
    run = recipe.run.folder
    made_for = circumstances(phase, rows, device)
    tokens = run_on_rank_0(lambda: recorded(run, made_for))

    if tokens is None:
        shape = encoder_shape(recipe.model, folders[0].vocabulary.size)
        tokens = choose(recipe, shape, rows, device)
        chosen = tokens
        run_on_rank_0(lambda: record(run, made_for, chosen))
        logger.info("batch.micro_tokens auto: %s tokens at once on each rank.", f"{tokens:,}")
    else:
        logger.info("batch.micro_tokens auto: %s tokens at once, as recorded in %s.", f"{tokens:,}", RECORD)

    batch = recipe.batch.model_copy(update={"micro_tokens": tokens})
    return replace(phase, recipe=recipe.model_copy(update={"batch": batch}))


# Choosing


def choose(recipe: Recipe, shape: EncoderShape, rows: Rows, device: torch.device) -> int:
    """Return the tokens of a micro-batch for all ranks. A collective call. Raises UsageError if none fit."""
    ranks = dist.get_world_size()
    smallest = smallest_micro_batch(recipe.batch, rows.longest)
    if device.type != "cuda":
        return needed_tokens(recipe.batch, max(CPU_TOKENS, smallest), rows.longest, ranks)

    parameters = count_parameters(shape)
    free_bytes = free_memory(device)
    estimate = largest_micro_batch(shape, parameters, recipe, ranks, free_bytes)

    trial = Trial(shape, recipe, rows.mean, held_bytes(parameters, recipe, ranks), device)

    def fits(tokens: int) -> bool:
        # At stage 3 no device can hold the whole model, which a pass outside DeepSpeed would need.
        if recipe.engine.zero_stage == 3:
            return tokens <= estimate
        return trial.fits(tokens)

    def need(tokens: int) -> int:
        return needed_tokens(recipe.batch, tokens, rows.longest, ranks)

    # The estimate errs on the safe side, so the smallest is tried even if the estimate says that it does not fit.
    tokens = halve_until_it_fits(need(max(estimate, smallest)), smallest, need, fits)
    tokens = least_of_all_ranks(tokens, device)
    if tokens == 0:
        raise _does_not_fit(recipe, smallest, free_bytes, device)
    return tokens


def halve_until_it_fits(tokens: int, smallest: int, need: Callable[[int], int], fits: Callable[[int], bool]) -> int:
    """Return the first of `tokens`, half of it and so on that fits; 0 if `smallest` does not.

    `need` returns what a limit comes to, in whole rows and equal micro-batches.
    """
    while not fits(tokens):
        if tokens <= smallest:
            return 0
        tokens = need(max(tokens // 2, smallest))
    return tokens


def least_of_all_ranks(tokens: int, device: torch.device) -> int:
    """Return the smallest number of any rank. A collective call."""
    numbers = torch.tensor(tokens, dtype=torch.int64, device=device)
    dist.all_reduce(numbers, dist.ReduceOp.MIN)
    return int(numbers)


def _does_not_fit(recipe: Recipe, smallest: int, free_bytes: int, device: torch.device) -> UsageError:
    error = UsageError(
        f"batch.micro_tokens auto: not even {smallest:,} tokens of this model fit into the {free_bytes / 1e9:.1f} GB "
        f"that are free on {device_name(device)}, at engine.zero_stage {recipe.engine.zero_stage}. Set "
        "engine.recompute, a higher engine.zero_stage or engine.offload, or use more or larger GPUs."
    )
    error.everywhere = True
    return error


# The record


def circumstances(phase: Phase, rows: Rows, device: torch.device) -> dict[str, Any]:
    """Return what a choice depends on. If any of it changes, the choice is made again."""
    engine = phase.recipe.engine
    return {
        "phase_begins_after": phase.steps_before,
        "ranks": dist.get_world_size(),
        "device": device_name(device),
        "precision": engine.precision,
        "zero_stage": engine.zero_stage,
        "offload": engine.offload,
        "recompute": engine.recompute,
        "longest_row": rows.longest,
    }


def device_name(device: torch.device) -> str:
    """Return "cpu", or the name of the GPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def recorded(run: str, made_for: dict[str, Any]) -> int | None:
    """Return the number that was chosen under these circumstances, or None."""
    for choice in _choices(run):
        if choice["made_for"] == made_for:
            return choice["micro_tokens"]
    return None


def record(run: str, made_for: dict[str, Any], micro_tokens: int) -> None:
    """Add a choice to RUN/micro_batches.json. Raises StorageError."""
    choices = [*_choices(run), {"micro_tokens": micro_tokens, "made_for": made_for}]
    storage.publish(str(Path(run) / RECORD), (json.dumps(choices, indent=2) + "\n").encode())


def _choices(run: str) -> list[dict[str, Any]]:
    """Return the recorded choices. A file that is damaged holds none: the choice is then made again."""
    try:
        choices = json.loads((Path(run) / RECORD).read_text())
        return [choice for choice in choices if {"made_for", "micro_tokens"} <= set(choice)]
    except (OSError, ValueError, TypeError):
        return []
