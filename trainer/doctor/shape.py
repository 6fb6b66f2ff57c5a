"""Finds the shape of a recipe's model and of its rows, even before there are pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer.config.schema import Recipe

if TYPE_CHECKING:
    from trainer.models.shape import EncoderShape

VOCABULARY_SIZE = 30_522
"""The size of BERT's vocabulary, assumed if neither the recipe nor finished pairs state one."""


def shape_of(recipe: Recipe) -> tuple[EncoderShape, int, int]:
    """Return the model's shape, the length of the longest row, and the mean length of row that a token is in."""
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
