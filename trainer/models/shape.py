"""The shape of an encoder: its sizes, and what its family does differently from BERT.

A family is a row of `FamilyTraits` in families.py. The encoder asks for fields, never for a family's name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Activation = Literal["gelu", "gelu_tanh", "silu"]
"""gelu: the exact function (erf). gelu_tanh: its tanh approximation. silu: x * sigmoid(x)."""

Sharing = Literal["all", "attention", "feed_forward", "none"]
"""What the layers of a group share: their whole weights, only one of the two sublayers', or nothing."""


@dataclass(frozen=True, kw_only=True)
class FamilyTraits:
    """How a family's encoder works. The defaults are BERT's.

    Embeddings
    first_position: the row of the position table that a sequence's first token uses.
    type_vocab_size: number of segments. With 1, all tokens share one constant vector; with 0, there is none.
    factorized: a matrix projects the embeddings from embedding_size to hidden_size.
    embedding_norm: the embeddings are normalized.
    rescale_masked: the embedding of a masked token is 0, and those of its sequence are scaled up as by dropout (ESM).

    Positions
    rope_base: queries and keys are rotated by their positions (RoPE, arXiv:2104.09864) at frequencies down to 1 / base.
        None: there is a table of position vectors instead.
    window_rope_base: the same in layers with a window; None: as rope_base.

    Attention
    window: how many tokens a token attends to in layers with a window: half of them on each side, and itself. 0: all.
    global_every: the first of every `global_every` layers attends to all tokens, the others within a window.

    Layers
    pre_norm: normalize the input of attention and of feed-forward, instead of the sum of input and output. The last
        layer's output is then normalized, too.
    first_norm: pre_norm only: the first layer normalizes its input, which is redundant after embedding_norm.
    norm: LayerNorm, or RMSNorm (arXiv:1910.07467), which has no mean to subtract and no bias.
    norm_bias, attention_bias, up_bias, down_bias: which norms and matrices have biases. up and down are the two
        matrices of the feed-forward network.
    gated: the feed-forward network multiplies its inner vector by a second one (GLU, arXiv:2002.05202).

    Heads
    head_transform: the masked-LM head has a dense layer, an activation and a norm before its projection.
    head_dense_bias, decoder_bias: of that dense layer, and of the projection onto the vocabulary.
    tied: the projection onto the vocabulary is the table of embeddings.
    pair_head: the model has a pooler and predicts pair labels.

    Initial weights
    truncated: the number of standard deviations at which draws are cut off; None for no limit.
    scaled_residuals: matrices that add to the residual stream are drawn smaller by sqrt(2 * layers).
    glorot: name endings of the matrices that are drawn from Glorot's uniform distribution (Glorot and Bengio, 2010).

    Objective
    replaced_tokens: a generator fills in masked tokens, and the model detects which tokens were replaced (ELECTRA).
    two_streams: permutation language modeling, with XLNet's own encoder (xlnet.py), which reads few of these fields.
    """

    first_position: int = 0
    type_vocab_size: int = 2
    factorized: bool = False
    embedding_norm: bool = True
    rescale_masked: bool = False

    rope_base: float | None = None
    window_rope_base: float | None = None

    window: int = 0
    global_every: int = 1

    pre_norm: bool = False
    first_norm: bool = True
    norm: Literal["layer", "rms"] = "layer"
    norm_eps: float = 1e-12
    norm_bias: bool = True
    attention_bias: bool = True
    up_bias: bool = True
    down_bias: bool = True
    gated: bool = False
    activation: Activation = "gelu"

    head_transform: bool = True
    head_dense_bias: bool = True
    decoder_bias: bool = True
    tied: bool = True
    pair_head: bool = True

    truncated: float | None = None
    scaled_residuals: bool = False
    glorot: tuple[str, ...] = ()

    replaced_tokens: bool = False
    two_streams: bool = False


@dataclass(frozen=True, kw_only=True)
class EncoderShape(FamilyTraits):
    """The sizes of an encoder, and its family's traits. Most names are those of a Hugging Face config.

    max_position_embeddings: tokens in the longest row.
    embedding_size: E, the width of the embeddings.
    num_key_value_heads: a divisor of num_attention_heads. If it is lower, several query heads share keys and values.
    num_hidden_groups: the number of groups of consecutive layers.
    sharing: what the layers of a group share. It has no effect if each group has a single layer.
    mask_id: the id of [MASK], which only rescale_masked needs; None if no model is run.
    generator: replaced_tokens only: the shape of the generator; the other fields are the discriminator's.
    rtd_weight: what the loss of replaced-token detection is multiplied by.
    """

    family: str
    vocab_size: int
    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    intermediate_size: int
    max_position_embeddings: int
    embedding_size: int
    num_hidden_groups: int
    sharing: Sharing
    hidden_dropout_prob: float
    attention_probs_dropout_prob: float
    mask_id: int | None = None
    generator: EncoderShape | None = None
    rtd_weight: float = 0.0

    @property
    def positions(self) -> int:
        """Rows of the position table, or the size it would have in a family without one."""
        return self.max_position_embeddings + self.first_position

    @property
    def head_size(self) -> int:
        """Width of a head's queries, keys and values."""
        return self.hidden_size // self.num_attention_heads

    @property
    def projected_heads(self) -> int:
        """N, the total number of heads of queries, keys and values."""
        return self.num_attention_heads + 2 * self.num_key_value_heads

    @property
    def queries_of_key(self) -> int:
        """The number of heads of queries that share a head of keys and values."""
        return self.num_attention_heads // self.num_key_value_heads

    @property
    def layers_per_group(self) -> int:
        """The number of consecutive layers in a group."""
        return self.num_hidden_layers // self.num_hidden_groups

    def window_of(self, layer: int) -> int | None:
        """Return how many tokens on each side a token of this layer attends to, or None for all of its sequence."""
        is_global = self.window == 0 or layer % self.global_every == 0
        return None if is_global else self.window // 2

    def rope_base_of(self, layer: int) -> float | None:
        """Return the RoPE base of a layer, or None if it does not rotate queries and keys."""
        if self.window_of(layer) is not None and self.window_rope_base is not None:
            return self.window_rope_base
        return self.rope_base

    def global_layers(self) -> int:
        return sum(self.window_of(layer) is None for layer in range(self.num_hidden_layers))
