"""Chooses how large a micro-batch is, for recipes with batch.micro_tokens = "auto": the largest that fits.

    on a GPU    the largest that fits by the formulas of memory.py, if one forward and backward pass confirms that it
                does; it is halved each time that the pass runs out of memory.
    on a CPU    CPU_TOKENS, which keep all cores busy and a small machine's memory free.

All ranks use the size that fits on the one with the least memory. The choice changes results by rounding and, with
dropout, by its random masks, so it is recorded in RUN/micro_batches.json, and a run that resumes under the same
circumstances uses the recorded choice. If training runs out of memory nevertheless, that is recorded as well, and the
next start uses half.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from schemas.errors import UsageError
from schemas.host_limits import available_bytes
from trainer.batch_limits import needed_tokens, smallest_micro_batch
from trainer.config.phases import Phase
from trainer.config.schema import Recipe
from trainer.data.folder import PairFolder
from trainer.distributed.collectives import run_on_all_ranks, run_on_rank_0
from trainer.logs import logger
from trainer.memory import count_parameters, held_bytes, largest_micro_batch
from trainer.micro_batch_record import RECORD, Choice, record, recorded
from trainer.models.families import encoder_shape
from trainer.models.shape import EncoderShape
from trainer.out_of_memory import device_name
from trainer.trial_pass import Trial, free_memory, meta_model

CPU_TOKENS = 4096
"""Tokens of a micro-batch on a CPU: 32 rows of 128 tokens. Matrix products of this many rows run at full speed on any
number of cores, and a BERT-base takes 3 GB for them."""


@dataclass(frozen=True)
class Rows:
    """The row lengths that a choice depends on: tokens of each folder's longest row, and the mean of all rows."""

    longest_of_folders: tuple[int, ...]
    mean: float

    @property
    def longest(self) -> int:
        """Tokens of the longest row in all folders."""
        return max(self.longest_of_folders)

    @classmethod
    def of(cls, folders: Sequence[PairFolder]) -> Rows:
        """Return the rows of all folders together."""
        tokens = sum(folder.manifest.totals["tokens"] for folder in folders)
        rows = sum(folder.manifest.totals["rows"] for folder in folders)
        return cls(tuple(folder.max_length for folder in folders), tokens / rows)


def with_micro_batches(
    phase: Phase, folders: Sequence[PairFolder], device: torch.device
) -> tuple[Phase, Choice | None]:
    """Return the phase with "auto" in batch.micro_tokens replaced by a number, and the choice of that number.

    If the recipe states the size itself, returns the phase unchanged and None. A collective call. Raises UsageError on
    every rank if not even the smallest micro-batch fits.
    """
    recipe = phase.recipe
    if not recipe.batch.chooses_micro_batch:
        return phase, None

    rows = Rows.of(folders)
    made_for = circumstances(phase, rows, device)
    choice = known_choice(recipe.run.folder, made_for)
    if choice is not None and not choice.ran_out_of_memory:
        logger.info(
            "batch.micro_tokens auto: %s tokens at once, as recorded in %s.", f"{choice.micro_tokens:,}", RECORD
        )
    else:
        shape = encoder_shape(recipe.model, folders[0].vocabulary.size)
        tokens = choose(recipe, shape, rows, device, failed=choice.micro_tokens if choice is not None else None)
        log_choice(tokens, failed=choice)
        choice = Choice(tokens, made_for)
        record_on_rank_0(recipe.run.folder, choice)

    batch = recipe.batch.model_copy(update={"micro_tokens": choice.micro_tokens})
    return replace(phase, recipe=recipe.model_copy(update={"batch": batch})), choice


def known_choice(run: str, made_for: dict[str, Any]) -> Choice | None:
    """Return the newest recorded choice for these circumstances that is smaller than all that ran out of memory.

    If there is none, returns the smallest that ran out of memory, or None. A collective call.
    """
    # A rank that runs out of memory records it in the folder that it sees, which other ranks may not see.
    of_ranks = run_on_all_ranks(lambda: recorded(run, made_for))
    failed = [choice for choices in of_ranks for choice in choices if choice.ran_out_of_memory]
    smallest_failed = min(failed, key=lambda choice: choice.micro_tokens, default=None)

    for choice in reversed(of_ranks[0]):
        if smallest_failed is None or choice.micro_tokens < smallest_failed.micro_tokens:
            return choice
    return smallest_failed


def record_on_rank_0(run: str, choice: Choice) -> None:
    """Record a choice in the folder that rank 0 sees. A collective call. Raises StorageError on every rank."""
    run_on_rank_0(lambda: record(run, choice))


def log_choice(tokens: int, failed: Choice | None) -> None:
    """Log a new choice, and the one before it that was too large."""
    reason = f", because {failed.micro_tokens:,} ran out of memory ({RECORD})" if failed is not None else ""
    logger.info("batch.micro_tokens auto: %s tokens at once on each rank%s.", f"{tokens:,}", reason)


# Choosing


def choose(recipe: Recipe, shape: EncoderShape, rows: Rows, device: torch.device, failed: int | None = None) -> int:
    """Return the tokens of a micro-batch for all ranks, at most half of `failed`, which ran out of memory.

    A collective call. Raises UsageError on every rank if no size fits, and any other error that a rank's trial raises.
    """
    ranks = dist.get_world_size()
    smallest = smallest_micro_batch(recipe.batch, rows.longest)

    def need(tokens: int) -> int:
        return needed_tokens(recipe.batch, max(tokens, smallest), rows.longest_of_folders, ranks)

    # The smallest is tried even if the estimate says that it does not fit, because the estimate is on the safe side.
    def fitting() -> int:
        if failed is not None and failed <= smallest:
            return 0
        estimate, fits = measures_of(recipe, shape, rows, device)
        first = need(estimate if failed is None else min(estimate, failed // 2))
        return halve_until_it_fits(first, smallest, need, fits)

    # If one rank's trial raises an error, all ranks raise it, and none is left waiting.
    tokens = min(run_on_all_ranks(fitting))
    if tokens == 0:
        raise _does_not_fit(recipe, smallest, device)
    return tokens


def measures_of(
    recipe: Recipe, shape: EncoderShape, rows: Rows, device: torch.device
) -> tuple[int, Callable[[int], bool]]:
    """Return how many tokens should fit into this rank's device, and a function that tests whether a number does."""
    if device.type != "cuda":
        return CPU_TOKENS, lambda tokens: True

    ranks = dist.get_world_size()
    parameters = count_parameters(meta_model(shape))
    estimate = largest_micro_batch(shape, parameters, recipe, ranks, free_memory(device))

    # At stage 3 no device can hold the whole model, which a pass outside DeepSpeed would need.
    if recipe.engine.zero_stage == 3:
        return estimate, lambda tokens: tokens <= estimate
    return estimate, Trial(shape, recipe, rows.mean, held_bytes(parameters, recipe, ranks), device).fits


def halve_until_it_fits(tokens: int, smallest: int, need: Callable[[int], int], fits: Callable[[int], bool]) -> int:
    """Return the first of `tokens`, half of it, and so on that fits; 0 if `smallest` does not.

    need: lowers a limit to what equal micro-batches within it use, as `needed_tokens` does.
    """
    while not fits(tokens):
        if tokens <= smallest:
            return 0
        tokens = need(max(tokens // 2, smallest))
    return tokens


def least_free_memory(device: torch.device) -> int:
    """Return the free bytes of the GPU that has the fewest; 0 on CPUs. A collective call."""
    return min(run_on_all_ranks(lambda: free_memory(device) if device.type == "cuda" else 0))


def _does_not_fit(recipe: Recipe, smallest: int, device: torch.device) -> UsageError:
    free_bytes = free_memory(device) if device.type == "cuda" else available_bytes()
    error = UsageError(
        f"batch.micro_tokens auto: not even {smallest:,} tokens of this model fit into the {free_bytes / 1e9:.1f} GB "
        f"that are free on {device_name(device)}, at engine.zero_stage {recipe.engine.zero_stage}. Set "
        "engine.recompute, a higher engine.zero_stage or engine.offload, or use more or larger GPUs."
    )
    error.everywhere = True
    return error


# What a choice depends on


def circumstances(phase: Phase, rows: Rows, device: torch.device) -> dict[str, Any]:
    """Return what a choice depends on, as rank 0 sees it. If any of it changes, the choice is made again.

    A collective call.
    """
    recipe = phase.recipe
    engine = recipe.engine
    free_bytes = least_free_memory(device)

    facts = {
        "phase_begins_after": phase.steps_before,
        "ranks": dist.get_world_size(),
        "device": device_name(device),
        "free_bytes": free_bytes,
        "precision": engine.precision,
        "zero_stage": engine.zero_stage,
        "offload": engine.offload,
        "recompute": engine.recompute,
        "compile": engine.compile,
        "deepspeed": recipe.deepspeed.settings,
        "batch": [recipe.batch.size, recipe.batch.shape],
        "masked": [recipe.masking.prob, recipe.masking.final_prob],
        "dropout": [recipe.model.hidden_dropout_prob, recipe.model.attention_probs_dropout_prob],
        "longest_row": rows.longest,
        "mean_row": rows.mean,
    }
    return run_on_rank_0(lambda: facts)
