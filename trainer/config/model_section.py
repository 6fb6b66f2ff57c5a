"""The table [model]: the shape of the network, and the weights that a new run starts from.

An initial_* key has no effect if the family lacks those weights, such as a dense layer in the head.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trainer.config.section import Place, Section

START_KEYS = frozenset(
    {
        "init_from",
        "tile_from",
        "initial_embeddings",
        "initial_embedding_std",
        "initial_attention",
        "initial_head",
    }
)
"""Keys that affect only the weights of step 0. They may differ when a run resumes or is exported."""


class ModelSection(Section):
    """The shape of the network. Keys have the names of a Hugging Face config.json where one exists."""

    family: Literal[
        "bert",
        "roberta",
        "albert",
        "megatron-bert",
        "modernbert",
        "eurobert",
        "esm",
        "nomic_bert",
        "gte",
        "electra",
        "xlnet",
    ] = Field(
        description='Architecture. "megatron-bert" normalizes before each sublayer (arXiv:1909.08053), "albert" shares '
        'weights between layers (arXiv:1909.11942), "roberta" has one segment and no pair head (arXiv:1907.11692). '
        '"modernbert" (arXiv:2412.13663), "eurobert" (arXiv:2503.05500), "esm" (ESM-2), "nomic_bert" '
        '(arXiv:2402.01613) and "gte" (arXiv:2407.19669) rotate queries and keys instead of adding position vectors. '
        '"electra" (arXiv:2003.10555) detects tokens that a small masked LM beside it replaced. "xlnet" '
        "(arXiv:1906.08237) predicts tokens in a random order, each from those before it, and masks nothing."
    )
    num_hidden_layers: int = Field(gt=0, description="Number of transformer layers.")
    hidden_size: int = Field(
        gt=0, description="Width of a token's vector in every layer. Must be a multiple of num_attention_heads."
    )
    num_attention_heads: int = Field(gt=0, description="Number of attention heads in each layer.")
    intermediate_size: int = Field(
        gt=0, description="Width inside each layer's feed-forward network; 4 * hidden_size in BERT."
    )
    max_position_embeddings: int = Field(
        default=512,
        gt=0,
        description="Maximum tokens in a row. RoBERTa's two reserved rows are added to it, so the config.json of an "
        "exported RoBERTa says 2 more.",
    )
    num_key_value_heads: int | None = Field(
        default=None,
        gt=0,
        description="EuroBERT only: heads of keys and values, each shared by equally many heads of queries. If unset, "
        "num_attention_heads: none is shared.",
    )
    rope_base: float | None = Field(
        default=None,
        gt=1,
        description="Families with rotations (RoPE): the base of their frequencies. Longer rows need a larger one. If "
        "unset, the family's: 160,000 in modernbert and gte, 250,000 in eurobert, 10,000 in esm, 1,000 in nomic_bert.",
    )
    window_rope_base: float | None = Field(
        default=None, gt=1, description="ModernBERT only: the same in layers with a window; 10,000 if unset."
    )
    window: int | None = Field(
        default=None,
        ge=0,
        description="ModernBERT only: how many tokens a token attends to in layers with a window, half of them on each "
        "side; 128 if unset. 0: all.",
    )
    global_every: int | None = Field(
        default=None,
        gt=0,
        description="ModernBERT only: one layer in every N attends to all tokens, and the others have a window; 3 if "
        "unset.",
    )
    norm_eps: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="Added to the variance by norms. If unset, the family's: 1e-5 in roberta, modernbert, eurobert and "
        "esm, otherwise 1e-12.",
    )
    tied: bool | None = Field(
        default=None,
        description="Whether the masked-LM head projects onto the vocabulary with the table of embeddings. If unset, "
        "all families do except eurobert.",
    )
    sharing: Literal["all", "attention", "feed_forward", "none"] | None = Field(
        default=None,
        description='ALBERT only: what the layers of a group share. "all" if unset, as in the published models; the '
        "others are those of the paper's table 4.",
    )
    embedding_size: int | None = Field(
        default=None,
        gt=0,
        description="ALBERT and ELECTRA only: width of the embeddings, which a matrix projects to hidden_size. If "
        "unset, 128 in albert, as in the paper, and hidden_size in electra.",
    )
    num_hidden_groups: int | None = Field(
        default=None,
        gt=0,
        description="ALBERT only: number of groups of layers, each with its own weights; 1 if unset, so that all "
        "layers share theirs. Must divide num_hidden_layers.",
    )
    generator_size: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="ELECTRA only: width, heads and feed-forward width of the generator, as a fraction of the "
        "discriminator's; 0.25 if unset. It has as many layers.",
    )
    discriminator_weight: float | None = Field(
        default=None,
        gt=0,
        description="ELECTRA only: what the discriminator's loss is multiplied by before the generator's is added; 50 "
        "if unset.",
    )
    vocab_size: int | None = Field(
        default=None,
        gt=0,
        description="Number of tokens. The vocabulary of the pairs decides; if set, this must agree with it. With "
        "init_from it may be larger: the rows of embeddings of a folder that has spare ones.",
    )
    hidden_dropout_prob: float = Field(
        default=0.1, ge=0, lt=1, description="Dropout probability of the embeddings and of each sublayer's output."
    )
    attention_probs_dropout_prob: float = Field(
        default=0.1, ge=0, lt=1, description="Dropout probability of the attention weights."
    )
    initializer_range: float = Field(
        default=0.02,
        gt=0,
        le=10,
        description="Standard deviation of the initial weights of matrices; 0.02 in all published models.",
    )
    initial_embeddings: Literal["random", "cooccurrence"] = Field(
        default="random",
        description='Token embeddings that a new run starts from. "cooccurrence": tokens that occur near the same '
        "tokens in the training text have similar ones (trainer/models/word_vectors.py), with the standard deviation "
        "initial_embedding_std.",
    )
    initial_embedding_std: float | None = Field(
        default=None,
        gt=0,
        le=10,
        description='With initial_embeddings "cooccurrence": the standard deviation of the embeddings; '
        "initializer_range if unset.",
    )
    initial_attention: Literal["random", "identity"] = Field(
        default="random",
        description='Attention of one layer that a new run starts from. "identity": it adds to each token the mean '
        "of the tokens that it attends to, from which the head predicts a word that occurs near them. In ALBERT all "
        "layers share this attention.",
    )
    initial_head: Literal["random", "identity"] = Field(
        default="random",
        description='Dense layer of the masked-LM head that a new run starts from. "identity": it passes on what the '
        "last layer computes, with a little of the random matrix.",
    )
    init_from: Place | None = Field(
        default=None,
        description="Hugging Face folder whose safetensors the run starts from, to continue a published model.",
    )
    tile_from: Place | None = Field(
        default=None,
        description="Hugging Face folder of a smaller model of the same family and vocabulary. The run starts from "
        "tiles of its weights, divided so that a wider model computes what the smaller one does "
        "(trainer/models/tiling.py). Heads keep their size.",
    )
