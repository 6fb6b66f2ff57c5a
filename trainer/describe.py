"""`--describe`: how large a recipe's model is, what a token costs and what memory it takes, before anything is built.

Memory is what the method needs, not what an allocator rounds it up to: weights, gradients and optimizer state as in
ZeRO (Rajbhandari et al., arXiv:1910.02054), and what the layers keep for the backward pass.
"""

from __future__ import annotations

from typing import Any

import torch

from schemas import storage
from schemas.errors import UsageError
from schemas.manifest import NAME, read_manifest
from trainer.models.encoder import EncoderShape
from trainer.models.families import encoder_shape
from trainer.models.flops import flops_per_token
from trainer.models.pretraining import PretrainingModel
from trainer.recipe_sections import Recipe

RANKS = (1, 8)
BYTES = {"fp32": (4, 4, 8), "bf16": (2, 2, 12), "fp16": (2, 2, 12)}
"""Of a parameter: weight, gradient, and the optimizer's two moments, with a float32 weight beside one of 16 bits."""


def describe(recipe: Recipe) -> dict[str, Any]:
    """Counts and bytes. Raises UsageError when neither the recipe nor the pairs say how large the vocabulary is."""
    shape = encoder_shape(recipe.model, vocabulary_size(recipe))
    with torch.device("meta"):
        model = PretrainingModel(shape)
    parameters, without_heads = (sum(p.numel() for p in part.parameters()) for part in (model, model.encoder))
    length, masked = recipe.model.max_positions, recipe.masking.prob
    return {
        "family": shape.family,
        "parameters": parameters,
        "parameters_without_heads": without_heads,
        "vocabulary": shape.vocabulary,
        "length": length,
        "masked": masked,
        "flops_per_token": round(flops_per_token(shape, length, masked)),
        "bytes_per_rank": state_bytes(parameters, recipe.engine.precision),
        "micro_batch_tokens": micro_batch_tokens(recipe),
        "activation_bytes": micro_batch_tokens(recipe) * round(activation_bytes(shape, recipe)),
    }


def vocabulary_size(recipe: Recipe) -> int:
    """What the recipe states, else what the pairs have."""
    if recipe.model.vocabulary is not None:
        return recipe.model.vocabulary
    for folder in recipe.data.folders:
        if storage.exists(storage.join(folder, NAME)):
            return read_manifest(folder, "pairs").options["vocabulary_size"]
    raise UsageError(
        f"{', '.join(recipe.data.folders)}: no finished pairs yet, so the size of the vocabulary is not known. "
        "Give it with --set model.vocabulary=30522."
    )


def state_bytes(parameters: int, precision: str) -> dict[str, dict[str, int]]:
    """ZeRO stage -> number of ranks -> bytes on each. Stage 1 spreads optimizer state, 2 gradients, 3 weights, too."""
    weight, gradient, state = (size * parameters for size in BYTES[precision])
    spread = {0: (0, 0, 0), 1: (0, 0, 1), 2: (0, 1, 1), 3: (1, 1, 1)}
    return {
        f"zero_{stage}": {
            str(ranks): sum(
                -(-size // ranks) if shared else size
                for size, shared in zip((weight, gradient, state), which, strict=True)
            )
            for ranks in RANKS
        }
        for stage, which in spread.items()
    }


def micro_batch_tokens(recipe: Recipe) -> int:
    """Tokens that a device computes at once, at most."""
    batch = recipe.batch
    return batch.micro_tokens or (batch.micro_batch or 0) * recipe.model.max_positions


def activation_bytes(shape: EncoderShape, recipe: Recipe) -> float:
    """Kept for the backward pass, of one token.

    A layer keeps eight vectors of its width (its input, query, key, value, the heads' results, two sums, a norm) and
    two of its feed-forward part, a dropout mask of a byte for each of two widths; the head float32 logarithms over the
    vocabulary. With engine.recompute a layer keeps its input, and one layer at a time the rest.
    """
    size = 4 if recipe.engine.precision == "fp32" else 2
    layer = (8 * shape.width + 2 * shape.feedforward) * size + (2 * shape.width if shape.dropout else 0)
    layers = shape.layers * layer
    if recipe.engine.recompute:
        layers = shape.layers * shape.width * size + layer
    return layers + recipe.masking.prob * shape.vocabulary * 4
