"""Checks that a model fits into this machine's memory at all, before anything is built."""

from __future__ import annotations

import os

from schemas.errors import UsageError
from trainer.config.schema import ModelSection, Recipe

WEIGHT_BYTES = 4  # weights are built in float32, whatever engine.precision is


def check_memory(recipe: Recipe, path: str) -> None:
    """Raise UsageError if the weights alone are larger than this machine's memory.

    Each rank builds the whole model in host memory. Gradients, the optimizer and activations need further memory,
    possibly on another device; `--describe` counts them.
    """
    model = recipe.model
    needed_bytes = WEIGHT_BYTES * minimum_parameters(model)
    available_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed_bytes <= available_bytes:
        return

    raise UsageError(
        f"{path}: the weights of model.num_hidden_layers {model.num_hidden_layers:,}, "
        f"model.hidden_size {model.hidden_size:,} and model.intermediate_size {model.intermediate_size:,} take "
        f"{needed_bytes / 1e9:,.0f} GB, but this machine has {available_bytes / 1e9:,.0f} GB of memory. "
        "Make the model smaller, or use a larger machine."
    )


def minimum_parameters(model: ModelSection) -> int:
    """Return the number of parameters in a model's matrices. Biases, norms and heads are not counted."""
    # ALBERT's layers share their weights, and its token embeddings are narrower than its layers.
    if model.family == "albert":
        distinct_layers = model.num_hidden_groups or 1
        embedding_size = model.embedding_size or 128
    else:
        distinct_layers = model.num_hidden_layers
        embedding_size = model.hidden_size

    attention = 4 * model.hidden_size**2  # query, key, value and output
    feedforward = 2 * model.hidden_size * model.intermediate_size
    embeddings = (model.max_position_embeddings + (model.vocab_size or 0)) * embedding_size
    return distinct_layers * (attention + feedforward) + embeddings
