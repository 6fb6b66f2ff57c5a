"""Counts the parameters of a model from its shape alone.

`clozeline recipes` shows the size of every recipe and has to answer at once, so nothing here imports torch, which takes
seconds to load. A test compares the counts with those of the modules.

D: hidden size, E: embedding size, I: feed-forward size.
"""

from __future__ import annotations

from trainer.models.shape import EncoderShape


def count_model(shape: EncoderShape) -> int:
    """Return the number of parameters that pretraining updates, including heads. Shared ones are counted once."""
    if shape.generator is not None:
        # Google's generator and discriminator share their embeddings (ELECTRA, section 3.2).
        discriminator = count_encoder(shape) - _embeddings(shape)
        detection = _linear(shape.hidden_size, shape.hidden_size) + _linear(shape.hidden_size, 1)
        return count_model(shape.generator) + discriminator + detection

    pair_head = _linear(shape.hidden_size, 2) if shape.pair_head else 0
    return count_encoder(shape) + _masked_lm_head(shape) + pair_head


def count_encoder(shape: EncoderShape) -> int:
    """Return the number of parameters of the encoder, with its embeddings and, if it has a pair head, its pooler."""
    D = shape.hidden_size
    if shape.two_streams:
        return _two_stream_encoder(shape)

    widening = _linear(shape.embedding_size, D) if shape.factorized else 0
    last_norm = _norm(D, shape) if shape.pre_norm else 0
    pooler = _linear(D, D) if shape.pair_head else 0
    return _embeddings(shape) + widening + _layers(shape) + last_norm + pooler


def _embeddings(shape: EncoderShape) -> int:
    positions = shape.positions if shape.rope_base is None else 0
    vectors = shape.vocab_size + positions + shape.type_vocab_size
    norm = _norm(shape.embedding_size, shape) if shape.embedding_norm else 0
    return vectors * shape.embedding_size + norm


def _layers(shape: EncoderShape) -> int:
    """Return the number of parameters of all layers. In ALBERT, a group of layers may share one or both sublayers."""
    attention_copies = shape.num_hidden_layers
    feed_forward_copies = shape.num_hidden_layers
    if shape.sharing in ("all", "attention"):
        attention_copies = shape.num_hidden_groups
    if shape.sharing in ("all", "feed_forward"):
        feed_forward_copies = shape.num_hidden_groups

    norm = _norm(shape.hidden_size, shape)
    missing_norm = 0 if shape.first_norm else norm
    attention = attention_copies * (_attention(shape) + norm) - missing_norm
    return attention + feed_forward_copies * (_feed_forward(shape) + norm)


def _attention(shape: EncoderShape) -> int:
    D = shape.hidden_size
    projected = shape.projected_heads * shape.head_size
    return _linear(D, projected, shape.attention_bias) + _linear(D, D, shape.attention_bias)


def _feed_forward(shape: EncoderShape) -> int:
    D = shape.hidden_size
    I = shape.intermediate_size  # noqa: E741
    inner = 2 * I if shape.gated else I
    return _linear(D, inner, shape.up_bias) + _linear(I, D, shape.down_bias)


def _masked_lm_head(shape: EncoderShape) -> int:
    E = shape.embedding_size
    transform = 0
    if shape.head_transform:
        transform = _linear(shape.hidden_size, E, shape.head_dense_bias) + _norm(E, shape)

    bias = shape.vocab_size if shape.decoder_bias else 0
    projection = 0 if shape.tied else E * shape.vocab_size
    return transform + bias + projection


def _two_stream_encoder(shape: EncoderShape) -> int:
    """Return the number of parameters of XLNet's encoder.

    Attention has five matrices, three biases and two segment vectors per layer.
    """
    D = shape.hidden_size
    attention = 5 * D * D + (3 + 2) * D
    layer = attention + _feed_forward(shape) + 2 * _norm(D, shape)
    mask_embedding = D
    return shape.vocab_size * D + mask_embedding + shape.num_hidden_layers * layer


def _linear(inputs: int, outputs: int, bias: bool = True) -> int:
    return inputs * outputs + (outputs if bias else 0)


def _norm(size: int, shape: EncoderShape) -> int:
    has_bias = shape.norm == "layer" and shape.norm_bias
    return 2 * size if has_bias else size
