"""The encoder that all families share: embeddings, Transformer layers, and a pooler for the pair head.

Families differ only in the fields of `EncoderShape` (shape.py, families.py). Query, key and value come from one matrix
product. The names of the modules are the names of tensors in checkpoints, so they must not change.

Shape suffixes: T tokens, R rows of the last layer that are computed, S sequences, D hidden size, E embedding size,
I feed-forward size, N heads of queries, keys and values together, d head size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from trainer.models.attention import AttentionRule, Rotation, attend, rotation_of
from trainer.models.batch import PackedBatch, SequenceOffsets
from trainer.models.fused import Dropout, gelu
from trainer.models.shape import Activation, EncoderShape

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "gelu": gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
}

RESCALED_FOR = 0.15 * 0.8
"""The share of tokens shown as [MASK] in ESM-2's pretraining: 80 % of the 15 % that are predicted."""

# In 16 bits, torch's CPU kernels add up the gradients of an embedding and of a layer norm's weights in 16 bits, one
# token after the other. Such a sum stops growing: after 2,400 masked tokens, the gradient of [MASK]'s embedding is 57 %
# off. So on a CPU both compute in float32 and round the result. CUDA kernels sum in float32, as do sums, matrix
# products and RMSNorm on every device.


def is_summed_in_16_bits(values: Tensor) -> bool:
    """Return whether torch would add up gradients of this dtype in 16 bits on this device."""
    return values.device.type == "cpu" and values.dtype in (torch.bfloat16, torch.float16)


class Embedding(nn.Embedding):
    """torch's embedding, with gradients summed in float32."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the rows of the table at these ids, in the dtype of the table."""
        if is_summed_in_16_bits(self.weight):
            return F.embedding(input, self.weight.float()).to(self.weight.dtype)
        return super().forward(input)


class LayerNorm(nn.LayerNorm):
    """torch's layer norm, with gradients summed in float32."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the normalized vectors, in the dtype of the input."""
        if is_summed_in_16_bits(input):
            bias = None if self.bias is None else self.bias.float()
            normalized = F.layer_norm(input.float(), self.normalized_shape, self.weight.float(), bias, self.eps)
            return normalized.to(input.dtype)
        return super().forward(input)


def build_norm(size: int, shape: EncoderShape) -> nn.Module:
    """Return the norm of the family over vectors of this size."""
    if shape.norm == "rms":
        return nn.RMSNorm(size, shape.norm_eps)
    return LayerNorm(size, shape.norm_eps, bias=shape.norm_bias)


class Embeddings(nn.Module):
    """Sums the token, position and segment vectors that the family has, then applies the norm and dropout."""

    def __init__(self, shape: EncoderShape):
        super().__init__()
        width = shape.embedding_size
        self.token = Embedding(shape.vocab_size, width)
        self.position = Embedding(shape.positions, width) if shape.rope_base is None else None
        self.segment = Embedding(shape.type_vocab_size, width) if shape.type_vocab_size else None
        self.norm = build_norm(width, shape) if shape.embedding_norm else nn.Identity()
        self.dropout = Dropout(shape.hidden_dropout_prob)
        self.shape = shape

    def forward(self, ids_T: Tensor, segments_T: Tensor, positions_T: Tensor, offsets: SequenceOffsets) -> Tensor:
        """Return the embeddings, (T, E).

        Takes tensors, not a batch: torch.compile recompiles a function whenever a field of an argument changes.
        """
        x_TE = self.token(ids_T)
        if self.shape.rescale_masked:
            assert self.shape.mask_id is not None
            x_TE = rescale_masked(x_TE, ids_T == self.shape.mask_id, offsets)
        if self.position is not None:
            x_TE = x_TE + self.position(positions_T + self.shape.first_position)
        if self.segment is not None:
            x_TE = x_TE + (self.segment(segments_T) if self.shape.type_vocab_size > 1 else self.segment.weight)
        return self.dropout(self.norm(x_TE))


def rescale_masked(x_TE: Tensor, is_masked_T: Tensor, offsets: SequenceOffsets) -> Tensor:
    """Return (T, E) with the embeddings of masked tokens set to 0 and the others scaled up, as dropout does.

    A sequence's embeddings are multiplied by (1 - RESCALED_FOR) / (1 - its share of masked tokens). Rows without masks,
    as in fine-tuning, then have the same overall scale as rows had on average in pretraining (ESM-2's token_dropout).
    """
    lengths_S = offsets.ends_S1.diff().clamp(min=1)
    masked_S = torch.zeros_like(lengths_S).index_add_(0, offsets.sequence_T, is_masked_T.int())
    # The clamp only prevents a division by zero: in a fully masked sequence, all embeddings are 0 at any scale.
    seen_share_S = ((lengths_S - masked_S) / lengths_S).clamp(min=1e-3)
    scale_T = ((1 - RESCALED_FOR) / seen_share_S)[offsets.sequence_T]
    return x_TE * (scale_T * ~is_masked_T).to(x_TE.dtype)[:, None]


class Attention(nn.Module):
    """Multi-head self-attention: every token attends to all tokens of the same sequence, or to those near it."""

    def __init__(self, shape: EncoderShape, window: int | None):
        super().__init__()
        self.shape = shape
        self.window = window
        self.triton = False
        self.qkv = nn.Linear(shape.hidden_size, shape.projected_heads * shape.head_size, bias=shape.attention_bias)
        self.out = nn.Linear(shape.hidden_size, shape.hidden_size, bias=shape.attention_bias)

    def rule(self, causal: bool = False) -> AttentionRule:
        """Return which tokens attend to which in this layer, with dropout in training only."""
        dropout = self.shape.attention_probs_dropout_prob if self.training else 0.0
        return AttentionRule(self.shape.num_attention_heads, dropout, self.window, causal, self.triton)

    def forward(
        self, x_TD: Tensor, offsets: SequenceOffsets, rotation: Rotation | None, rows_R: Tensor | None
    ) -> Tensor:
        """Compute (T, D) -> (R, D)."""
        qkv_TNd = self.qkv(x_TD).view(len(x_TD), self.shape.projected_heads, self.shape.head_size)
        y_TD = attend(qkv_TNd, offsets, self.rule(offsets.causal), rotation)
        return self.out(select_rows(y_TD, rows_R))


class Layer(nn.Module):
    """Attention and feed-forward, each with a residual connection. Norms are after the sum, or with pre_norm before."""

    def __init__(self, shape: EncoderShape, index: int):
        super().__init__()
        hidden_size = shape.hidden_size
        inner = shape.intermediate_size * (2 if shape.gated else 1)
        is_first = index == 0
        has_attention_norm = shape.first_norm or not is_first
        self.attention = Attention(shape, shape.window_of(index))
        self.attention_norm = build_norm(hidden_size, shape) if has_attention_norm else nn.Identity()
        self.up = nn.Linear(hidden_size, inner, bias=shape.up_bias)
        self.down = nn.Linear(shape.intermediate_size, hidden_size, bias=shape.down_bias)
        self.norm = build_norm(hidden_size, shape)
        self.dropout = Dropout(shape.hidden_dropout_prob)
        self.activation = ACTIVATIONS[shape.activation]
        self.gated = shape.gated
        self.pre_norm = shape.pre_norm

    def forward(
        self, x_TD: Tensor, offsets: SequenceOffsets, rotation: Rotation | None = None, rows_R: Tensor | None = None
    ) -> Tensor:
        """Compute (T, D) -> (T, D), or (R, D) if only some rows are needed."""
        # Pre-norm: the residual stream x is never normalized here. The encoder's last norm does that once.
        if self.pre_norm:
            y_RD = self.attention(self.attention_norm(x_TD), offsets, rotation, rows_R)
            x_RD = select_rows(x_TD, rows_R) + self.dropout(y_RD)
            return x_RD + self.dropout(self.feed_forward(self.norm(x_RD)))

        # Post-norm, as in the original Transformer.
        y_RD = self.attention(x_TD, offsets, rotation, rows_R)
        x_RD = self.attention_norm(select_rows(x_TD, rows_R) + self.dropout(y_RD))
        return self.norm(x_RD + self.dropout(self.feed_forward(x_RD)))

    def feed_forward(self, x_RD: Tensor) -> Tensor:
        inner = self.up(x_RD)
        if not self.gated:
            return self.down(self.activation(inner))
        activated_RI, gate_RI = inner.chunk(2, dim=-1)
        return self.down(self.activation(activated_RI) * gate_RI)


def build_layers(shape: EncoderShape) -> nn.ModuleList:
    """Return all layers, or one per group if whole layers are shared. Shared sublayers are the same module object."""
    if shape.sharing == "all":
        return nn.ModuleList(Layer(shape, index) for index in range(shape.num_hidden_groups))

    layers = [Layer(shape, index) for index in range(shape.num_hidden_layers)]
    for index, layer in enumerate(layers):
        first_of_group = layers[index - index % shape.layers_per_group]
        if shape.sharing == "attention":
            layer.attention = first_of_group.attention
            layer.attention_norm = first_of_group.attention_norm
        elif shape.sharing == "feed_forward":
            layer.up = first_of_group.up
            layer.down = first_of_group.down
            layer.norm = first_of_group.norm
    return nn.ModuleList(layers)


class Encoder(nn.Module):
    """Embeddings and layers. The pooler reads each sequence's first token for the pair head.

    With `recompute`, each layer saves only its input for the backward pass, and is computed again there.
    """

    def __init__(self, shape: EncoderShape):
        super().__init__()
        hidden_size = shape.hidden_size
        self.embeddings = Embeddings(shape)
        self.widen = nn.Linear(shape.embedding_size, hidden_size) if shape.factorized else nn.Identity()
        self.layers = build_layers(shape)
        self.norm = build_norm(hidden_size, shape) if shape.pre_norm else nn.Identity()
        self.pooler = nn.Linear(hidden_size, hidden_size) if shape.pair_head else None
        self.shape = shape
        self.recompute = False

    def forward(self, batch: PackedBatch, rows_R: Tensor | None = None) -> Tensor:
        """Return the last layer's output, (T, D). With `rows_R`, the last layer computes only these rows: (R, D)."""
        offsets = SequenceOffsets(batch)
        x_TE = self.embeddings(batch.ids_T, batch.segments_T, batch.positions_T, offsets)
        x_TD = self.widen(x_TE)

        depth = self.shape.num_hidden_layers
        rotations = self.rotations(batch.positions_T)
        for i in range(depth):
            # With fewer layers than the depth (ALBERT's groups), each is applied several times in a row.
            layer = self.layers[i * len(self.layers) // depth]
            rotation = rotations[self.shape.rope_base_of(i)]

            # Attention needs all tokens of the layers below; only the last layer can leave rows out.
            is_last = i == depth - 1
            rows = rows_R if is_last else None

            if self.recompute and self.training:
                # checkpoint() restores the random state, so the second pass drops out the same values.
                x_TD = checkpoint(layer, x_TD, offsets, rotation, rows, use_reentrant=False)
            else:
                x_TD = layer(x_TD, offsets, rotation, rows)
        return self.norm(x_TD)

    def rotations(self, positions_T: Tensor) -> dict[float | None, Rotation | None]:
        """Return the rotations for each RoPE base that a layer uses, and None for a base of None (no rotation)."""
        bases = {self.shape.rope_base_of(layer) for layer in range(self.shape.num_hidden_layers)}
        rotations: dict[float | None, Rotation | None] = {}
        for base in bases:
            rotations[base] = None if base is None else rotation_of(positions_T, base, self.shape.head_size)
        return rotations

    def compile_parts(self, backend: str = "inductor") -> None:
        """Let torch.compile fuse the operations of the embeddings and of each layer.

        Each number of tokens or rows is compiled separately.
        """
        self.embeddings.compile(dynamic=False, backend=backend)
        for layer in self.layers:
            layer.compile(dynamic=False, backend=backend)

    def pool(self, first_SD: Tensor) -> Tensor:
        """Return one vector per sequence, (S, D), given the last layer's output at its first token, (S, D)."""
        assert self.pooler is not None
        return torch.tanh(self.pooler(first_SD))


def select_rows(x_TD: Tensor, rows_R: Tensor | None) -> Tensor:
    """Return (R, D): these rows, or all of them if `rows_R` is None."""
    return x_TD if rows_R is None else x_TD.index_select(0, rows_R)


def parameters_of_unshared_layers(model: nn.Module) -> set[nn.Parameter]:
    """Return the parameters of layers that are not shared: each has one use in a forward pass, and so one gradient."""
    uses = Counter(
        parameter
        for encoder in model.modules()
        if isinstance(encoder, Encoder) and len(encoder.layers) == encoder.shape.num_hidden_layers
        for layer in encoder.layers
        for parameter in layer.parameters()
    )
    return {parameter for parameter, count in uses.items() if count == 1}
