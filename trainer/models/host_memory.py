"""Checks before a model is built that its weights can fit into the host's memory."""

from __future__ import annotations

import os

from schemas.errors import UsageError
from trainer.config.schema import Recipe
from trainer.config.sections import ModelSection
from trainer.models.families import encoder_shape

WEIGHT_BYTES = 4  # the optimizer keeps float32 weights, whatever engine.precision is


def check_memory(recipe: Recipe, path: str) -> None:
    """Raise UsageError if the weights alone are larger than this machine's memory.

    On CPUs each rank holds the weights (in ZeRO stage 3, all ranks together), and on GPUs checkpoints pass through host
    memory. Gradients, the optimizer and activations need more, possibly on another device; `--describe` counts them.
    path: names the recipe in the message.
    """
    model = recipe.model
    available_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    # Modules are built, without memory, only for sizes that are not absurd: building a billion layers would take days.
    needed_bytes = WEIGHT_BYTES * fewest_parameters(model)
    if needed_bytes <= available_bytes:
        needed_bytes = WEIGHT_BYTES * minimum_parameters(model)
    if needed_bytes <= available_bytes:
        return

    raise UsageError(
        f"{path}: the weights of model.num_hidden_layers {model.num_hidden_layers:,}, "
        f"model.hidden_size {model.hidden_size:,} and model.intermediate_size {model.intermediate_size:,} take "
        f"{needed_bytes / 1e9:,.0f} GB, but this machine has {available_bytes / 1e9:,.0f} GB of memory. "
        "Make the model smaller, or use a larger machine."
    )


def fewest_parameters(model: ModelSection) -> int:
    """Return a number of parameters that every model of these sizes exceeds.

    Counts the embeddings, and of each group of layers the two matrices that every family has.
    """
    shape = encoder_shape(model, model.vocab_size or 1)
    has_positions = shape.rope_base is None and not shape.two_streams
    embeddings = shape.vocab_size + (shape.positions if has_positions else 0)
    rows = shape.hidden_size + shape.intermediate_size
    return embeddings * shape.embedding_size + shape.num_hidden_groups * rows * shape.hidden_size


def minimum_parameters(model: ModelSection) -> int:
    """Return the number of parameters of a [model]. Without vocab_size, a vocabulary of one token is assumed."""
    import torch

    from trainer.models.pretraining import model_of  # imports torch, which takes a second

    with torch.device("meta"):
        built = model_of(encoder_shape(model, model.vocab_size or 1))
    return sum(parameter.numel() for parameter in built.parameters())
