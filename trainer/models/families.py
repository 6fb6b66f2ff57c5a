"""What each family is: BERT, and how the others differ from it.

bert            post-norm layers, two segments, a pair label       Devlin et al., arXiv:1810.04805
roberta         no pair label, one segment, positions from 2       Liu et al., arXiv:1907.11692, fairseq
albert          factorised embeddings, shared layers, tanh GELU    Lan et al., arXiv:1909.11942, google-research/albert
megatron-bert   pre-norm layers, for depth                         Shoeybi et al., arXiv:1909.08053
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trainer.models.encoder import EncoderShape

if TYPE_CHECKING:
    from trainer.recipe_sections import ModelSection


def bert(model: ModelSection, vocabulary_size: int) -> EncoderShape:
    return EncoderShape(
        family=model.family,
        vocabulary=vocabulary_size,
        layers=model.layers,
        width=model.width,
        heads=model.heads,
        feedforward=model.feedforward,
        positions=model.max_positions,
        first_position=0,
        segments=2,
        embedding=model.width,
        factorised=False,
        groups=model.layers,
        dropout=model.dropout,
        attention_dropout=model.attention_dropout,
        norm_eps=1e-12,
        gelu="none",
        pre_norm=False,
        pair_head=True,
    )


def roberta(model: ModelSection, vocabulary_size: int) -> EncoderShape:
    """fairseq counts positions from the id of <pad>, 1, plus 1: the table has two rows that no token takes."""
    base = bert(model, vocabulary_size)
    return replace(
        base, positions=model.max_positions + 2, first_position=2, segments=1, norm_eps=1e-5, pair_head=False
    )


def albert(model: ModelSection, vocabulary_size: int) -> EncoderShape:
    base = bert(model, vocabulary_size)
    embedding, groups = model.embedding_width or 128, model.layer_groups or 1
    return replace(base, embedding=embedding, factorised=True, groups=groups, gelu="tanh")


def megatron_bert(model: ModelSection, vocabulary_size: int) -> EncoderShape:
    return replace(bert(model, vocabulary_size), pre_norm=True)


FAMILIES = {"bert": bert, "roberta": roberta, "albert": albert, "megatron-bert": megatron_bert}


def encoder_shape(model: ModelSection, vocabulary_size: int) -> EncoderShape:
    """The encoder of a recipe's [model] for a vocabulary of so many tokens."""
    return FAMILIES[model.family](model, vocabulary_size)
