"""Estimates the memory that training takes on each rank, and the largest micro-batch that fits beside it.

Weights, gradients and optimizer state as in ZeRO (Rajbhandari et al., arXiv:1910.02054), the buffers of a reduction,
and the activations that layers keep for the backward pass. What an allocator rounds these up to is not in the formulas;
`largest_micro_batch` leaves SAFETY_MARGIN for it.
"""

from __future__ import annotations

from typing import NamedTuple

from trainer.config.schema import Recipe
from trainer.models.encoder import EncoderShape

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

SAFETY_MARGIN = 0.1
"""Share of the free memory that is left: for fragmentation, workspaces of matrix products, and NCCL's buffers."""

MOST_TOKENS = 65_536
"""Of a chosen micro-batch. Above about 16,384 tokens a GPU computes no faster; larger ones only take memory."""


# What does not depend on the micro-batch


def state_bytes(parameters: int, precision: str) -> dict[str, dict[str, int]]:
    """Return the bytes of weights, gradients and optimizer state on each rank, by ZeRO stage and number of ranks."""
    by_stage: dict[str, dict[str, int]] = {}
    for stage in range(4):
        by_ranks = {str(ranks): _state_bytes_per_rank(BYTES[precision], parameters, stage, ranks) for ranks in RANKS}
        by_stage[f"zero_{stage}"] = by_ranks
    return by_stage


def _state_bytes_per_rank(size: BytesPerParameter, parameters: int, stage: int, ranks: int) -> int:
    """Each stage shards one thing more: stage 1 optimizer state, stage 2 gradients, stage 3 weights."""

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


def held_bytes(parameters: int, recipe: Recipe, ranks: int) -> int:
    """Return the bytes that each device holds whatever the micro-batch is: state and buffers.

    Of what is offloaded, only the optimizer state is left out: the rest is on the device while it is computed with.
    """
    size = BYTES[recipe.engine.precision]
    if recipe.engine.offload != "none":
        size = size._replace(optimizer=0)
    return _state_bytes_per_rank(size, parameters, recipe.engine.zero_stage, ranks) + bucket_bytes(parameters, recipe)


# What depends on it


def activation_bytes(shape: EncoderShape, recipe: Recipe) -> float:
    """Return the bytes that one token's activations keep for the backward pass.

    A layer keeps VECTORS_PER_LAYER vectors of the hidden size and two of the feed-forward size, and for dropout one
    byte for each element of two vectors. With engine.recompute each layer keeps its input, and one layer at a time
    the rest. The masked-LM head keeps LOGIT_BYTES per vocabulary entry at masked tokens.
    """
    value_bytes = _value_bytes(recipe)
    input_bytes = shape.hidden_size * value_bytes

    layer_bytes = (VECTORS_PER_LAYER * shape.hidden_size + 2 * shape.intermediate_size) * value_bytes
    if shape.hidden_dropout_prob:
        layer_bytes += 2 * shape.hidden_size

    if recipe.engine.recompute:
        all_layers = shape.num_hidden_layers * input_bytes + layer_bytes
    else:
        all_layers = shape.num_hidden_layers * layer_bytes

    return all_layers + recipe.masking.prob * shape.vocab_size * LOGIT_BYTES


def working_bytes(shape: EncoderShape, recipe: Recipe) -> float:
    """Return the bytes that one token takes for a moment in the backward pass: one layer's gradients.

    Four vectors of the hidden size (queries, keys, values, and the sum's) and two of the feed-forward size.
    """
    return (4 * shape.hidden_size + 2 * shape.intermediate_size) * _value_bytes(recipe)


def _value_bytes(recipe: Recipe) -> int:
    return 4 if recipe.engine.precision == "fp32" else 2


def largest_micro_batch(shape: EncoderShape, parameters: int, recipe: Recipe, ranks: int, free_bytes: float) -> int:
    """Return how many tokens fit into a device's free memory beside the state, at most MOST_TOKENS; 0 if none do."""
    room = (1 - SAFETY_MARGIN) * free_bytes - held_bytes(parameters, recipe, ranks)
    tokens = int(room // (activation_bytes(shape, recipe) + working_bytes(shape, recipe)))
    return max(0, min(tokens, MOST_TOKENS))
