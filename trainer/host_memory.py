"""Whether a model fits this machine at all, found out before anything is built."""

from __future__ import annotations

import os

from schemas.errors import UsageError
from trainer.recipe_sections import ModelSection, Recipe

WEIGHT_BYTES = 4  # a weight is built in float32, whatever engine.precision is


def check_memory(recipe: Recipe, path: str) -> None:
    """Raise UsageError when the weights alone are larger than this machine's memory.

    Each rank builds the whole model in the host's memory. Gradients, the optimizer and activations come on top of it,
    possibly on another device; `--describe` counts them.
    """
    needed = WEIGHT_BYTES * least_parameters(recipe.model)
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > available:
        model = recipe.model
        raise UsageError(
            f"{path}: the weights of model.layers {model.layers:,}, model.width {model.width:,} and model.feedforward "
            f"{model.feedforward:,} take {needed / 1e9:,.0f} GB, but this machine has {available / 1e9:,.0f} GB of "
            "memory. Make the model smaller, or use a larger machine."
        )


def least_parameters(model: ModelSection) -> int:
    """Return the number of parameters in a model's matrices; biases and heads come on top of it."""
    attention = 4 * model.width**2
    feedforward = 2 * model.width * model.feedforward
    layers = model.layers
    embedding_width = model.width
    if model.family == "albert":
        layers = model.layer_groups or 1
        embedding_width = model.embedding_width or 128
    embeddings = (model.max_positions + (model.vocabulary or 0)) * embedding_width
    return layers * (attention + feedforward) + embeddings
