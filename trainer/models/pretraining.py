"""An encoder with the heads it is trained by: masked LM at the masked places alone, and the pair label.

Projecting onto the vocabulary only where something was masked saves 85% of the head's work, a fifth of all of
BERT-base's at length 128. Losses leave as sums, because what to divide by is a matter of the whole global batch.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from schemas.randomness import key
from trainer.models.encoder import Encoder, EncoderShape
from trainer.models.packing import PackedBatch
from trainer.recipe import ModelSection


class Losses(NamedTuple):
    """Sums over a micro-batch, float32: of the masked LM loss over K tokens, of the pair loss over labelled rows."""

    mlm_sum: Tensor
    mlm_correct: Tensor
    pair_sum: Tensor
    pair_correct: Tensor


class MaskedLMHead(nn.Module):
    """Dense, GELU, norm, and a projection onto the token embeddings with a bias of its own."""

    def __init__(self, shape: EncoderShape):
        super().__init__()
        self.dense = nn.Linear(shape.width, shape.width)
        self.norm = nn.LayerNorm(shape.width, shape.norm_eps)
        self.bias = nn.Parameter(torch.zeros(shape.vocabulary))

    def forward(self, x_KD: Tensor, embedding_VD: Tensor) -> Tensor:
        """(K, V) logits."""
        return F.linear(self.norm(F.gelu(self.dense(x_KD))), embedding_VD, self.bias)


class PretrainingModel(nn.Module):
    """BERT for pretraining: `forward` gives losses, `logits` gives what they are computed from."""

    def __init__(self, shape: EncoderShape):
        super().__init__()
        self.encoder = Encoder(shape)
        self.mlm_head = MaskedLMHead(shape)
        self.pair_head = nn.Linear(shape.width, 2)

    def logits(self, batch: PackedBatch) -> tuple[Tensor, Tensor]:
        """(K, V) at the masked places and (S, 2) for the pairs."""
        x_TD = self.encoder(batch)
        x_KD = x_TD.index_select(0, batch.masked_K)
        mlm_KV = self.mlm_head(x_KD, self.encoder.embeddings.token.weight)
        return mlm_KV, self.pair_head(self.encoder.pool(x_TD, batch))

    def forward(self, batch: PackedBatch) -> Losses:
        mlm_KV, pair_S2 = self.logits(batch)
        return Losses(
            F.cross_entropy(mlm_KV.float(), batch.labels_K, reduction="sum"),
            (mlm_KV.argmax(-1) == batch.labels_K).sum().float(),
            F.cross_entropy(pair_S2.float(), batch.pair_labels_S, reduction="sum", ignore_index=-100),
            (pair_S2.argmax(-1) == batch.pair_labels_S).sum().float(),
        )


def encoder_shape(model: ModelSection, vocabulary_size: int) -> EncoderShape:
    return EncoderShape(
        vocabulary=vocabulary_size,
        layers=model.layers,
        width=model.width,
        heads=model.heads,
        feedforward=model.feedforward,
        max_positions=model.max_positions,
        segments=2,
        dropout=model.dropout,
        attention_dropout=model.attention_dropout,
        norm_eps=1e-12,
    )


def build_model(model: ModelSection, vocabulary_size: int, seed: int) -> PretrainingModel:
    """A model with initial weights that depend on the seed alone."""
    built = PretrainingModel(encoder_shape(model, vocabulary_size))
    generator = torch.Generator().manual_seed(key(seed, "initial weights") >> 1)  # torch takes 63 bits
    initialise(built, model.initial_std, generator)
    return built


@torch.no_grad()
def initialise(model: nn.Module, std: float, generator: torch.Generator) -> None:
    """Normal matrices truncated at two deviations, as in google-research/bert; zero biases, unit norms."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std, generator=generator)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)
