"""XLNet's encoder: two streams with one set of weights (Yang et al., arXiv:1906.08237), without memory.

    content stream h    a vector for each token, which begins as the token's embedding
    query stream g      a vector for each target, which begins as one learned vector, mask_emb, so that it knows the
                        target's position but not its token; predictions are made from it

The query stream is computed only at the targets. The content stream is not computed in the last layer, where nothing
reads it. Fine-tuning uses only the content stream. Layers are post-norm, and distances are encoded as sines and cosines
(xlnet_attention.py).

Differences from zihangdai/xlnet: no memory of earlier rows, which would tie a row to the rank and the step that read
the previous one; and no dropout inside the feed-forward network (the paper's table 7 has GeLU dropout 0). The GELU is
exact, as in transformers' XLNet, whereas Google's code uses the tanh approximation. All sequences of a micro-batch
share one dropout mask of the distance vectors.

Shape suffixes: T tokens, K targets, R masked positions of the batch (targets and padding), D hidden size, H heads,
d head size, P distances.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from trainer.models.batch import PackedBatch
from trainer.models.encoder import Embedding, LayerNorm
from trainer.models.shape import EncoderShape
from trainer.models.xlnet_attention import Grid, RelativeTerms, attend_relatively, grids_of

LOWEST_FREQUENCY = 10_000.0
"""The lowest frequency of the sines and cosines is 1 divided by this, as in the original Transformer."""


class RelativeAttention(nn.Module):
    """A layer's attention. Its weights are plain parameters with the names and memory layouts that transformers has.

    q, k, v, r: (D, H * d), multiplied from the right; r projects distances. o: (D, H * d), as in nn.Linear.
    r_w_bias, r_r_bias, r_s_bias: (H * d,), added to queries before the product with keys, distances and segments.
    seg_embed: (2, H * d), for keys in the query's own segment, and in others.
    """

    def __init__(self, shape: EncoderShape):
        super().__init__()
        width = shape.hidden_size
        self.q = nn.Parameter(torch.empty(width, width))
        self.k = nn.Parameter(torch.empty(width, width))
        self.v = nn.Parameter(torch.empty(width, width))
        self.o = nn.Parameter(torch.empty(width, width))
        self.r = nn.Parameter(torch.empty(width, width))
        self.r_w_bias = nn.Parameter(torch.empty(width))
        self.r_r_bias = nn.Parameter(torch.empty(width))
        self.r_s_bias = nn.Parameter(torch.empty(width))
        self.seg_embed = nn.Parameter(torch.empty(2, width))
        self.heads = shape.num_attention_heads
        self.dropout = shape.attention_probs_dropout_prob

    def project(self, x_ND: Tensor, weight_DD: Tensor) -> Tensor:
        """Return the heads of queries, keys or values, (N, H, d), of N tokens or targets."""
        return (x_ND @ weight_DD).unflatten(1, (self.heads, -1))

    def terms(self, distances_PD: Tensor) -> RelativeTerms:
        """Return what queries are compared with besides keys. distances_PD: see `distance_vectors`."""

        def heads_first(x: Tensor) -> Tensor:
            return x.unflatten(-1, (self.heads, -1)).transpose(0, 1)

        return RelativeTerms(
            distances_HPd=heads_first(distances_PD @ self.r),
            segments_H2d=heads_first(self.seg_embed),
            word_bias_H1d=heads_first(self.r_w_bias[None]),
            distance_bias_H1d=heads_first(self.r_r_bias[None]),
            segment_bias_H1d=heads_first(self.r_s_bias[None]),
        )

    def forward(
        self, h_TD: Tensor, g_KD: Tensor | None, context: StreamContext, needs_content: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return the outputs of content and query stream, (T, D) and (K, D); None for a stream that is not needed."""
        k_THd = self.project(h_TD, self.k)
        v_THd = self.project(h_TD, self.v)
        content_THd = self.project(h_TD, self.q) if needs_content else None
        query_KHd = None if g_KD is None else self.project(g_KD, self.q)

        terms = self.terms(context.distances_PD)
        dropout = self.dropout if self.training else 0.0
        content_parts = []
        query_parts = []
        for grid in context.grids:
            k_and_v = (grid.spread_tokens(k_THd), grid.spread_tokens(v_THd))
            if content_THd is not None:
                y_SHLd = attend_relatively(grid.spread_tokens(content_THd), k_and_v, grid.content, terms, dropout)
                content_parts.append(grid.collect_tokens(y_SHLd))
            if query_KHd is not None:
                y_SHMd = attend_relatively(grid.spread_targets(query_KHd), k_and_v, grid.query, terms, dropout)
                query_parts.append(grid.collect_targets(y_SHMd))
        return self._out(content_parts), self._out(query_parts)

    def _out(self, parts: list[Tensor]) -> Tensor | None:
        return F.linear(torch.cat(parts), self.o) if parts else None


class TwoStreamLayer(nn.Module):
    """Attention and feed-forward, each with a residual connection and a norm after it, for one stream or both."""

    def __init__(self, shape: EncoderShape):
        super().__init__()
        width = shape.hidden_size
        self.attention = RelativeAttention(shape)
        self.attention_norm = LayerNorm(width, shape.norm_eps)
        self.up = nn.Linear(width, shape.intermediate_size)
        self.down = nn.Linear(shape.intermediate_size, width)
        self.norm = LayerNorm(width, shape.norm_eps)
        self.dropout = nn.Dropout(shape.hidden_dropout_prob)

    def forward(
        self, h_TD: Tensor, g_KD: Tensor | None, context: StreamContext, needs_content: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Compute (T, D) and (K, D) -> the same. The content stream is returned unchanged unless `needs_content`."""
        content_TD, query_KD = self.attention(h_TD, g_KD, context, needs_content)
        if content_TD is not None:
            h_TD = self.finish(h_TD, content_TD)
        if g_KD is not None and query_KD is not None:
            g_KD = self.finish(g_KD, query_KD)
        return h_TD, g_KD

    def finish(self, x_ND: Tensor, y_ND: Tensor) -> Tensor:
        """Return a stream after the layer, given its input and attention's output."""
        x_ND = self.attention_norm(x_ND + self.dropout(y_ND))
        inner = self.down(F.gelu(self.up(x_ND)))
        return self.norm(x_ND + self.dropout(inner))


class TokenEmbeddings(nn.Module):
    """The table of token embeddings, with dropout. Attention adds positions and segments."""

    def __init__(self, shape: EncoderShape):
        super().__init__()
        self.token = Embedding(shape.vocab_size, shape.hidden_size)
        self.dropout = nn.Dropout(shape.hidden_dropout_prob)

    def forward(self, ids_T: Tensor) -> Tensor:
        return self.dropout(self.token(ids_T))


class StreamContext:
    """What all layers need to know about a batch: its grids, and the vectors of distances, (P, D)."""

    def __init__(self, batch: PackedBatch, distances_PD: Tensor):
        self.grids: list[Grid] = grids_of(batch)
        self.distances_PD = distances_PD


class TwoStreamEncoder(nn.Module):
    """Embeddings and layers. With `recompute`, a layer saves only its input and is computed again for the gradient."""

    def __init__(self, shape: EncoderShape):
        super().__init__()
        self.embeddings = TokenEmbeddings(shape)
        self.mask_emb = nn.Parameter(torch.empty(1, shape.hidden_size))
        self.layers = nn.ModuleList(TwoStreamLayer(shape) for _ in range(shape.num_hidden_layers))
        self.dropout = nn.Dropout(shape.hidden_dropout_prob)
        self.shape = shape
        self.recompute = False

    def forward(self, batch: PackedBatch, rows_R: Tensor | None = None) -> Tensor:
        """Return the query stream at masked positions, (R, D), or without `rows_R` the content stream, (T, D).

        rows_R: must be the batch's masked positions. Rows of padding are zero.
        """
        h_TD = self.embeddings(batch.ids_T)
        distances_PD = distance_vectors(batch.longest, h_TD)
        context = StreamContext(batch, self.dropout(distances_PD))

        g_KD = None
        if rows_R is not None:
            g_KD = self.dropout(self.mask_emb.expand(batch.predicted, -1))

        for i, layer in enumerate(self.layers):
            needs_content = g_KD is None or i < len(self.layers) - 1
            if self.recompute and self.training:
                # checkpoint() restores the random state, so the second pass drops out the same values.
                h_TD, g_KD = checkpoint(layer, h_TD, g_KD, context, needs_content, use_reentrant=False)
            else:
                h_TD, g_KD = layer(h_TD, g_KD, context, needs_content)

        if rows_R is None or g_KD is None:
            return self.dropout(h_TD)
        return F.pad(self.dropout(g_KD), (0, 0, 0, len(rows_R) - batch.predicted))

    def compile_parts(self, backend: str = "inductor") -> None:
        """Do nothing: the number of targets, and on CPUs the number of grids, differs between batches."""


def distance_vectors(longest: int, like: Tensor) -> Tensor:
    """Return (P, D): the vectors of the distances L - 1 down to -L, sines before cosines, in the dtype of `like`.

    A distance is the query's position minus the key's.
    """
    width = like.shape[1]
    distances_P = torch.arange(longest - 1, -longest - 1, -1, device=like.device).float()
    exponents = torch.arange(0, width, 2, device=like.device).float() / width
    angles = distances_P[:, None] * (1.0 / LOWEST_FREQUENCY**exponents)
    return torch.cat([angles.sin(), angles.cos()], dim=1).to(like.dtype)


def permutation_inputs(order_L: Tensor, targets_K: Tensor) -> dict[str, Tensor]:
    """Return XLNet's `perm_mask` (1, L, L) and `target_mapping` (1, K, L), float32, of one row.

    order_L: as `PackedBatch.order_T`. targets_K: the positions of the targets. A 1 in perm_mask hides key j (last
    dimension) from query i. transformers still lets each token of the content stream see itself.
    """
    is_visible_LL = order_L[None, :] < order_L.clamp(min=0)[:, None]
    target_mapping_KL = torch.zeros(len(targets_K), len(order_L))
    target_mapping_KL[torch.arange(len(targets_K)), targets_K] = 1.0
    return {"perm_mask": (~is_visible_LL).float()[None], "target_mapping": target_mapping_KL[None]}
