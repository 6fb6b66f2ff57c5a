"""The shape of a recipe's model and of its rows, also before there are pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer.config.schema import Recipe

if TYPE_CHECKING:
    from trainer.models.shape import EncoderShape

VOCABULARY_SIZE = 30_522
"""BERT's, assumed if neither the recipe nor finished pairs say it."""


def shape_of(recipe: Recipe) -> tuple[EncoderShape, int, int]:
    """Return the model's shape, the longest row, and a row as long as the mean token's."""
    from schemas.errors import UsageError
    from trainer.describe import row_lengths, vocabulary_size
    from trainer.models.families import encoder_shape

    try:
        vocabulary = vocabulary_size(recipe)
    except UsageError:
        vocabulary = VOCABULARY_SIZE  # no pairs yet
    longest, mean_seen = row_lengths(recipe)
    shape = encoder_shape(recipe.model, vocabulary)
    return shape, min(longest, recipe.model.max_position_embeddings), max(2, round(mean_seen))
