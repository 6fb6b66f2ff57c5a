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
from trainer.config.schema import Recipe
from trainer.models.encoder import EncoderShape
from trainer.models.families import encoder_shape
from trainer.models.flops import flops_per_token
from trainer.models.pretraining import PretrainingModel

RANKS = (1, 8)
BYTES = {"fp32": (4, 4, 8), "bf16": (2, 4, 12), "fp16": (2, 4, 12)}
"""Of a parameter: weight, gradient, and the optimizer's two moments, with a float32 weight beside one of 16 bits.

Gradients are summed in float32 whatever the precision is (trainer/distributed/gradients.py).
"""
BUCKET = 500_000_000
"""Gradients that DeepSpeed reduces at a time, unless [deepspeed] zero_optimization.reduce_bucket_size is set."""


def describe_recipe(recipe: Recipe) -> dict[str, Any]:
    """Return counts and bytes as one JSON object.

    Raises UsageError when neither the recipe nor the pairs say how large the vocabulary is. The rows' lengths are the
    pairs' when these are finished, else data.max_length for all rows, else model.max_position_embeddings.
    """
    shape = encoder_shape(recipe.model, vocabulary_size(recipe))
    with torch.device("meta"):
        model = PretrainingModel(shape)
    parameters, without_heads = (sum(p.numel() for p in part.parameters()) for part in (model, model.encoder))
    longest, mean_seen = row_lengths(recipe)
    tokens, masked = micro_batch_tokens(recipe, longest), recipe.masking.prob
    return {
        "family": shape.family,
        "parameters": parameters,
        "parameters_without_heads": without_heads,
        "vocabulary": shape.vocab_size,
        "length": longest,
        "masked": masked,
        "flops_per_token": round(flops_per_token(shape, mean_seen, masked)),
        "bytes_per_rank": state_bytes(parameters, recipe.engine.precision),
        "bucket_bytes": bucket_bytes(parameters, recipe),
        "micro_batch_tokens": tokens,
        "activation_bytes": tokens * round(activation_bytes(shape, recipe)),
    }


def finished_folders(recipe: Recipe) -> list[str]:
    """Return the recipe's folders of pairs that are finished."""
    return [folder for folder in recipe.data.folders if storage.exists(storage.join(folder, NAME))]


def row_lengths(recipe: Recipe) -> tuple[int, float]:
    """Return the tokens of the longest row, and how many tokens a token sees on average in its row."""
    manifests = [read_manifest(folder, "pairs") for folder in finished_folders(recipe)]
    if not manifests:
        length = recipe.data.max_length or recipe.model.max_position_embeddings
        return length, length
    longest, tokens, squares = 0, 0, 0
    for manifest in manifests:
        longest = max(longest, manifest.options["max_length"])
        for length, rows in enumerate(manifest.statistics["lengths"]):
            tokens += length * rows
            squares += length * length * rows
    return longest, squares / tokens


def vocabulary_size(recipe: Recipe) -> int:
    """What the recipe states, else what the pairs have."""
    if recipe.model.vocab_size is not None:
        return recipe.model.vocab_size
    for folder in finished_folders(recipe):
        return read_manifest(folder, "pairs").options["vocabulary_size"]
    raise UsageError(
        f"{', '.join(recipe.data.folders)}: no finished pairs yet, so the size of the vocabulary is not known. "
        "Give it with --set model.vocab_size=30522."
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


def bucket_bytes(parameters: int, recipe: Recipe) -> int:
    """Return the bytes of the buffers that gradients are reduced in, on each rank.

    A float32 copy of at most a bucket of gradients, and at stages 2 and 3 the bucket itself, which DeepSpeed makes in
    the model's precision and in its full size however small the model is.
    """
    settings = recipe.deepspeed.get("zero_optimization", {})
    bucket = int(settings.get("reduce_bucket_size", BUCKET))
    copied = 4 * min(parameters, bucket)
    if recipe.engine.zero_stage < 2:
        return copied
    weight, _, _ = BYTES[recipe.engine.precision]
    return copied + weight * bucket


def micro_batch_tokens(recipe: Recipe, longest: int) -> int:
    """Return the tokens that a device computes at once, at most, when the longest row has `longest`."""
    batch = recipe.batch
    return batch.micro_tokens or (batch.micro_batch or 0) * longest


def activation_bytes(shape: EncoderShape, recipe: Recipe) -> float:
    """Kept for the backward pass, of one token.

    A layer keeps eight vectors of its width (its input, query, key, value, the heads' results, two sums, a norm) and
    two of its feed-forward part, a dropout mask of a byte for each of two widths. The head keeps three float32 numbers
    for each word of the vocabulary at a masked token: logits, their logarithms and, in the backward pass, their
    gradient. With engine.recompute a layer keeps its input, and one layer at a time the rest.
    """
    size = 4 if recipe.engine.precision == "fp32" else 2
    layer = (8 * shape.hidden_size + 2 * shape.intermediate_size) * size + (
        2 * shape.hidden_size if shape.hidden_dropout_prob else 0
    )
    layers = shape.num_hidden_layers * layer
    if recipe.engine.recompute:
        layers = shape.num_hidden_layers * shape.hidden_size * size + layer
    return layers + recipe.masking.prob * shape.vocab_size * 12
