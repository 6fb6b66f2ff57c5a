"""The encoder that all families share: embeddings, Transformer layers, and a pooler for the pair head.

Families differ by the fields of `EncoderShape` alone (families.py). Query, key and value come from one matrix product.
Letters: T tokens, R rows that are read of the last layer, S sequences, D width, E width of the embeddings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from trainer.models.attention import attend
from trainer.models.batch import PackedBatch, SequenceOffsets


@dataclass(frozen=True)
class EncoderShape:
    """Sizes of an encoder and what its family does differently.

    positions: rows of the position table, of which the first token takes number first_position. type_vocab_size: 1 is a
    constant that all tokens share. embedding_size: width of the embeddings, E; factorised: a matrix widens them to D.
    num_hidden_groups: how many layers have weights of their own; each serves num_hidden_layers / num_hidden_groups
    in a row. gelu: the exact function or its tanh approximation. pre_norm: normalise what enters attention and
    feed-forward, not what they add up to. pair_head: pooler and pair label.
    """

    family: str
    vocab_size: int
    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    intermediate_size: int
    positions: int
    first_position: int
    type_vocab_size: int
    embedding_size: int
    factorised: bool
    num_hidden_groups: int
    hidden_dropout_prob: float
    attention_probs_dropout_prob: float
    layer_norm_eps: float
    gelu: Literal["none", "tanh"]
    pre_norm: bool
    pair_head: bool


class Embeddings(nn.Module):
    """Token, position and segment vectors, added, normalised (but with pre_norm) and dropped out."""

    def __init__(self, shape: EncoderShape):
        super().__init__()
        self.token = nn.Embedding(shape.vocab_size, shape.embedding_size)
        self.position = nn.Embedding(shape.positions, shape.embedding_size)
        self.segment = nn.Embedding(shape.type_vocab_size, shape.embedding_size)
        self.norm = nn.Identity() if shape.pre_norm else nn.LayerNorm(shape.embedding_size, shape.layer_norm_eps)
        self.dropout = nn.Dropout(shape.hidden_dropout_prob)
        self.shape = shape

    def forward(self, batch: PackedBatch) -> Tensor:
        """(T, E)."""
        segment = self.segment(batch.segments_T) if self.shape.type_vocab_size > 1 else self.segment.weight
        x_TE = self.token(batch.ids_T) + self.position(batch.positions_T + self.shape.first_position) + segment
        return self.dropout(self.norm(x_TE))


class Attention(nn.Module):
    """Every token looks at every token of its own sequence."""

    def __init__(self, shape: EncoderShape):
        super().__init__()
        self.heads, self.dropout = shape.num_attention_heads, shape.attention_probs_dropout_prob
        self.qkv = nn.Linear(shape.hidden_size, 3 * shape.hidden_size)
        self.out = nn.Linear(shape.hidden_size, shape.hidden_size)

    def forward(self, x_TD: Tensor, spans: SequenceOffsets, rows_R: Tensor | None) -> Tensor:
        """(T, D) -> (R, D)."""
        dropout = self.dropout if self.training else 0.0
        return self.out(rows_of(attend(self.qkv(x_TD), self.heads, spans, dropout), rows_R))


class Layer(nn.Module):
    """Attention and feed-forward, each added to its input. What is normalised is the sum; with pre_norm, the input."""

    def __init__(self, shape: EncoderShape):
        super().__init__()
        self.attention = Attention(shape)
        self.attention_norm = nn.LayerNorm(shape.hidden_size, shape.layer_norm_eps)
        self.up = nn.Linear(shape.hidden_size, shape.intermediate_size)
        self.down = nn.Linear(shape.intermediate_size, shape.hidden_size)
        self.norm = nn.LayerNorm(shape.hidden_size, shape.layer_norm_eps)
        self.dropout = nn.Dropout(shape.hidden_dropout_prob)
        self.gelu, self.pre_norm = shape.gelu, shape.pre_norm

    def forward(self, x_TD: Tensor, spans: SequenceOffsets, rows_R: Tensor | None = None) -> Tensor:
        """(T, D) -> (T, D), or (R, D) when only some rows are read."""
        if self.pre_norm:
            y_RD = self.attention(self.attention_norm(x_TD), spans, rows_R)
            x_RD = rows_of(x_TD, rows_R) + self.dropout(y_RD)
            return x_RD + self.dropout(self.feed_forward(self.norm(x_RD)))
        y_RD = self.attention(x_TD, spans, rows_R)
        x_RD = self.attention_norm(rows_of(x_TD, rows_R) + self.dropout(y_RD))
        return self.norm(x_RD + self.dropout(self.feed_forward(x_RD)))

    def feed_forward(self, x_RD: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x_RD), approximate=self.gelu))


class Encoder(nn.Module):
    """Embeddings and layers; the pooler reads each sequence's first token for the pair head.

    With `recompute` a layer keeps its input alone for the backward pass and is computed a second time there.
    """

    def __init__(self, shape: EncoderShape):
        super().__init__()
        self.embeddings = Embeddings(shape)
        self.widen = nn.Linear(shape.embedding_size, shape.hidden_size) if shape.factorised else nn.Identity()
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_hidden_groups))
        self.norm = nn.LayerNorm(shape.hidden_size, shape.layer_norm_eps) if shape.pre_norm else nn.Identity()
        self.pooler = nn.Linear(shape.hidden_size, shape.hidden_size) if shape.pair_head else None
        self.depth, self.recompute = shape.num_hidden_layers, False

    def forward(self, batch: PackedBatch, rows_R: Tensor | None = None) -> Tensor:
        """(T, D), the last layer's output, or (R, D), where it is read: the rest of it is then not computed."""
        spans = SequenceOffsets(batch)
        x_TD = self.widen(self.embeddings(batch))
        for i in range(self.depth):
            layer = self.layers[i * len(self.layers) // self.depth]
            rows = rows_R if i == self.depth - 1 else None
            if self.recompute and self.training:
                x_TD = checkpoint(layer, x_TD, spans, rows, use_reentrant=False)  # draws the same dropout again
            else:
                x_TD = layer(x_TD, spans, rows)
        return self.norm(x_TD)

    def compile_layers(self) -> None:
        """Let torch.compile make one kernel of many steps. Each number of tokens or rows is compiled again."""
        for layer in self.layers:
            layer.compile(dynamic=False)

    def pool(self, first_SD: Tensor) -> Tensor:
        """The last layer at each sequence's first token -> (S, D), one vector a sequence."""
        assert self.pooler is not None
        return torch.tanh(self.pooler(first_SD))


def rows_of(x_TD: Tensor, rows_R: Tensor | None) -> Tensor:
    """(R, D): the named rows, or all."""
    return x_TD if rows_R is None else x_TD.index_select(0, rows_R)
