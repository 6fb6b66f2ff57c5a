"""The shape of ELECTRA's generator: the discriminator's, made narrower.

The generator has as many layers as the discriminator, and the same embeddings. Its width is a fraction of the
discriminator's. Its number of heads and its feed-forward width shrink by the same factor, so that the head size stays
the same (google-research/electra, run_pretraining.py and configure_pretraining.py). Nothing here imports torch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from trainer.models.shape import EncoderShape

GENERATOR_SIZE = 0.25
"""The generator's width over the discriminator's: generator_hidden_size of google-research/electra."""

DISCRIMINATOR_WEIGHT = 50.0
"""The weight of the discriminator's loss: disc_weight of google-research/electra, lambda in the paper."""


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
