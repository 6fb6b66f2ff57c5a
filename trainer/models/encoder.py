"""BERT's encoder (Devlin et al., arXiv:1810.04805): learned positions and segments, post-layer-norm Transformer layers.

Query, key and value come from one matrix product. Letters: T tokens, S sequences, L longest, D width, H heads.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainer.models.packing import PackedBatch, PaddedView


@dataclass(frozen=True)
class EncoderShape:
    """Sizes of an encoder; the names are the recipe's."""

    vocabulary: int
    layers: int
    width: int
    heads: int
    feedforward: int
    max_positions: int
    segments: int
    dropout: float
    attention_dropout: float
    norm_eps: float


class Embeddings(nn.Module):
    """Token, position and segment vectors, added, normalised and dropped out."""

    def __init__(self, shape: EncoderShape):
        super().__init__()
        self.token = nn.Embedding(shape.vocabulary, shape.width)
        self.position = nn.Embedding(shape.max_positions, shape.width)
        self.segment = nn.Embedding(shape.segments, shape.width)
        self.norm = nn.LayerNorm(shape.width, shape.norm_eps)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, batch: PackedBatch) -> Tensor:
        """(T, D)."""
        x_TD = self.token(batch.ids_T) + self.position(batch.positions_T) + self.segment(batch.segments_T)
        return self.dropout(self.norm(x_TD))


class Attention(nn.Module):
    """Every token looks at every token of its own sequence."""

    def __init__(self, shape: EncoderShape):
        super().__init__()
        self.heads, self.dropout = shape.heads, shape.attention_dropout
        self.qkv = nn.Linear(shape.width, 3 * shape.width)
        self.out = nn.Linear(shape.width, shape.width)

    def forward(self, x_TD: Tensor, view: PaddedView) -> Tensor:
        """(T, D) -> (T, D)."""
        grid = view.spread(self.qkv(x_TD))
        q, k, v = grid.view(*view.shape, 3, self.heads, -1).permute(2, 0, 3, 1, 4)  # each (S, H, L, D / H)
        dropout = self.dropout if self.training else 0.0
        y_SHLd = F.scaled_dot_product_attention(q, k, v, attn_mask=view.mask_S11L, dropout_p=dropout)
        return self.out(view.collect(y_SHLd.transpose(1, 2).flatten(2)))


class Layer(nn.Module):
    """Attention and feed-forward, each added to its input and then normalised."""

    def __init__(self, shape: EncoderShape):
        super().__init__()
        self.attention = Attention(shape)
        self.attention_norm = nn.LayerNorm(shape.width, shape.norm_eps)
        self.up = nn.Linear(shape.width, shape.feedforward)
        self.down = nn.Linear(shape.feedforward, shape.width)
        self.norm = nn.LayerNorm(shape.width, shape.norm_eps)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, x_TD: Tensor, view: PaddedView) -> Tensor:
        """(T, D) -> (T, D)."""
        x_TD = self.attention_norm(x_TD + self.dropout(self.attention(x_TD, view)))
        return self.norm(x_TD + self.dropout(self.down(F.gelu(self.up(x_TD)))))


class Encoder(nn.Module):
    """Embeddings and layers; the pooler reads each sequence's first token for the pair head."""

    def __init__(self, shape: EncoderShape):
        super().__init__()
        self.embeddings = Embeddings(shape)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.pooler = nn.Linear(shape.width, shape.width)

    def forward(self, batch: PackedBatch) -> Tensor:
        """(T, D), the last layer's output."""
        view = PaddedView(batch)
        x_TD = self.embeddings(batch)
        for layer in self.layers:
            x_TD = layer(x_TD, view)
        return x_TD

    def pool(self, x_TD: Tensor, batch: PackedBatch) -> Tensor:
        """(S, D), one vector a sequence."""
        return torch.tanh(self.pooler(x_TD.index_select(0, batch.first_S)))
