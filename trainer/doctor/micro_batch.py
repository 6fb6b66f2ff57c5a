"""Computes the micro-batch that each rank on this machine would use for a recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer.config.schema import Recipe
from trainer.doctor.device import count_devices, device_kind, device_memory

if TYPE_CHECKING:
    from trainer.models.shape import EncoderShape


def micro_batch_here(recipe: Recipe, shape: EncoderShape, longest: int) -> int:
    """Return the tokens of a micro-batch on this machine, if the longest row has `longest` tokens.

    The machine is assumed to train alone, with a rank on each of its devices. For batch.micro_tokens "auto" on a GPU,
    this follows from the formulas of memory.py for the GPU's whole memory. Training uses the memory that is free then,
    and verifies the number with one pass (trainer/micro_batches.py).
    """
    from trainer.batch_limits import needed_tokens, smallest_micro_batch
    from trainer.describe import CONTEXT_BYTES, micro_batch_tokens
    from trainer.memory import count_parameters, largest_micro_batch
    from trainer.micro_batches import CPU_TOKENS
    from trainer.trial_pass import meta_model

    if not recipe.batch.chooses_micro_batch:
        return micro_batch_tokens(recipe, longest)

    ranks = count_devices()
    limit = CPU_TOKENS
    if device_kind() == "cuda":
        parameters = count_parameters(meta_model(shape))
        limit = largest_micro_batch(shape, parameters, recipe, ranks, device_memory() - CONTEXT_BYTES)
    smallest = smallest_micro_batch(recipe.batch, longest)
    return needed_tokens(recipe.batch, max(limit, smallest), [longest], ranks)
