"""The model families: what each does differently from BERT, as rows of one table.

bert            post-norm layers, two segments, a pair label       Devlin et al., arXiv:1810.04805
roberta         no pair label, one segment, positions from 2       Liu et al., arXiv:1907.11692, fairseq
albert          factorized embeddings, shared layers, tanh GELU    Lan et al., arXiv:1909.11942, google-research/albert
megatron-bert   pre-norm layers, for depth                         Shoeybi et al., arXiv:1909.08053
modernbert      RoPE, GeGLU, windows in two of three layers        Warner et al., arXiv:2412.13663
eurobert        RoPE, SwiGLU, RMSNorm, grouped keys and values     Boizard et al., arXiv:2503.05500; with equal numbers
                                                                   of heads NeoBERT, Le Breton et al., arXiv:2502.19587
esm             RoPE, pre-norm layers, masked embeddings of 0      Lin et al., 2023 (ESM-2), facebookresearch/esm
nomic_bert      post-norm layers with RoPE and SwiGLU              Nussbaum et al., arXiv:2402.01613
gte             the same with GeGLU and biases                     Zhang et al., arXiv:2407.19669
electra         a generator replaces tokens, a discriminator       Clark et al., arXiv:2003.10555,
                detects them; both have BERT's layers              google-research/electra
xlnet           targets in random order, relative positions        Yang et al., arXiv:1906.08237; xlnet.py
"""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from schemas.errors import UsageError
from trainer.models.shape import EncoderShape, FamilyTraits

if TYPE_CHECKING:
    from trainer.config.schema import Recipe
    from trainer.config.sections import ModelSection

GENERATOR_FOLDER = "generator"
"""The subfolder of an exported ELECTRA that holds its generator."""

ALBERT_EMBEDDING_SIZE = 128
ALBERT_GROUPS = 1
"""The values of all published ALBERT models; model.embedding_size and model.num_hidden_groups override them."""

FAMILIES = {
    "bert": FamilyTraits(truncated=2),
    # fairseq counts positions from the id of <pad>, 1, plus 1: the first two rows of the table are unused.
    "roberta": FamilyTraits(first_position=2, type_vocab_size=1, norm_eps=1e-5, pair_head=False),
    "albert": FamilyTraits(factorized=True, activation="gelu_tanh", truncated=2),
    "megatron-bert": FamilyTraits(pre_norm=True, embedding_norm=False, scaled_residuals=True),
    "modernbert": FamilyTraits(
        type_vocab_size=0,
        rope_base=160_000.0,
        window_rope_base=10_000.0,
        window=128,
        global_every=3,
        pre_norm=True,
        first_norm=False,
        norm_eps=1e-5,
        norm_bias=False,
        attention_bias=False,
        up_bias=False,
        down_bias=False,
        gated=True,
        head_dense_bias=False,
        pair_head=False,
        truncated=2,
        scaled_residuals=True,
    ),
    "eurobert": FamilyTraits(
        type_vocab_size=0,
        embedding_norm=False,
        rope_base=250_000.0,
        pre_norm=True,
        norm="rms",
        norm_eps=1e-5,
        norm_bias=False,
        attention_bias=False,
        up_bias=False,
        down_bias=False,
        gated=True,
        activation="silu",
        head_transform=False,
        decoder_bias=False,
        tied=False,
        pair_head=False,
    ),
    "esm": FamilyTraits(
        type_vocab_size=0,
        embedding_norm=False,
        rescale_masked=True,
        rope_base=10_000.0,
        pre_norm=True,
        norm_eps=1e-5,
        pair_head=False,
    ),
    "nomic_bert": FamilyTraits(
        rope_base=1_000.0,
        attention_bias=False,
        up_bias=False,
        down_bias=False,
        gated=True,
        activation="silu",
        pair_head=False,
    ),
    "gte": FamilyTraits(
        type_vocab_size=1,
        rope_base=160_000.0,
        up_bias=False,
        gated=True,
        pair_head=False,
    ),
    # Google's code names no initializer for these two matrices, and TensorFlow's default is Glorot's.
    "electra": FamilyTraits(
        pair_head=False,
        truncated=2,
        glorot=("encoder.widen", "discriminator.prediction"),
        replaced_tokens=True,
    ),
    "xlnet": FamilyTraits(type_vocab_size=3, head_transform=False, pair_head=False, two_streams=True),
}

ROTATED_FAMILIES = tuple(family for family, traits in FAMILIES.items() if traits.rope_base is not None)

FAMILIES_WITH = {
    "embedding_size": ("albert", "electra"),
    "num_hidden_groups": ("albert",),
    "sharing": ("albert",),
    "num_key_value_heads": ("eurobert",),
    "rope_base": ROTATED_FAMILIES,
    "window_rope_base": ("modernbert",),
    "window": ("modernbert",),
    "global_every": ("modernbert",),
    "tied": ("eurobert",),
    "generator_size": ("electra",),
    "discriminator_weight": ("electra",),
}
"""Keys of [model] that only some families have."""

GENERATOR_SIZE = 0.25
"""The width of ELECTRA's generator over the discriminator's: generator_hidden_size of google-research/electra."""

DISCRIMINATOR_WEIGHT = 50.0
"""The weight of the discriminator's loss: disc_weight of google-research/electra, lambda in the paper."""

CHANGEABLE_TRAITS = ("rope_base", "window_rope_base", "window", "global_every", "norm_eps", "tied")
"""Traits that a recipe's [model] may override, if they apply to its family."""


def encoder_shape(model: ModelSection, vocabulary_size: int, mask_id: int | None = None) -> EncoderShape:
    """Return the shape of a recipe's [model] for a vocabulary of this size, in which [MASK] has the id `mask_id`.

    A larger model.vocab_size adds spare rows, which stand for no token, as in some published models.
    """
    traits = asdict(FAMILIES[model.family])
    for name in CHANGEABLE_TRAITS:
        if getattr(model, name) is not None:
            traits[name] = getattr(model, name)

    shape = EncoderShape(
        **traits,
        **_embedding_sizes(model),
        family=model.family,
        vocab_size=max(vocabulary_size, model.vocab_size or 0),
        num_hidden_layers=model.num_hidden_layers,
        hidden_size=model.hidden_size,
        num_attention_heads=model.num_attention_heads,
        num_key_value_heads=model.num_key_value_heads or model.num_attention_heads,
        intermediate_size=model.intermediate_size,
        max_position_embeddings=model.max_position_embeddings,
        hidden_dropout_prob=model.hidden_dropout_prob,
        attention_probs_dropout_prob=model.attention_probs_dropout_prob,
        mask_id=mask_id if traits["rescale_masked"] else None,
    )
    if not shape.replaced_tokens:
        return shape
    return with_generator(shape, model.generator_size, model.discriminator_weight)


def _embedding_sizes(model: ModelSection) -> dict[str, Any]:
    """Return embedding_size, num_hidden_groups and sharing. Only ALBERT has groups of layers that share weights."""
    if model.family != "albert":
        return {
            "embedding_size": model.embedding_size or model.hidden_size,
            "num_hidden_groups": model.num_hidden_layers,
            "sharing": "none",
        }
    sharing = model.sharing or "all"
    groups = model.num_hidden_layers if sharing == "none" else model.num_hidden_groups or ALBERT_GROUPS
    return {
        "embedding_size": model.embedding_size or ALBERT_EMBEDDING_SIZE,
        "num_hidden_groups": groups,
        "sharing": sharing,
    }


# ELECTRA's generator has as many layers as the discriminator, and the same embeddings. Its width is a fraction of the
# discriminator's. Its number of heads and its feed-forward width shrink by the same factor, so that the head size stays
# the same (google-research/electra, run_pretraining.py and configure_pretraining.py).


class GeneratorSizes(NamedTuple):
    """Width, heads and feed-forward width of a generator."""

    hidden_size: int
    num_attention_heads: int
    intermediate_size: int


def generator_sizes(hidden_size: int, heads: int, intermediate_size: int, fraction: float) -> GeneratorSizes:
    """Return the generator's sizes for a discriminator of these sizes, `fraction` times as wide, rounded.

    Example: `generator_sizes(768, 12, 3072, 0.33333)` -> `(256, 4, 1024)`.
    """
    width = round(hidden_size * fraction)
    return GeneratorSizes(width, max(1, heads * width // hidden_size), intermediate_size * width // hidden_size)


def with_generator(shape: EncoderShape, fraction: float | None, weight: float | None) -> EncoderShape:
    """Return a discriminator's shape that contains its generator's.

    fraction: the generator's width over the discriminator's; GENERATOR_SIZE if None. weight: of the discriminator's
    loss; DISCRIMINATOR_WEIGHT if None.
    """
    sizes = generator_sizes(
        shape.hidden_size,
        shape.num_attention_heads,
        shape.intermediate_size,
        GENERATOR_SIZE if fraction is None else fraction,
    )
    generator = replace(
        shape,
        **sizes._asdict(),
        family="electra_generator",
        num_key_value_heads=sizes.num_attention_heads,
        factorized=shape.embedding_size != sizes.hidden_size,
        replaced_tokens=False,
    )
    return replace(
        shape,
        factorized=shape.embedding_size != shape.hidden_size,
        generator=generator,
        rtd_weight=DISCRIMINATOR_WEIGHT if weight is None else weight,
    )


# Whether a model can fit into this machine

WEIGHT_BYTES = 4  # the optimizer keeps float32 weights, whatever engine.precision is


def check_memory(recipe: Recipe, path: str) -> None:
    """Raise UsageError if the weights alone are larger than this machine's memory.

    On CPUs each rank holds the weights (in ZeRO stage 3, all ranks together), and on GPUs checkpoints pass through host
    memory. Gradients, the optimizer and activations need more, possibly on another device; `--describe` counts them.
    path: names the recipe in the message.
    """
    model = recipe.model
    needed_bytes = WEIGHT_BYTES * fewest_parameters(model)
    available_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed_bytes > available_bytes:
        raise UsageError(
            f"{path}: the weights of model.num_hidden_layers {model.num_hidden_layers:,}, "
            f"model.hidden_size {model.hidden_size:,} and model.intermediate_size {model.intermediate_size:,} take "
            f"{needed_bytes / 1e9:,.0f} GB, but this machine has {available_bytes / 1e9:,.0f} GB of memory. "
            "Make the model smaller, or use a larger machine."
        )


def fewest_parameters(model: ModelSection) -> int:
    """Return a number of parameters that every model of these sizes exceeds, by a fifth or less if layers dominate.

    Counts the embeddings, of one token if vocab_size is not given, and of each group of layers the four matrices that
    every family has. Modules are not built: building a billion layers would take days.
    """
    shape = encoder_shape(model, model.vocab_size or 1)
    has_positions = shape.rope_base is None and not shape.two_streams
    embeddings = shape.vocab_size + (shape.positions if has_positions else 0)
    matrices = 2 * shape.hidden_size * (shape.hidden_size + shape.intermediate_size)
    return embeddings * shape.embedding_size + shape.num_hidden_groups * matrices


def pair_objective(recipe: Recipe) -> str:
    """Return the --objective of pairs whose labels a recipe's model is made for, empty if it needs none.

    Recipes that continue an encoder (adapt_domain) need none.
    """
    model = recipe.model
    if model.init_from is not None or not FAMILIES[model.family].pair_head or recipe.objective.kind == "clm":
        return ""
    return "nsp" if model.family == "bert" else "sop"
