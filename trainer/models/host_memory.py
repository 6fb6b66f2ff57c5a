"""Whether a model fits this machine at all, found out before anything is built."""

from __future__ import annotations

import os

from schemas.errors import UsageError
from trainer.config.schema import ModelSection, Recipe

WEIGHT_BYTES = 4  # a weight is built in float32, whatever engine.precision is


def check_memory(recipe: Recipe, path: str) -> None:
    """Raise UsageError when the weights alone are larger than this machine's memory.

    Each rank builds the whole model in the host's memory. Gradients, the optimizer and activations come on top of it,
    possibly on another device; `--describe` counts them.
    """
    needed = WEIGHT_BYTES * minimum_parameters(recipe.model)
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > available:
        model = recipe.model
        raise UsageError(
            f"{path}: the weights of model.num_hidden_layers {model.num_hidden_layers:,}, "
            f"model.hidden_size {model.hidden_size:,} and model.intermediate_size "
            f"{model.intermediate_size:,} take {needed / 1e9:,.0f} GB, but this machine has "
            f"{available / 1e9:,.0f} GB of memory. Make the model smaller, or use a larger machine."
        )


def minimum_parameters(model: ModelSection) -> int:
    """Return the number of parameters in a model's matrices; biases and heads come on top of it."""
    attention = 4 * model.hidden_size**2
    feedforward = 2 * model.hidden_size * model.intermediate_size
    layers = model.num_hidden_layers
    embedding_width = model.hidden_size
    if model.family == "albert":
        layers = model.num_hidden_groups or 1
        embedding_width = model.embedding_size or 128
    embeddings = (model.max_position_embeddings + (model.vocab_size or 0)) * embedding_width
    return layers * (attention + feedforward) + embeddings
