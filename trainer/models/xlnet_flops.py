"""XLNet's part of flops.py and of trainer/memory.py: what its two streams compute, and what they keep in memory.

The content stream is a BERT with one more product in its scores. Each target costs as much as one more token, except
for keys and values, which both streams share. If a sixth of the tokens are targets, XLNet-base costs 1.15 times as much
as BERT-base on rows of 128 tokens and 1.19 times on rows of 512. The projections of 2 L distances, D**2 multiplications
each, are computed once for all sequences of a micro-batch.

D: hidden size, L: tokens of the longest row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer.models.shape import EncoderShape

if TYPE_CHECKING:
    from trainer.models.flops import ExecutedWork

SEGMENT_VECTORS = 2
"""The vectors of seg_embed, each of which a query is multiplied with."""


def two_stream_flops_per_token(shape: EncoderShape, mean_seen: float, predicted: float) -> float:
    """Return the floating-point operations of training on one token; parameters as in flops.flops_per_token.

    Counts both streams in all layers, and the product of a query with the distance to each key that it sees. The
    projection of distances is left out, because how often it is computed depends on the batch and not on the model.
    """
    D = shape.hidden_size
    feed_forward = 2 * D * shape.intermediate_size
    of_a_query = 3 * D * mean_seen + SEGMENT_VECTORS * D  # keys, distances, values; segments

    content = 4 * D * D + feed_forward + of_a_query
    query = 2 * D * D + feed_forward + of_a_query  # no keys and values
    head = D * shape.vocab_size
    return 6 * (shape.num_hidden_layers * (content + predicted * query) + predicted * head)


def two_stream_executed_flops(shape: EncoderShape, work: ExecutedWork, mean_seen: float, recompute: bool) -> float:
    """Return the operations that training on these micro-batches executes; parameters as in flops.executed_flops.

    In the last layer, the content stream computes only keys and values. Each query is multiplied with all 2 L distances
    of its row, although it needs only L of them.
    """
    D = shape.hidden_size
    feed_forward = 2 * D * shape.intermediate_size
    content_pairs = work.tokens * mean_seen + work.padding_pairs
    query_pairs = work.targets * mean_seen

    content = (4 * D * D + feed_forward + SEGMENT_VECTORS * D) * work.computed + 4 * D * content_pairs
    query = (2 * D * D + feed_forward + SEGMENT_VECTORS * D) * work.targets + 4 * D * query_pairs
    last_layer = 2 * D * D * work.computed + query
    layers = (shape.num_hidden_layers - 1) * (content + query) + last_layer

    # Sines and cosines get no gradient, so projecting them takes two products (forward, weight gradient), not three.
    distances = shape.num_hidden_layers * D * D * work.distances
    head = D * shape.vocab_size * work.predicted
    executed = 6 * (layers + head) + 4 * distances
    return executed + 2 * (layers + distances) if recompute else executed


def score_bytes(shape: EncoderShape, predicted: float, value_bytes: int) -> float:
    """Return the bytes that a layer keeps of one token's scores: a bias for each head and key of the longest row.

    predicted: the share of tokens that are targets. value_bytes: bytes of one value.
    """
    keys = shape.max_position_embeddings
    return (1 + predicted) * shape.num_attention_heads * keys * value_bytes
