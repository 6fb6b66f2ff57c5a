"""An encoder with the heads it is trained by: masked LM at the masked places alone, and the pair label.

Projecting onto the vocabulary only where something was masked saves 85% of the head's work, a fifth of all of
BERT-base's at length 128. The last layer, too, is computed only where a head reads it. Losses leave as sums, because
what to divide by is a matter of the whole global batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainer.models.batch import IGNORE_INDEX, PackedBatch
from trainer.models.encoder import Encoder, EncoderShape
from trainer.models.families import encoder_shape
from trainer.models.init_weights import initialize

if TYPE_CHECKING:
    from trainer.config.schema import ModelSection


class Losses(NamedTuple):
    """Sums over a micro-batch, float32: of the masked LM loss over K tokens, of the pair loss over labeled rows."""

    mlm_sum: Tensor
    mlm_correct: Tensor
    pair_sum: Tensor
    pair_correct: Tensor


class MaskedLMHead(nn.Module):
    """Dense, GELU, norm, and a projection onto the token embeddings with a bias of its own."""

    def __init__(self, shape: EncoderShape):
        super().__init__()
        self.dense = nn.Linear(shape.hidden_size, shape.embedding_size)
        self.norm = nn.LayerNorm(shape.embedding_size, shape.layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(shape.vocab_size))
        self.gelu = shape.gelu

    def forward(self, x_KD: Tensor, embedding_VE: Tensor) -> Tensor:
        """(K, V) logits."""
        return F.linear(self.norm(F.gelu(self.dense(x_KD), approximate=self.gelu)), embedding_VE, self.bias)


class PretrainingModel(nn.Module):
    """A family's model for pretraining: `forward` gives losses, `logits` gives what they are computed from."""

    def __init__(self, shape: EncoderShape):
        super().__init__()
        self.shape = shape
        self.encoder = Encoder(shape)
        self.mlm_head = MaskedLMHead(shape)
        self.pair_head = nn.Linear(shape.hidden_size, 2) if shape.pair_head else None

    def logits(self, batch: PackedBatch) -> tuple[Tensor, Tensor | None]:
        """(K, V) at the masked places, and (S, 2) for the pairs or None in a family without pair labels."""
        firsts = batch.sequence_starts_S if self.pair_head is not None else batch.sequence_starts_S[:0]
        x_RD = self.encoder(batch, torch.cat([firsts, batch.masked_positions_K]))
        first_SD, masked_KD = x_RD.split([len(firsts), len(batch.masked_positions_K)])
        mlm_KV = self.mlm_head(masked_KD, self.encoder.embeddings.token.weight)
        return mlm_KV, None if self.pair_head is None else self.pair_head(self.encoder.pool(first_SD))

    def forward(self, batch: PackedBatch) -> Losses:
        mlm_KV, pair_S2 = self.logits(batch)
        mlm_sum, mlm_correct = summed_loss(mlm_KV, batch.labels_K)
        if pair_S2 is None:
            return Losses(mlm_sum, mlm_correct, torch.zeros_like(mlm_sum), torch.zeros_like(mlm_sum))
        return Losses(mlm_sum, mlm_correct, *summed_loss(pair_S2, batch.pair_labels_S))

    def labeled_pairs(self, batch: PackedBatch) -> int:
        """How many rows the pair loss is a sum over: none in a family that does not predict pair labels."""
        return batch.paired if self.pair_head is not None else 0


def summed_loss(logits_NC: Tensor, labels_N: Tensor) -> tuple[Tensor, Tensor]:
    """(cross-entropy, number of right answers), both summed in float32 over the places that have a label."""
    loss = F.cross_entropy(logits_NC.float(), labels_N, reduction="sum", ignore_index=IGNORE_INDEX)
    return loss, (logits_NC.argmax(-1) == labels_N).sum().float()


def build_model(model: ModelSection, vocabulary_size: int, seed: int) -> PretrainingModel:
    """A model with initial weights that depend on the seed alone."""
    built = PretrainingModel(encoder_shape(model, vocabulary_size))
    initialize(built, built.shape, model.initializer_range, seed)
    return built
