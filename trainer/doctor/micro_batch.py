"""The micro-batch that each rank of this machine would take for a recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer.config.schema import Recipe
from trainer.doctor.device import count_devices, device_kind, device_memory

if TYPE_CHECKING:
    from trainer.models.shape import EncoderShape


def micro_batch_here(recipe: Recipe, shape: EncoderShape, longest: int) -> int:
    """Return its tokens, if the longest row has `longest`.

    The machine trains alone, with a rank on each of its devices. For batch.micro_tokens "auto" on a GPU this is what
    the formulas of memory.py say for its whole memory; training asks for the memory that is free and checks the number
    with one pass (trainer/micro_batches.py).
    """
    from trainer.batch_limits import needed_tokens, smallest_micro_batch
    from trainer.describe import CONTEXT_BYTES, micro_batch_tokens
    from trainer.memory import largest_micro_batch
    from trainer.micro_batches import CPU_TOKENS
    from trainer.trial_pass import count_parameters

    if not recipe.batch.chooses_micro_batch:
        return micro_batch_tokens(recipe, longest)

    ranks = count_devices()
    limit = CPU_TOKENS
    if device_kind() == "cuda":
        parameters = count_parameters(shape, recipe)
        limit = largest_micro_batch(shape, parameters, recipe, ranks, device_memory() - CONTEXT_BYTES)
    smallest = smallest_micro_batch(recipe.batch, longest)
    return needed_tokens(recipe.batch, max(limit, smallest), [longest], ranks)
