"""The model families: BERT, and how the others differ from it.

bert            post-norm layers, two segments, a pair label       Devlin et al., arXiv:1810.04805
roberta         no pair label, one segment, positions from 2       Liu et al., arXiv:1907.11692, fairseq
albert          factorized embeddings, shared layers, tanh GELU    Lan et al., arXiv:1909.11942, google-research/albert
megatron-bert   pre-norm layers, for depth                         Shoeybi et al., arXiv:1909.08053
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trainer.models.encoder import EncoderShape

if TYPE_CHECKING:
    from trainer.config.schema import ModelSection

ALBERT_EMBEDDING_SIZE = 128
ALBERT_GROUPS = 1
"""What all of ALBERT's published models have; model.embedding_size and model.num_hidden_groups change it."""


def bert(model: ModelSection, vocabulary_size: int) -> EncoderShape:
    """BERT, from which the other families are derived."""
    return EncoderShape(
        family=model.family,
        vocab_size=vocabulary_size,
        num_hidden_layers=model.num_hidden_layers,
        hidden_size=model.hidden_size,
        num_attention_heads=model.num_attention_heads,
        intermediate_size=model.intermediate_size,
        positions=model.max_position_embeddings,
        first_position=0,
        type_vocab_size=2,
        embedding_size=model.hidden_size,
        factorized=False,
        num_hidden_groups=model.num_hidden_layers,
        hidden_dropout_prob=model.hidden_dropout_prob,
        attention_probs_dropout_prob=model.attention_probs_dropout_prob,
        layer_norm_eps=1e-12,
        gelu="none",
        pre_norm=False,
        pair_head=True,
    )


def roberta(model: ModelSection, vocabulary_size: int) -> EncoderShape:
    """RoBERTa. fairseq counts positions from the id of <pad>, 1, plus 1: the first two rows of the table are unused."""
    return replace(
        bert(model, vocabulary_size),
        positions=model.max_position_embeddings + 2,
        first_position=2,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
        pair_head=False,
    )


def albert(model: ModelSection, vocabulary_size: int) -> EncoderShape:
    """ALBERT: small embeddings that a matrix widens, and few layers that are applied many times."""
    return replace(
        bert(model, vocabulary_size),
        embedding_size=model.embedding_size or ALBERT_EMBEDDING_SIZE,
        factorized=True,
        num_hidden_groups=model.num_hidden_groups or ALBERT_GROUPS,
        gelu="tanh",
    )


def megatron_bert(model: ModelSection, vocabulary_size: int) -> EncoderShape:
    """Megatron-BERT: BERT with pre-norm layers, which train at greater depth."""
    return replace(bert(model, vocabulary_size), pre_norm=True)


FAMILIES = {"bert": bert, "roberta": roberta, "albert": albert, "megatron-bert": megatron_bert}


def encoder_shape(model: ModelSection, vocabulary_size: int) -> EncoderShape:
    """Return the shape of a recipe's [model] for a vocabulary of this size."""
    return FAMILIES[model.family](model, vocabulary_size)
