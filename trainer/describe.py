"""Describes a recipe for `--describe`: its model's size, FLOPs per token and memory, before anything is built.

Memory is what the method needs, not what an allocator rounds it up to: weights, gradients and optimizer state as in
ZeRO (Rajbhandari et al., arXiv:1910.02054), and the activations that layers keep for the backward pass.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn

from schemas import storage
from schemas.errors import UsageError
from schemas.manifest import NAME, read_manifest
from trainer.config.schema import Recipe
from trainer.models.encoder import EncoderShape
from trainer.models.families import encoder_shape
from trainer.models.flops import flops_per_token
from trainer.models.pretraining import PretrainingModel

RANKS = (1, 8)
"""World sizes that memory per rank is given for."""


class BytesPerParameter(NamedTuple):
    """What training keeps for one parameter.

    gradient: summed in float32 whatever the precision is (trainer/distributed/gradients.py).
    optimizer: two float32 moments, and a float32 weight in addition to a 16-bit one.
    """

    weight: int
    gradient: int
    optimizer: int


BYTES = {
    "fp32": BytesPerParameter(weight=4, gradient=4, optimizer=8),
    "bf16": BytesPerParameter(weight=2, gradient=4, optimizer=12),
    "fp16": BytesPerParameter(weight=2, gradient=4, optimizer=12),
}

REDUCE_BUCKET_SIZE = 500_000_000
"""Gradients that DeepSpeed reduces at a time, unless [deepspeed] zero_optimization.reduce_bucket_size is set."""

VECTORS_PER_LAYER = 8
"""Vectors of the hidden size that a layer keeps: its input, query, key, value, the heads' output, two sums, a norm."""

LOGIT_BYTES = 3 * 4
"""Per vocabulary entry at a masked token, in float32: logits, their logarithms, and in the backward pass gradients."""


def describe_recipe(recipe: Recipe) -> dict[str, Any]:
    """Return counts and bytes as one JSON object.

    Row lengths are those of the pairs if these are finished, else data.max_length for all rows, else
    model.max_position_embeddings. Raises UsageError if neither the recipe nor the pairs state the vocabulary's size.
    """
    shape = encoder_shape(recipe.model, vocabulary_size(recipe))

    # Tensors on the meta device have shapes but no memory.
    with torch.device("meta"):
        model = PretrainingModel(shape)
    parameters = count_parameters(model)

    longest, mean_seen = row_lengths(recipe)
    tokens = micro_batch_tokens(recipe, longest)
    masked = recipe.masking.prob

    return {
        "family": shape.family,
        "parameters": parameters,
        "parameters_without_heads": count_parameters(model.encoder),
        "vocabulary": shape.vocab_size,
        "length": longest,
        "masked": masked,
        "flops_per_token": round(flops_per_token(shape, mean_seen, masked)),
        "bytes_per_rank": state_bytes(parameters, recipe.engine.precision),
        "bucket_bytes": bucket_bytes(parameters, recipe),
        "micro_batch_tokens": tokens,
        "activation_bytes": tokens * round(activation_bytes(shape, recipe)),
    }


def count_parameters(module: nn.Module) -> int:
    """Return the number of parameters, each shared one counted once."""
    return sum(parameter.numel() for parameter in module.parameters())


def finished_folders(recipe: Recipe) -> list[str]:
    """Return those folders of the recipe's pairs that are finished."""
    return [folder for folder in recipe.data.folders if storage.exists(storage.join(folder, NAME))]


def row_lengths(recipe: Recipe) -> tuple[int, float]:
    """Return the tokens of the longest row, and how many tokens a token attends to in its row on average."""
    manifests = [read_manifest(folder, "pairs") for folder in finished_folders(recipe)]
    if not manifests:
        length = recipe.data.max_length or recipe.model.max_position_embeddings
        return length, length

    longest = 0
    tokens = 0
    squares = 0
    for manifest in manifests:
        longest = max(longest, manifest.options["max_length"])
        for length, rows in enumerate(manifest.statistics["lengths"]):
            tokens += length * rows
            squares += length * length * rows

    return longest, squares / tokens


def vocabulary_size(recipe: Recipe) -> int:
    """Return the size that the recipe states, or else that of the pairs' vocabulary."""
    if recipe.model.vocab_size is not None:
        return recipe.model.vocab_size

    folders = finished_folders(recipe)
    if folders:
        return read_manifest(folders[0], "pairs").options["vocabulary_size"]

    raise UsageError(
        f"{', '.join(recipe.data.folders)}: no finished pairs yet, so the size of the vocabulary is unknown. "
        "Give it with --set model.vocab_size=30522."
    )


def state_bytes(parameters: int, precision: str) -> dict[str, dict[str, int]]:
    """Return the bytes of weights, gradients and optimizer state on each rank, by ZeRO stage and number of ranks."""
    by_stage: dict[str, dict[str, int]] = {}
    for stage in range(4):
        by_ranks = {str(ranks): _state_bytes_per_rank(parameters, precision, stage, ranks) for ranks in RANKS}
        by_stage[f"zero_{stage}"] = by_ranks
    return by_stage


def _state_bytes_per_rank(parameters: int, precision: str, stage: int, ranks: int) -> int:
    """Each stage shards one thing more: stage 1 optimizer state, stage 2 gradients, stage 3 weights."""
    size = BYTES[precision]

    def held(bytes_per_parameter: int, sharded_from_stage: int) -> int:
        whole = bytes_per_parameter * parameters
        if stage < sharded_from_stage:
            return whole
        # Shards are filled up to equal sizes, so the division rounds up.
        return -(-whole // ranks)

    return held(size.optimizer, 1) + held(size.gradient, 2) + held(size.weight, 3)


def bucket_bytes(parameters: int, recipe: Recipe) -> int:
    """Return the bytes of the buffers that gradients are reduced in, on each rank.

    A float32 copy of at most one bucket of gradients. Stages 2 and 3 also have the bucket itself, which DeepSpeed
    allocates in the model's precision and at its full size however small the model is.
    """
    settings = recipe.deepspeed.get("zero_optimization", {})
    bucket_size = int(settings.get("reduce_bucket_size", REDUCE_BUCKET_SIZE))

    float32_copy = 4 * min(parameters, bucket_size)
    if recipe.engine.zero_stage < 2:
        return float32_copy
    return float32_copy + BYTES[recipe.engine.precision].weight * bucket_size


def micro_batch_tokens(recipe: Recipe, longest: int) -> int:
    """Return the tokens of the largest micro-batch, if the longest row has `longest` tokens."""
    batch = recipe.batch
    if batch.micro_tokens:
        return batch.micro_tokens
    return (batch.micro_batch or 0) * longest


def activation_bytes(shape: EncoderShape, recipe: Recipe) -> float:
    """Return the bytes that one token's activations keep for the backward pass.

    A layer keeps VECTORS_PER_LAYER vectors of the hidden size and two of the feed-forward size, and for dropout one
    byte for each element of two vectors. With engine.recompute each layer keeps its input, and one layer at a time
    the rest. The masked-LM head keeps LOGIT_BYTES per vocabulary entry at masked tokens.
    """
    value_bytes = 4 if recipe.engine.precision == "fp32" else 2
    input_bytes = shape.hidden_size * value_bytes

    layer_bytes = (VECTORS_PER_LAYER * shape.hidden_size + 2 * shape.intermediate_size) * value_bytes
    if shape.hidden_dropout_prob:
        layer_bytes += 2 * shape.hidden_size

    if recipe.engine.recompute:
        all_layers = shape.num_hidden_layers * input_bytes + layer_bytes
    else:
        all_layers = shape.num_hidden_layers * layer_bytes

    return all_layers + recipe.masking.prob * shape.vocab_size * LOGIT_BYTES
