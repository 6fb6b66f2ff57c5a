"""The encoder that all families share: embeddings, Transformer layers, and a pooler for the pair head.

Families differ only in the fields of `EncoderShape` (families.py). Query, key and value come from one matrix product.
The names of the modules are the names of tensors in checkpoints, so they must not change.

Shape suffixes: T tokens, R rows of the last layer that are computed, S sequences, D hidden size, E embedding size.
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
from trainer.models.flash import AttendPacked, attend_with_torch


@dataclass(frozen=True)
class EncoderShape:
    """The sizes of an encoder, and what its family does differently. Most names are those of a Hugging Face config.

    positions: rows of the position table.
    first_position: the row of that table which a sequence's first token uses.
    type_vocab_size: number of segments. With 1, all tokens share one constant vector.
    embedding_size: E, the width of the embeddings.
    factorized: a matrix projects the embeddings from E to D.
    num_hidden_groups: how many layers have separate weights. Each is applied num_hidden_layers / num_hidden_groups
        times in a row.
    gelu: the exact function ("none") or its tanh approximation, as in torch.
    pre_norm: normalize the input of attention and of feed-forward, instead of the sum of input and output.
    pair_head: the model has a pooler and predicts pair labels.
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
    factorized: bool
    num_hidden_groups: int
    hidden_dropout_prob: float
    attention_probs_dropout_prob: float
    layer_norm_eps: float
    gelu: Literal["none", "tanh"]
    pre_norm: bool
    pair_head: bool


class Embeddings(nn.Module):
    """Adds token, position and segment vectors, normalizes the sum (unless pre_norm) and applies dropout."""

    def __init__(self, shape: EncoderShape):
        super().__init__()
        self.token = nn.Embedding(shape.vocab_size, shape.embedding_size)
        self.position = nn.Embedding(shape.positions, shape.embedding_size)
        self.segment = nn.Embedding(shape.type_vocab_size, shape.embedding_size)
        self.norm = nn.Identity() if shape.pre_norm else nn.LayerNorm(shape.embedding_size, shape.layer_norm_eps)
        self.dropout = nn.Dropout(shape.hidden_dropout_prob)
        self.shape = shape

    def forward(self, ids_T: Tensor, segments_T: Tensor, positions_T: Tensor) -> Tensor:
        """Return (T, E).

        Takes tensors, not a batch: a compiled function is compiled again whenever a field of its arguments changes.
        """
        segment = self.segment(segments_T) if self.shape.type_vocab_size > 1 else self.segment.weight
        x_TE = self.token(ids_T) + self.position(positions_T + self.shape.first_position) + segment
        return self.dropout(self.norm(x_TE))


class Attention(nn.Module):
    """Multi-head self-attention: every token attends to all tokens of the same sequence.

    flash: which flash attention it uses where that works (flash.py).
    """

    def __init__(self, shape: EncoderShape):
        super().__init__()
        hidden_size = shape.hidden_size
        self.heads = shape.num_attention_heads
        self.dropout = shape.attention_probs_dropout_prob
        self.flash: AttendPacked = attend_with_torch
        self.qkv = nn.Linear(hidden_size, 3 * hidden_size)
        self.out = nn.Linear(hidden_size, hidden_size)

    def forward(self, x_TD: Tensor, offsets: SequenceOffsets, rows_R: Tensor | None) -> Tensor:
        """Compute (T, D) -> (R, D)."""
        dropout = self.dropout if self.training else 0.0
        y_TD = attend(self.qkv(x_TD), self.heads, offsets, dropout, self.flash)
        return self.out(select_rows(y_TD, rows_R))


class Layer(nn.Module):
    """Attention and feed-forward, each added to its input. The sum is normalized, or with pre_norm the input."""

    def __init__(self, shape: EncoderShape):
        super().__init__()
        hidden_size = shape.hidden_size
        self.attention = Attention(shape)
        self.attention_norm = nn.LayerNorm(hidden_size, shape.layer_norm_eps)
        self.up = nn.Linear(hidden_size, shape.intermediate_size)
        self.down = nn.Linear(shape.intermediate_size, hidden_size)
        self.norm = nn.LayerNorm(hidden_size, shape.layer_norm_eps)
        self.dropout = nn.Dropout(shape.hidden_dropout_prob)
        self.gelu = shape.gelu
        self.pre_norm = shape.pre_norm

    def forward(self, x_TD: Tensor, offsets: SequenceOffsets, rows_R: Tensor | None = None) -> Tensor:
        """Compute (T, D) -> (T, D), or (R, D) if only some rows are needed."""
        # Pre-norm: x itself is only added to, never normalized; the encoder's last norm does it once.
        if self.pre_norm:
            y_RD = self.attention(self.attention_norm(x_TD), offsets, rows_R)
            x_RD = select_rows(x_TD, rows_R) + self.dropout(y_RD)
            return x_RD + self.dropout(self.feed_forward(self.norm(x_RD)))

        # Post-norm, as in the original Transformer.
        y_RD = self.attention(x_TD, offsets, rows_R)
        x_RD = self.attention_norm(select_rows(x_TD, rows_R) + self.dropout(y_RD))
        return self.norm(x_RD + self.dropout(self.feed_forward(x_RD)))

    def feed_forward(self, x_RD: Tensor) -> Tensor:
        """Compute (R, D) -> (R, D)."""
        return self.down(F.gelu(self.up(x_RD), approximate=self.gelu))


class Encoder(nn.Module):
    """Embeddings and layers. The pooler reads each sequence's first token for the pair head.

    With `recompute`, a layer keeps only its input for the backward pass and is computed a second time there.
    """

    def __init__(self, shape: EncoderShape):
        super().__init__()
        hidden_size = shape.hidden_size
        self.embeddings = Embeddings(shape)
        self.widen = nn.Linear(shape.embedding_size, hidden_size) if shape.factorized else nn.Identity()
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_hidden_groups))
        self.norm = nn.LayerNorm(hidden_size, shape.layer_norm_eps) if shape.pre_norm else nn.Identity()
        self.pooler = nn.Linear(hidden_size, hidden_size) if shape.pair_head else None
        self.depth = shape.num_hidden_layers
        self.recompute = False

    def forward(self, batch: PackedBatch, rows_R: Tensor | None = None) -> Tensor:
        """Return the last layer's output, (T, D), or (R, D) at these rows: the others are then not computed."""
        offsets = SequenceOffsets(batch)
        x_TD = self.widen(self.embeddings(batch.ids_T, batch.segments_T, batch.positions_T))

        for i in range(self.depth):
            # With fewer layers than the depth (ALBERT's groups), each is applied several times in a row.
            layer = self.layers[i * len(self.layers) // self.depth]

            # Attention needs all tokens of the layers below; only the last layer can leave rows out.
            is_last = i == self.depth - 1
            rows = rows_R if is_last else None

            if self.recompute and self.training:
                x_TD = checkpoint(layer, x_TD, offsets, rows, use_reentrant=False)  # draws the same dropout again
            else:
                x_TD = layer(x_TD, offsets, rows)
        return self.norm(x_TD)

    def compile_parts(self, backend: str = "inductor") -> None:
        """Let torch.compile fuse the operations of the embeddings and of each layer.

        Each number of tokens or rows is compiled separately.
        """
        self.embeddings.compile(dynamic=False, backend=backend)
        for layer in self.layers:
            layer.compile(dynamic=False, backend=backend)

    def use_flash(self, flash: AttendPacked) -> None:
        """Let every layer use this flash attention."""
        for layer in self.layers:
            layer.attention.flash = flash  # type: ignore[union-attr, assignment]

    def pool(self, first_SD: Tensor) -> Tensor:
        """Compute the vector of each sequence, (S, D), from the last layer at its first token, (S, D)."""
        assert self.pooler is not None
        return torch.tanh(self.pooler(first_SD))


def select_rows(x_TD: Tensor, rows_R: Tensor | None) -> Tensor:
    """Return (R, D): these rows, or all of them if `rows_R` is None."""
    return x_TD if rows_R is None else x_TD.index_select(0, rows_R)
